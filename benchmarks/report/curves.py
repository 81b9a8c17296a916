"""How the cost grows, and a model fitted to that: of the cases `scaling-*`."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from documents import save
from tables import NAMES

NATS = "rollfleet_two.nats_async"
AXES = {
    "envs": "environments of one worker (CartPole)",
    "workers": "workers of 8 CartPole on this machine, weights after each batch",
    "bytes": "bytes of an observation, one worker of 8",
    "parameters": "parameters sent to two workers after each batch of 1,024 frames",
}
STEPS = 128
FLEETS = (10, 100, 1000)

Curve = dict[float, float]
"""Frames a second by what the axis counts."""


def curves(cases: Mapping[str, Any], axis: str) -> dict[str, Curve]:
    """Of each contender."""
    found: dict[str, Curve] = {}
    for name, case in cases.items():
        if name.startswith(f"scaling-{axis}-"):
            for contender, figures in case["contenders"].items():
                if figures.get("frames/s"):
                    found.setdefault(contender, {})[float(name.rpartition("-")[2])] = median(figures["frames/s"])
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """What things cost, in seconds; see docs/scaling.md.

    Attributes:
        step: A step of any number of environments, with what a batch costs spread over its steps.
        frame: One environment's step.
        carry: One byte of a batch, from the worker to the learner, both of which are waited for.
        weight: One byte of the weights, in all that both workers and the learner do.
    """

    step: float
    frame: float
    carry: float
    weight: float

    def frames_per_s(self, envs: int, observation_bytes: float) -> float:
        """Of one worker on a core of its own."""
        return envs / (self.step + envs * (self.frame + self.carry * observation_bytes))


def fit(cases: Mapping[str, Any]) -> Model | None:
    """By least squares of the relative error; None: not all curves were measured."""
    envs, nbytes, parameters = (curves(cases, axis).get(NATS, {}) for axis in ("envs", "bytes", "parameters"))
    if min(map(len, (envs, nbytes, parameters))) < 2:
        return None
    step, frame = _line({count: count / rate for count, rate in envs.items()})
    _, carry = _line({size: 1 / rate for size, rate in nbytes.items()})
    # Seconds a batch of 1,024 frames, by the bytes of the weights.
    _, weight = _line({4 * count: 8 * STEPS / rate for count, rate in parameters.items()})
    return Model(step=step, frame=frame, carry=carry, weight=weight)


def _line(points: Curve) -> tuple[float, float]:
    """Constant and slope, neither below zero, of values that count by their size."""
    at, value = (np.array(list(each)) for each in (points.keys(), points.values()))
    columns: NDArray[Any] = np.stack([np.ones_like(at), at], -1) / value[:, None]
    (constant, slope), *_ = np.linalg.lstsq(columns, np.ones_like(at))
    return max(0.0, float(constant)), max(0.0, float(slope))


def model_text(model: Model | None) -> str:
    """What it is, and what fleets need by it."""
    if model is None:
        return "Not all curves were measured."
    lines = [
        f"A step costs {1e6 * model.step:.1f} µs and {1e6 * model.frame:.2f} µs for each environment; a byte of an "
        f"observation {1e9 * model.carry:.2f} ns, a byte of the weights {1e9 * model.weight:.2f} ns.",
        "",
        "Workers of 8 environments on a core each, weights of 1 MB after every 10 batches of a worker:",
        "",
        "| Workers | Observation | Frames/s | Learner: MB/s in | Learner: cores | NATS: MB/s of weights out |",
        "|---|---|---|---|---|---|",
    ]
    for count in FLEETS:
        for size, what in ((16, "16 bytes"), (84 * 84 * 4, "84 x 84 x 4 bytes")):
            rate = count * model.frames_per_s(8, size)
            ingress = rate * (size + 40)  # and action, reward, flags, ids
            # One version after ten batches of the whole fleet's mean worker: each of them goes to all.
            egress = count * 1e6 * rate / count / (10 * 8 * STEPS)
            lines.append(
                f"| {count:,} | {what} | {rate:,.0f} | {ingress / 1e6:,.0f} | {ingress * model.carry / 2:,.1f} | "
                f"{egress / 1e6:,.0f} |"
            )
    return "\n".join(lines)


def curve_tables(cases: Mapping[str, Any]) -> str:
    """One table for each axis."""
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
    """Frames a second, both axes logarithmic."""
    figure = Figure(figsize=(10, 6.5), layout="constrained")
    for axes, (axis, title) in zip(figure.subplots(2, 2).flat, AXES.items(), strict=True):
        for name, curve in curves(cases, axis).items():
            at = sorted(curve)
            axes.loglog(at, [curve[each] for each in at], marker="o", label=NAMES[name].replace("`", ""))
        axes.set_xlabel(title, fontsize=8)
        axes.set_ylabel("frames/s", fontsize=8)
        axes.grid(alpha=0.3)
        if axes.lines:
            axes.legend(fontsize=7, frameon=False)
    save(figure, path)
