"""The time of a step by its parts, in one process: `python -P benchmarks/step_costs.py [--quick]`.

CartPole, the policy of `peers.py` in plain torch and the built-in `mlp`. Microseconds of one step of all environments,
by timers around a collector's calls; each timer costs some 0.2 µs itself. Figures are the fastest of several rounds.
"""

import argparse
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parent / "contenders"))

import torch

import rollfleet
from rollfleet.envs.serial import SerialVectorEnv
from rollfleet.policies.actor import Actor
from rollfleet.rollout.lockstep import LockstepStepper
from rollfleet.rollout.rollout import Rollout
from rollfleet_here import built_in
from work import Plain, Work

TIMED = ((Actor, "_call"), (Actor, "__call__"), (Actor, "first"), (Actor, "rest"), (SerialVectorEnv, "step"))
OUTER = ((SerialVectorEnv, "reset"), (LockstepStepper, "_end"), (LockstepStepper, "collect"), (Rollout, "collect"))


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few batches")
    rounds, batches = (2, 3) if parser.parse_args().quick else (10, 20)
    torch.set_num_threads(1)  # as in `peers.py`
    spent: Counter[str] = Counter()
    for owner, name in (*TIMED, *OUTER):
        setattr(owner, name, timed(getattr(owner, name), f"{owner.__name__}.{name}", spent))
    print("| µs of a step | " + " | ".join(COLUMNS) + " |\n|---|" + "---|" * len(COLUMNS))
    for name, policy in (("any torch policy", Plain), ("`mlp`", built_in)):
        for num_envs in (1, 8, 64):
            work = Work(num_envs=num_envs, critic=True)
            figures = quickest(work, policy(work), spent, rounds=rounds, batches=batches)
            print(f"| {name}, {num_envs} | " + " | ".join(f"{figure:.1f}" for figure in figures) + " |", flush=True)


COLUMNS = (
    *("all", "the policy", "to and from its arrays", "environments", "ends of episodes", "storing"),
    *("a fragment", "a batch"),
)


def quickest(work: Work, policy: Any, spent: Counter[str], *, rounds: int, batches: int) -> list[float]:
    """Return the values of `COLUMNS`."""
    found: list[list[float]] = []
    with rollfleet.Collector(
        work.env, policy, num_envs=work.num_envs, frames_per_batch=work.frames, workers=0
    ) as collector:
        for _ in range(5):
            next(collector)
        for _ in range(rounds):
            spent.clear()
            began = time.perf_counter_ns()
            for _ in range(batches):
                next(collector)
            spent["all"] = time.perf_counter_ns() - began
            found.append([each / (1e3 * batches * work.steps) for each in parts(spent)])
    return min(found)


def parts(spent: Counter[str]) -> tuple[int, ...]:
    """Subtract the time of inner calls from the outer ones."""
    actor = spent["Actor.__call__"] + spent["Actor.first"] + spent["Actor.rest"]
    # The fast form of a policy has no call of its own: its work counts as the policy.
    policy = spent["Actor._call"] if spent["Actor._call"] > actor / 2 else actor
    reset, ends, stepper = (
        spent["SerialVectorEnv.reset"],
        spent["LockstepStepper._end"],
        spent["LockstepStepper.collect"],
    )
    environments = spent["SerialVectorEnv.step"] + reset
    inside = actor - spent["Actor.first"] + spent["SerialVectorEnv.step"] + ends
    return (
        *(spent["all"], policy, actor - policy, environments, ends - reset, stepper - inside),
        *(spent["Rollout.collect"] - stepper - spent["Actor.first"], spent["all"] - spent["Rollout.collect"]),
    )


def timed(function: Any, name: str, spent: Counter[str]) -> Any:
    """Wrap a function to add up its time."""

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        began = time.perf_counter_ns()
        try:
            return function(*args, **kwargs)
        finally:
            spent[name] += time.perf_counter_ns() - began

    return wrapper


if __name__ == "__main__":
    main()
