"""What the age of its frames does to PPO: `python -P benchmarks/lag_curve.py [--quick] [--picture FILE]`.

The learner of `examples/anywhere.py` on CartPole-v1, with two workers in mode async. Each `max_lag` gets the longest
queue that it allows, so the learner trains on batches that are about as old. All runs train on the same number of
frames: batches that are dropped for their age are collected again.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean

sys.path.append(str(Path(__file__).parents[1] / "examples"))

import gymnasium
import torch
from anywhere import train

import rollfleet

LAGS = (0, 2, 8, 32)
WORKERS, NUM_ENVS, STEPS = 2, 4, 64
BATCH_FRAMES = NUM_ENVS * STEPS
GOAL = 100.0  # of at most 500; later, the seeds differ more than the lags


@dataclass
class Run:
    """One training.

    Attributes:
        returns: The mean return of the last 100 episodes, after each trained batch.
        lags: The versions by which each trained batch was behind the learner.
        dropped: The fraction of batches that were too old.
    """

    returns: list[float] = field(default_factory=list)
    lags: list[int] = field(default_factory=list)
    dropped: float = 0.0


def main() -> None:
    """Print a table, and draw the curves."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two short runs")
    parser.add_argument("--picture", type=Path, help="draw the curves into this file")
    arguments = parser.parse_args()
    lags, seeds, frames = (LAGS[::3], (0,), 2_048) if arguments.quick else (LAGS, (0, 1, 2), 61_440)
    runs: dict[int, list[Run]] = {}
    print(f"| `maxLag` | lag of a trained batch | dropped | frames to a mean return of {GOAL:.0f}, by seed |")
    print("|---|---|---|---|")
    for max_lag in lags:
        runs[max_lag] = [trained(max_lag, seed, frames) for seed in seeds]
        lag = mean(each for run in runs[max_lag] for each in run.lags)
        dropped = mean(run.dropped for run in runs[max_lag])
        print(f"| {max_lag} | {lag:.1f} | {dropped:.0%} | {', '.join(map(reached, runs[max_lag]))} |", flush=True)
    if arguments.picture:
        draw(runs, arguments.picture)


def trained(max_lag: int, seed: int, frames: int) -> Run:
    """Train a new policy on this many frames."""
    torch.set_num_threads(1)  # for networks this small, threads cost more than they gain
    torch.manual_seed(seed)
    env = gymnasium.make("CartPole-v1")
    policy = rollfleet.ActorCritic(env.observation_space, env.action_space)
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-3)
    run = Run()
    with rollfleet.Collector(
        "CartPole-v1",
        policy,
        workers=WORKERS,
        num_envs=NUM_ENVS,
        frames_per_batch=BATCH_FRAMES,
        total_frames=frames,
        mode="async",
        processes=rollfleet.Processes(max_lag=max_lag, max_batches_ahead=max(1, max_lag // WORKERS)),
        seed=seed,
    ) as collector:
        for batch in collector:
            run.lags.append(collector.version - int(batch["collector", "policy_version"].min()))
            train(policy, optimizer, batch)
            run.returns.append(collector.mean_return or 0.0)
        run.dropped = collector.stats().stale / (collector.stats().stale + collector.batches)
    return run


def reached(run: Run) -> str:
    """Return the frames after which a run had the mean return `GOAL`."""
    return next((f"{BATCH_FRAMES * (1 + i):,}" for i, value in enumerate(run.returns) if value >= GOAL), "never")


def draw(runs: Mapping[int, Sequence[Run]], picture: Path) -> None:
    """Draw the mean of the seeds, and the range between them."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.add_subplot()
    for max_lag, same in runs.items():
        seeds = list(zip(*(run.returns for run in same), strict=True))
        frames = [BATCH_FRAMES * (1 + number) for number in range(len(seeds))]
        (line,) = axes.plot(frames, [mean(values) for values in seeds], label=f"maxLag {max_lag}", linewidth=2)
        axes.fill_between(frames, [min(v) for v in seeds], [max(v) for v in seeds], alpha=0.15, color=line.get_color())
    axes.set(xlabel="frames trained on", ylabel="mean return of the last 100 episodes", title="PPO on CartPole-v1")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.grid(alpha=0.3)
    axes.margins(x=0)
    axes.legend()
    figure.savefig(picture)


if __name__ == "__main__":
    main()
