"""Tables of results and targets."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from documents import save

Cases = Mapping[str, Any]

NAMES = {
    "by_hand.list_torch": "by hand: list of environments, torch",
    "by_hand.list_numpy": "by hand: list of environments, numpy",
    "by_hand.vector_torch": "by hand: SyncVectorEnv, torch",
    "by_hand.async_torch": "by hand: AsyncVectorEnv, torch",
    "by_hand.make_vec_torch": "by hand: Rollfleet's make_vec, torch",
    "by_hand.envpool_torch": "by hand: EnvPool, torch",
    "by_hand.envpool_numpy": "by hand: EnvPool, numpy",
    "rollfleet_here.plain_torch": "Rollfleet, any torch policy",
    "rollfleet_here.mlp": "Rollfleet, `mlp`",
    "rollfleet_here.servers": "Rollfleet, make_vec, `mlp`",
    "rollfleet_here.hosts": "Rollfleet, make_vec over TLS, `mlp`",
    "rollfleet_here.envpool_torch": "Rollfleet, any torch policy, EnvPool",
    "rollfleet_here.envpool_mlp": "Rollfleet, `mlp`, EnvPool",
    "sb3_here.rollouts": "Stable-Baselines3",
    "torchrl_here.serial": "TorchRL, SerialEnv",
    "torchrl_here.vector": "TorchRL, SyncVectorEnv",
    "torchrl_here.async_batched": "TorchRL AsyncBatchedCollector, a process for each environment",
    "two_by_hand.torch_policy": "by hand: shared memory, torch",
    "two_by_hand.numpy_policy": "by hand: shared memory, numpy",
    "rollfleet_two.processes_sync": "Rollfleet, processes, sync",
    "rollfleet_two.processes_async": "Rollfleet, processes, async",
    "rollfleet_two.processes_async_mlp": "Rollfleet, processes, async, `mlp`",
    "rollfleet_two.nats_sync": "Rollfleet, NATS, sync",
    "rollfleet_two.nats_async": "Rollfleet, NATS, async",
    "rollfleet_two.nats_async_mlp": "Rollfleet, NATS, async, `mlp`",
    "torchrl_two.sync_serial": "TorchRL MultiSync, SerialEnv",
    "torchrl_two.async_serial": "TorchRL MultiAsync, SerialEnv",
    "torchrl_two.sync_vector": "TorchRL MultiSync, SyncVectorEnv",
    "torchrl_two.async_vector": "TorchRL MultiAsync, SyncVectorEnv",
    "ray_two.sync_serial": "RayCollector sync, SerialEnv",
    "ray_two.async_serial": "RayCollector async, SerialEnv",
    "ray_two.async_vector": "RayCollector async, SyncVectorEnv",
    "rllib_here.runner": "RLlib, environment runner",
    "rllib_two.sync": "RLlib, environment runners, sync",
    "rllib_two.async_": "RLlib, environment runners, async",
    "imports.torch_alone": "torch",
    "imports.rollfleet_api": "rollfleet_api",
    "imports.rollfleet": "rollfleet",
    "imports.rollfleet_worker": "all that a Rollfleet worker imports",
    "imports.torchrl": "torchrl.collectors",
}
SMALLER_IS_BETTER = {"start s", "call ms", "acted ms", "worker MB", "import s", "import MB"}


@dataclass(frozen=True, slots=True)
class Bound:
    """The maximum of a figure."""

    case: str
    ours: str
    most: float
    figure: str


def bounds() -> Iterator[Bound]:
    """Return all of them."""
    for ours in ("rollfleet_two.processes_async", "rollfleet_two.nats_async", "rollfleet_two.nats_sync"):
        yield Bound("weights-4MB", ours, 1, "call ms")
        yield Bound("weights-400MB", ours, 40, "call ms")
    for ours in ("processes_sync", "processes_async", "nats_sync", "nats_async"):
        yield Bound("idle", f"rollfleet_two.{ours}", 1, "idle CPU %")
        yield Bound("idle", f"rollfleet_two.{ours}", 1, "learner idle CPU %")


@dataclass(frozen=True, slots=True)
class Target:
    """A target for a ratio: a minimum, or a maximum if less is better.

    Attributes:
        case: Its work.
        ours: Who of us.
        theirs: Of which peer; of another case if `case:contender`.
        ratio: Ours by theirs.
        figure: Which one.
    """

    case: str
    ours: str
    theirs: str
    ratio: float
    figure: str = "frames/s"


def targets() -> Iterator[Target]:
    """Return all of them."""
    any_, mlp, pool = "rollfleet_here.plain_torch", "rollfleet_here.mlp", "rollfleet_here.envpool_mlp"
    serial, vector, sb3 = "torchrl_here.serial", "torchrl_here.vector", "sb3_here.rollouts"
    ratios: dict[tuple[str, str], tuple[float | None, float, float]] = {
        ("cartpole-1", any_): (5, 0, 1.7),
        ("cartpole-1", mlp): (12, 0, 5),
        ("cartpole-8", any_): (11, 6, 1.6),
        ("cartpole-8", mlp): (20, 11, 3.5),
        ("cartpole-64", any_): (17, 4, 1.3),
        ("cartpole-64", pool): (32, 7, 2.5),
        ("pendulum-8", any_): (10, 4.5, 1.6),
        ("pendulum-8", mlp): (18, 8, 3),
        ("halfcheetah-8", any_): (6, 3.5, 1.4),
        ("halfcheetah-8", mlp): (8, 4.8, 2),
    }
    for (case, ours), wanted in ratios.items():
        for theirs, ratio in zip((serial, vector, sb3), wanted, strict=True):
            if ratio:
                yield Target(case, ours, theirs, ratio)
        by_hand = {any_: "by_hand.list_torch", mlp: "by_hand.list_numpy", pool: "by_hand.envpool_numpy"}
        yield Target(case, ours, by_hand[ours], 0.95)
    two, nats, ray = "two-processes", "rollfleet_two.nats_async", "ray_two.async_serial"
    processes, shared = "rollfleet_two.processes_async", "two_by_hand.torch_policy"
    yield Target(two, processes, "torchrl_two.async_serial", 11)
    yield Target(two, processes, "torchrl_two.async_vector", 6)
    yield Target(two, processes, shared, 0.9)
    yield Target(two, nats, ray, 17)
    yield Target(two, nats, f"two-processes-without-weights:{ray}", 8)
    yield Target(two, nats, shared, 0.6)
    yield Target("pixels", "rollfleet_two.processes_sync", "torchrl_two.sync_serial", 1.5)
    yield Target("pixels", nats, ray, 2)
    yield Target("stacked", nats, ray, 4)
    for case in ("weights-4MB", "weights-400MB"):
        yield Target(case, nats, ray, 0.5, "acted ms")
    yield Target("start", processes, "torchrl_two.async_serial", 0.5, "start s")
    yield Target("start", nats, "torchrl_two.async_serial", 0.5, "start s")
    yield Target(two, processes, "torchrl_two.async_serial", 0.7, "worker MB")
    yield Target(two, nats, ray, 0.7, "worker MB")
    yield Target("imports", "imports.rollfleet_worker", "imports.torchrl", 0.7, "import s")


def ratio(cases: Cases, target: Target) -> float | None:
    """Return the median of the rounds' ratios. None: one of the two was not measured."""
    case, _, theirs = target.theirs.rpartition(":")
    ours = values(cases, target.case, target.ours, target.figure)
    others = values(cases, case or target.case, theirs, target.figure)
    if not ours or not others:
        return None
    return median(a / b for a, b in zip(ours, others, strict=False))


def values(cases: Cases, case: str, contender: str, figure: str) -> list[float]:
    """Return a contender's figures, one for each round; empty: it was not measured."""
    found: list[float] = cases.get(case, {}).get("contenders", {}).get(contender, {}).get(figure, [])
    return found


def target_table(cases: Cases) -> str:
    """Return the table of targets with the measured values."""
    rows = ["| Work | Rollfleet | Against | Ratio | Target | |", "|---|---|---|---|---|---|"]
    for target in targets():
        found, less = ratio(cases, target), target.figure in SMALLER_IS_BETTER
        if found is None:
            continue
        met = found <= target.ratio if less else found >= target.ratio
        what = "" if target.figure == "frames/s" else f", {target.figure}"
        against = NAMES[target.theirs.rpartition(":")[2]] + (", without weights" if ":" in target.theirs else "")
        rows.append(
            f"| {target.case}{what} | {NAMES[target.ours].removeprefix('Rollfleet, ')} | {against} | {found:.2f} | "
            f"{'≤' if less else '≥'} {target.ratio:g} | {'met' if met else '**not met**'} |"
        )
    rows += ["", "| Work | Rollfleet | Figure | Bound | |", "|---|---|---|---|---|"]
    for bound in sorted(bounds(), key=lambda each: (each.figure, each.case)):
        if rounds := values(cases, bound.case, bound.ours, bound.figure):
            middle = median(rounds)
            rows.append(
                f"| {bound.case}, {bound.figure} | {NAMES[bound.ours].removeprefix('Rollfleet, ')} | {middle:.2f} | "
                f"≤ {bound.most:g} | {'met' if middle <= bound.most else '**not met**'} |"
            )
    return "\n".join(rows)


def case_table(case: Mapping[str, Any]) -> str:
    """Return the table of a case: medians, with the lowest and highest round."""
    own = case["contenders"]
    figures = list(dict.fromkeys(figure for each in own.values() for figure in each if figure != "error"))
    rows = [f"| | {' | '.join(figures)} |", f"|---|{'---|' * len(figures)}"]
    for name, each in own.items():
        cells = [_spread(each[figure]) if each.get(figure) else "" for figure in figures]
        if "error" in each:
            cells[0] = f"could not run: `{each['error'].splitlines()[-1].replace('|', '/')}`"
        rows.append(f"| {NAMES[name]} | {' | '.join(cells)} |")
    return "\n".join(rows)


def _spread(rounds: Sequence[float]) -> str:
    return f"{_number(median(rounds))} ({_number(min(rounds))} to {_number(max(rounds))})"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def case_tables(cases: Cases) -> str:
    """Return the tables of all cases that belong to no curve."""
    return "\n\n".join(
        f"### {case['title']}\n\n`{name}`, {case['date']}, load {case['load']} at the start.\n\n{case_table(case)}"
        for name, case in cases.items()
        if not name.startswith("scaling-")
    )


def machine(results: Mapping[str, Any]) -> str:
    """Describe the machine."""
    found = results["machine"]
    packages = ", ".join(f"{name} {version}" for name, version in found["packages"].items())
    return (
        f"Measured on {found['cores']} cores of {found['cpu']}, {found['memory_gib']} GiB, no GPU, {found['system']}, "
        f"Python {found['python']}, {packages}."
    )


def bars(cases: Cases, path: Path) -> None:
    """Draw the frames per second of every case that measures them."""
    shown = {
        name: case for name, case in cases.items() if case["measure"] == "rate" and not name.startswith("scaling-")
    }
    if not shown:
        return
    heights = [len(case["contenders"]) for case in shown.values()]
    figure = Figure(figsize=(9, 0.28 * sum(heights) + 0.9 * len(heights)), layout="constrained")
    for axes, case in zip(np.ravel(figure.subplots(len(shown), 1, height_ratios=heights)), shown.values(), strict=True):
        own = {name: each["frames/s"] for name, each in case["contenders"].items() if each.get("frames/s")}
        rates = [median(each) for each in own.values()]
        colours = ["#1f6f8b" if name.startswith("rollfleet") else "#b9c0c6" for name in own]
        axes.barh([NAMES[name].replace("`", "") for name in own], rates, color=colours)
        axes.bar_label(axes.containers[0], [f"{value:,.0f}" for value in rates], padding=3, fontsize=8)
        axes.set_title(f"{case['title']}: frames/s", fontsize=10, loc="left")
        axes.invert_yaxis()
        axes.margins(x=0.12)
        axes.tick_params(labelsize=8)
        axes.spines[["top", "right"]].set_visible(False)
    save(figure, path)
