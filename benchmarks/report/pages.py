"""The short tables of the docs' pages: medians, of the cases that answer a reader's question."""

from collections.abc import Iterable, Sequence
from statistics import median

from curves import curves
from tables import NAMES, Cases, values

TWO = "two-processes"
RATE = "frames/s"
WHERE = ("rollfleet_two.processes_async_mlp", "rollfleet_here.servers", "rollfleet_here.hosts")
QUESTIONS = (
    (
        "How fast do two worker processes collect CartPole, with new weights after each batch?",
        *(TWO, RATE, "rollfleet_two.processes_async", "torchrl_two.async_vector"),
    ),
    (
        "How fast are two workers over NATS, on the same task?",
        *(TWO, RATE, "rollfleet_two.nats_async", "ray_two.async_vector", "rllib_two.async_"),
    ),
    (
        "How fast is one process with 8 CartPole environments and a torch policy?",
        *("cartpole-8", RATE, "rollfleet_here.plain_torch", "sb3_here.rollouts", "by_hand.list_torch"),
    ),
    (
        "How long do two workers take from nothing to the first batch?",
        *("start", "start s", "rollfleet_two.processes_async", "torchrl_two.async_serial"),
    ),
)
"""A question, its case and figure, we, and for comparison others."""


def figures(cases: Cases) -> str:
    """Return what docs/benchmarks.md begins with."""
    rows = []
    for question, case, figure, ours, *others in QUESTIONS:
        unit = figure.rpartition(" ")[2]
        beside = "; ".join(f"{NAMES[each]}: {_cell(cases, case, each, figure)}" for each in others)
        rows.append((question, f"{_cell(cases, case, ours, figure)} {unit}", beside))
    return _table(("Question", "Rollfleet", "For comparison"), rows)


def two_workers(cases: Cases) -> str:
    """Return the rates of all contenders with the same policy, the fastest first."""
    rates = {
        name: median(rounds)
        for name in cases.get(TWO, {}).get("contenders", ())
        if (rounds := values(cases, TWO, name, RATE)) and not name.endswith(("_mlp", "numpy_policy"))
    }
    ranked = sorted(rates, key=rates.__getitem__, reverse=True)
    rows = [(NAMES[each], f"{rates[each]:,.0f}", _cell(cases, TWO, each, "worker MB")) for each in ranked]
    return _table(("", "frames/s", "MB of a worker"), rows)


def scaling(cases: Cases) -> str:
    """Return three points of each curve over NATS."""
    rows = []
    for axis, points, text in (
        ("envs", (1, 8, 64), "1, 8, 64 environments"),
        ("bytes", (64, 4096, 65536), "observations of 64, 4,096, 65,536 bytes (8 environments)"),
        ("parameters", (1e4, 1e6, 1e7), "10,000, 1,000,000, 10,000,000 parameters after each batch (two workers)"),
    ):
        curve = curves(cases, axis).get("rollfleet_two.nats_async", {})
        rows.append((text, ", ".join(f"{curve[at]:,.0f}" for at in points if at in curve)))
    return _table(("One worker over NATS, mode async, CartPole", "frames/s"), rows)


def where_to_act(cases: Cases) -> str:
    """Return the rates of workers that act, and of one policy for servers of environments."""
    rows = []
    for name, case in cases.items():
        if name.startswith("where-to-act-") and (rounds := values(cases, name, WHERE[0], RATE)):
            wait_us, width = int(case["work"]["env"].partition("slow-")[2] or 0), case["work"]["hidden"][0]
            step_ms = 1e3 * case["work"]["workers"] * case["work"]["num_envs"] / median(rounds)
            rates = (_cell(cases, name, each, RATE) for each in WHERE)
            wait = f"{wait_us / 1e3:g} ms" if wait_us else "0"
            rows.append((wait, f"{width:,} x {width:,}", f"{step_ms:.2g} ms", *rates))
    heads = ("a step waits", "policy", "a worker's step", "workers act", "one place, shared memory", "over TLS")
    return _table(heads, rows)


def _cell(cases: Cases, case: str, contender: str, figure: str) -> str:
    """Return the median; empty if it was not measured."""
    rounds = values(cases, case, contender, figure)
    return f"{median(rounds):,.{2 if median(rounds) < 100 else 0}f}" if rounds else ""


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = (heads, ["---"] * len(heads), *rows)
    return "\n".join(f"| {' | '.join(cells)} |".replace("|  |", "| |") for cells in lines)
