"""Frames per second of worker processes beside the shortest program by hand for the same task.

By hand: each worker steps its environments with the same policy and writes frames into one of two buffers that it
shares with the learner (`torch.Tensor.share_memory_`). Pipes signal full and free buffers. The learner copies its
parameters into shared memory before it requests a batch, and the batch out of it. The program records observation,
action, log-probability, value, reward and flags. It has no final observations, trajectory ids, returns or versions,
and detects no errors. In rows with `next`, its learner also builds the next observations, which Rollfleet's batches
always have, but not the true last ones of episodes.

The two are measured in turn, while the workers of the other wait for their learner. Run:
`python benchmarks/processes.py [--quick]`.
"""

import argparse
import multiprocessing
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection, wait
from statistics import median
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.vector import SyncVectorEnv
from torch import Tensor, nn

from rollfleet import ActorCritic, Collector

WORKERS, ENVS, STEPS = 2, 8, 128


class Pixels(gymnasium.Env[Any, Any]):
    """An environment with Atari's observations at no cost: uint8 84 x 84 x 4; episodes of 500 frames."""

    observation_space = gymnasium.spaces.Box(0, 255, (84, 84, 4), np.uint8)
    action_space = gymnasium.spaces.Discrete(6)

    def __init__(self) -> None:
        self._frames = np.random.default_rng(0).integers(0, 255, (8, 84, 84, 4), np.uint8)
        self._step = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode."""
        super().reset(seed=seed)
        self._step = 0
        return self._frames[0], {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Return the next of eight frames."""
        self._step += 1
        return self._frames[self._step % 8], 1.0, self._step == 500, False, {}


class Thumbnail(nn.Module):
    """A small policy for pixels: it reads every sixth pixel of the newest frame."""

    def __init__(self) -> None:
        super().__init__()
        box = gymnasium.spaces.Box(0, 1, (14 * 14,))
        self.inner = ActorCritic(box, gymnasium.spaces.Discrete(6))

    def forward(self, observation: Tensor) -> Any:
        """See `ActorCritic`."""
        return self.inner(observation[:, ::6, ::6, 0].flatten(1).float() / 255)


def _cartpole() -> gymnasium.Env[Any, Any]:
    return gymnasium.make("CartPole-v1", disable_env_checker=True)


def _policy_of_cartpole() -> nn.Module:
    env = _cartpole()
    return ActorCritic(env.observation_space, env.action_space)


CASES: dict[str, tuple[Callable[[], gymnasium.Env[Any, Any]], Callable[[], nn.Module]]] = {
    "CartPole": (_cartpole, _policy_of_cartpole),
    "pixels": (Pixels, Thumbnail),
}


def _work(case: str, places: list[dict[str, Tensor]], weights: list[Tensor], pipe: Connection) -> None:
    """Run a worker by hand."""
    torch.set_num_threads(1)
    make_env, make_policy = CASES[case]
    env, policy = SyncVectorEnv([make_env] * ENVS), make_policy()
    current, _ = env.reset(seed=0)
    views = [{key: value.numpy() for key, value in place.items()} for place in places]
    parameters = [parameter.data for parameter in policy.state_dict().values()]
    with torch.inference_mode():
        while (index := pipe.recv()) is not None:
            for parameter, weight in zip(parameters, weights, strict=True):
                parameter.copy_(weight)
            place = views[index]
            for t in range(STEPS):
                out = policy(torch.from_numpy(current))
                action = out["action"].numpy()
                place["observation"][:, t] = current
                place["action"][:, t] = action
                place["log_prob"][:, t] = out["action_log_prob"].numpy()
                place["value"][:, t] = out["state_value"].numpy()
                current, place["reward"][:, t], place["terminated"][:, t], place["truncated"][:, t], _ = env.step(
                    action
                )
            pipe.send(index)


@contextmanager
def by_hand(case: str, *, following: bool) -> Iterator[Callable[[], object]]:
    """Provide a function that collects one batch of the first ready worker."""
    make_env, make_policy = CASES[case]
    space, policy = make_env().observation_space, make_policy()
    lead = (ENVS, STEPS)

    def place() -> dict[str, Tensor]:
        return {
            "observation": torch.from_numpy(np.zeros((*lead, *(space.shape or ())), space.dtype)).share_memory_(),
            "action": torch.zeros(lead, dtype=torch.int64).share_memory_(),
            "value": torch.zeros(*lead, 1).share_memory_(),
            **{name: torch.zeros(lead).share_memory_() for name in ("log_prob", "reward")},
            **{name: torch.zeros(lead, dtype=torch.bool).share_memory_() for name in ("terminated", "truncated")},
        }

    weights = [value.clone().share_memory_() for value in policy.state_dict().values()]
    all_places = [[place(), place()] for _ in range(WORKERS)]
    context = multiprocessing.get_context("spawn")
    pipes, processes = [], []
    for places in all_places:
        ours, theirs = context.Pipe()
        process = context.Process(target=_work, args=(case, places, weights, theirs), daemon=True)
        process.start()
        processes.append(process)
        pipes.append(ours)
        ours.send(0)
        ours.send(1)

    def collect() -> object:
        for weight, value in zip(weights, policy.state_dict().values(), strict=True):
            weight.copy_(value)
        pipe = wait(pipes)[0]
        assert isinstance(pipe, Connection)
        index = pipe.recv()
        batch = {key: value.clone() for key, value in all_places[pipes.index(pipe)][index].items()}
        pipe.send(index)
        if following:
            batch["next"] = torch.cat([batch["observation"][:, 1:], batch["observation"][:, -1:]], 1)
        return batch

    try:
        yield collect
    finally:
        for pipe in pipes:
            pipe.send(None)
        for process in processes:
            process.kill()
            process.join()


@contextmanager
def by_rollfleet(case: str) -> Iterator[Callable[[], object]]:
    """Provide the same by `Collector`."""
    make_env, make_policy = CASES[case]
    options: dict[str, Any] = {"num_envs": ENVS, "frames_per_batch": ENVS * STEPS, "workers": WORKERS, "mode": "async"}
    with Collector(make_env, make_policy(), **options) as collector:
        yield lambda: next(collector)


def compare(case: str, *, rounds: int, round_s: float) -> None:
    """Print the medians of the rounds."""
    rates: dict[str, list[float]] = {"rollfleet": [], "hand": [], "hand, next": []}
    with ExitStack() as stack:
        began = time.perf_counter()
        ours = stack.enter_context(by_rollfleet(case))
        ours()
        first_s = time.perf_counter() - began
        contenders = {
            "rollfleet": ours,
            "hand": stack.enter_context(by_hand(case, following=False)),
            "hand, next": stack.enter_context(by_hand(case, following=True)),
        }
        for _ in range(rounds):
            for name, collect in contenders.items():
                for _ in range(2 * 2 * WORKERS):  # batches that were collected during the other's turn
                    collect()
                batches, start = 0, time.perf_counter()
                while (elapsed := time.perf_counter() - start) < round_s:
                    collect()
                    batches += 1
                rates[name].append(batches * ENVS * STEPS / elapsed)
    cells = [f"{median(rates['rollfleet']):,.0f}"]
    for other in ("hand", "hand, next"):
        ratio = median(a / b for a, b in zip(rates["rollfleet"], rates[other], strict=True))
        cells += [f"{median(rates[other]):,.0f}", f"{ratio:.2f}"]
    print(f"| {case} | {' | '.join(cells)} | {first_s:.1f} |", flush=True)


def main() -> None:
    """Run and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="seconds instead of a minute; figures vary more")
    parser.add_argument("--case", choices=CASES, action="append")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print("| case | Rollfleet, frames/s | by hand | ratio | by hand, next | ratio | first batch after, s |")
    print("|---|---|---|---|---|---|---|")
    for case in options.case or CASES:
        compare(case, rounds=3 if options.quick else 9, round_s=1.0 if options.quick else 3.0)


if __name__ == "__main__":
    main()
