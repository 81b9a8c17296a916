"""The growth of costs in the cases `scaling-*`, and a model fitted to it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator, StrMethodFormatter
from numpy.typing import NDArray

from documents import save
from tables import NAMES

NATS, ROUNDS = "rollfleet_two.nats_async", "rollfleet_two.nats_sync"
AXES = {
    "envs": "environments of one worker (CartPole)",
    "workers": "workers of 8 CartPole on this machine, weights after each batch",
    "bytes": "bytes of an observation, one worker of 8",
    "parameters": "parameters sent to two workers after each batch of 1,024 frames",
}
STEPS, ENVS = 128, 8
BATCH = STEPS * ENVS
PARTS = ("worker", "learner", "server")
FLEETS = (10, 100, 1000)
OBSERVATIONS = {16: "16 bytes", 84 * 84 * 4: "84 x 84 x 4 bytes"}
WEIGHTS_BYTES, INTERVAL = (
    1_000_000,
    10,
)  # of the modelled fleets: bytes of a version, batches of a worker between two versions

Curve = dict[float, float]
"""Figures by the value on the axis."""
Lines = dict[str, "Line"]
"""Curves by part."""


def curves(cases: Mapping[str, Any], axis: str, figure: str = "frames/s") -> dict[str, Curve]:
    """Return the medians of each contender."""
    found: dict[str, Curve] = {}
    for name, case in cases.items():
        if name.startswith(f"scaling-{axis}-"):
            for contender, figures in case["contenders"].items():
                if figures.get(figure):
                    found.setdefault(contender, {})[float(name.rpartition("-")[2])] = median(figures[figure])
    return found


@dataclass(frozen=True, slots=True)
class Line:
    """A linear cost in µs of CPU: `constant`, plus `slope` for each unit."""

    constant: float
    slope: float

    def at(self, count: float) -> float:
        """Return the cost of this many units."""
        return self.constant + count * self.slope


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """The costs of all parts in µs of CPU; see docs/scaling.md.

    Attributes:
        step: A worker's step, by its environments.
        frame: Of each part, one frame in batches of 1,024, by the bytes of an observation.
        batch: Of each part, one batch, by its frames.
        version: Of each part, a version of the weights for two workers, by its bytes.
        overhead: Bytes on the wire of a frame but for its observation.
    """

    step: Line
    frame: Lines
    batch: Lines
    version: Lines
    overhead: float

    def frames_per_s(self, size: float) -> float:
        """Return the frames per second of one worker of 8 environments on a separate core."""
        carried = self.frame["worker"].slope * (size - 16)
        return 1e6 / (self.step.at(ENVS) / ENVS + carried)

    def cores(self, part: str, frames_per_s: float, size: float, versions_per_s: float, workers: int) -> float:
        """Return the cores that the learner or the server needs."""
        version = self.version[part].slope * WEIGHTS_BYTES * (workers / 2 if part == "server" else 1)
        return 1e-6 * (frames_per_s * self.frame[part].at(size) + versions_per_s * version)


def fit(cases: Mapping[str, Any]) -> Model | None:
    """Fit the model by least squares of the relative error. None: not all curves were measured."""

    def lines(axis: str, contender: str, at: Callable[[float], float], frames: Callable[[float], float]) -> Lines:
        """Return the CPU time of each part for the frames at `at`."""
        found = {part: curves(cases, axis, f"{part} µs").get(contender, {}) for part in PARTS}
        return {
            part: _line({at(count): frames(count) * cost for count, cost in curve.items()})
            for part, curve in found.items()
            if len(curve) > 1
        }

    step = lines("envs", NATS, lambda envs: envs, lambda envs: envs)
    batch = lines("envs", NATS, lambda envs: STEPS * envs, lambda envs: STEPS * envs)
    frame = lines("bytes", NATS, lambda size: size, lambda _: 1)
    # A round is a batch of each of two workers, and one version.
    version = lines("parameters", ROUNDS, lambda count: 4 * count, lambda _: 2 * BATCH)
    wire = curves(cases, "bytes", "wire bytes").get(NATS)
    if not wire or any(len(each) < len(PARTS) for each in (step, batch, frame, version)):
        return None
    return Model(
        step=step["worker"], frame=frame, batch=batch, version=version, overhead=min(wire.values()) - min(wire)
    )


def _line(points: Curve) -> Line:
    """Fit a line by the relative error; neither its constant nor its slope is below zero."""
    at, value = (np.array(list(each)) for each in (points.keys(), points.values()))
    columns: NDArray[Any] = np.stack([np.ones_like(at), at], -1) / value[:, None]
    (constant, slope), *_ = np.linalg.lstsq(columns, np.ones_like(at))
    return Line(max(0.0, float(constant)), max(0.0, float(slope)))


def model_text(model: Model | None) -> str:
    """Describe the model, and the needs of fleets."""
    if model is None:
        return "Not all curves were measured."
    lines = [
        f"A worker's step costs {model.step.constant:.0f} µs and {model.step.slope:.1f} µs for each environment. "
        "Other costs, in µs of CPU:",
        "",
        "| | a batch | each of its frames | 1 MB of observations | 1 MB of weights to two workers |",
        "|---|---|---|---|---|",
    ]
    for part, title in zip(PARTS, ("workers", "learner", "nats-server"), strict=True):
        batch, frame, version = model.batch[part], model.frame[part], model.version[part]
        costs = ("in the step",) * 2 if part == "worker" else (f"{batch.constant:,.0f}", f"{batch.slope:.2f}")
        lines.append(f"| {title} | {' | '.join(costs)} | {1e6 * frame.slope:,.0f} | {1e6 * version.slope:,.0f} |")
    lines += [
        "",
        f"Workers of {ENVS} environments on a core each, batches of {BATCH:,} frames, weights of "
        f"{WEIGHTS_BYTES / 1e6:.0f} MB after every {INTERVAL} batches of a worker:",
        "",
        "| workers | observation | frames/s | learner: cores | learner: MB/s in | nats-server: cores | "
        "nats-server: MB/s of weights out |",
        "|---|---|---|---|---|---|---|",
    ]
    for count in FLEETS:
        for size, what in OBSERVATIONS.items():
            rate = count * model.frames_per_s(size)
            versions = rate / count / (INTERVAL * BATCH)
            learner, server = (model.cores(part, rate, size, versions, count) for part in ("learner", "server"))
            ingress, egress = rate * (size + model.overhead), count * WEIGHTS_BYTES * versions
            lines.append(
                f"| {count:,} | {what} | {rate:,.0f} | {learner:,.2f} | {ingress / 1e6:,.0f} | {server:,.2f} | "
                f"{egress / 1e6:,.0f} |"
            )
    lines.append("")
    for size, what in OBSERVATIONS.items():
        most = 1e6 / model.frame["learner"].at(size)
        lines.append(
            f"- A learner's one core is full at {most:,.0f} frames/s of {what}: "
            f"{most / model.frames_per_s(size):,.0f} such workers."
        )
    return "\n".join(lines)


def curve_tables(cases: Mapping[str, Any]) -> str:
    """Return one table for each axis."""
    parts = ["![Frames a second over each axis](images/bench-scaling.svg)"]
    for axis, title in AXES.items():
        found = curves(cases, axis)
        points = sorted({at for curve in found.values() for at in curve})
        rows = [f"| {title} | {' | '.join(f'{at:,.0f}' for at in points)} |", f"|---|{'---|' * len(points)}"]
        for name, curve in found.items():
            rows.append(
                f"| {NAMES[name]} | {' | '.join(f'{curve[at]:,.0f}' if at in curve else '' for at in points)} |"
            )
        parts.append("\n".join(rows))
    return "\n\n".join(parts)


def draw(cases: Mapping[str, Any], path: Path) -> None:
    """Draw frames per second, both axes logarithmic."""
    figure = Figure(figsize=(10, 6.5), layout="constrained")
    for axes, (axis, title) in zip(figure.subplots(2, 2).flat, AXES.items(), strict=True):
        found = curves(cases, axis)
        for name, curve in found.items():
            at = sorted(curve)
            axes.loglog(at, [curve[each] for each in at], marker="o", label=NAMES[name].replace("`", ""))
        points = sorted({at for curve in found.values() for at in curve})
        axes.set_xticks(points, [f"{at:,.0f}" for at in points], fontsize=7)
        axes.xaxis.set_minor_locator(NullLocator())
        for place in ("major", "minor"):
            getattr(axes.yaxis, f"set_{place}_formatter")(StrMethodFormatter("{x:,.0f}"))
        axes.tick_params(axis="y", which="both", labelsize=7)
        axes.set_xlabel(title, fontsize=8)
        axes.set_ylabel("frames/s", fontsize=8)
        axes.grid(alpha=0.3)
        if axes.lines:
            axes.legend(fontsize=7, frameon=False)
    save(figure, path)
