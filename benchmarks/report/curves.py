"""Frames per second along one axis at a time: the cases `scaling-*`."""

from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator, StrMethodFormatter

from documents import save
from tables import NAMES

AXES = {
    "envs": "environments of one worker (CartPole)",
    "workers": "workers of 8 CartPole on this machine, weights after each batch",
    "bytes": "bytes of an observation, one worker of 8",
    "parameters": "parameters sent to two workers after each batch of 1,024 frames",
}

Curve = dict[float, float]
"""Frames per second by the value on the axis."""


def curves(cases: Mapping[str, Any], axis: str) -> dict[str, Curve]:
    """Return the medians of each contender."""
    found: dict[str, Curve] = {}
    for name, case in cases.items():
        if name.startswith(f"scaling-{axis}-"):
            for contender, figures in case["contenders"].items():
                if rates := figures.get("frames/s"):
                    found.setdefault(contender, {})[float(name.rpartition("-")[2])] = median(rates)
    return found


def curve_tables(cases: Mapping[str, Any]) -> str:
    """Return one table for each axis."""
    parts = ["![Frames a second over each axis](../docs/images/bench-scaling.svg)"]
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
