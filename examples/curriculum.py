"""An automatic curriculum: rooms become larger as the policy finds its way through them.

`pip install minigrid && python examples/curriculum.py`, with `--fixed` for the largest room from the start.
"""

import argparse
from collections import deque
from typing import Any

import gymnasium
import minigrid  # noqa: F401  # registers its environments
import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor

import rollfleet

GAMMA, LAMBDA, CLIP, EPOCHS, MINIBATCH_FRAMES, ENTROPY = 0.99, 0.95, 0.2, 4, 256, 0.01
ACTIONS = 0, 1, 2, 3, 5  # left, right, forward, pick up, toggle
SMALLEST, LARGEST = 5, 8
SUCCEEDS, EPISODES = 0.8, 100
"""The share of successes, in so many episodes in rooms of one size, after which rooms become larger."""


class Room(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A room with a key, a locked door and a goal behind it. `reset(options={"size": 5})` makes a smaller one."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        """Declare what is seen: whether each of 7 x 7 cells is a wall, a door, an open one, the key, or the goal."""
        super().__init__(env)
        self.observation_space = gymnasium.spaces.Box(0.0, 1.0, (5 * 7 * 7,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(len(ACTIONS))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        world: Any = self.unwrapped
        world.width = world.height = (options or {}).get("size", LARGEST)
        _, info = self.env.reset(seed=seed)
        return self._seen(), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Take a step; the last info of an episode says whether it succeeded."""
        _, reward, terminated, truncated, _ = self.env.step(ACTIONS[action])
        return self._seen(), reward, terminated, truncated, {"success": terminated}

    def _seen(self) -> Any:
        world: Any = self.unwrapped
        kind, _, state = np.moveaxis(world.gen_obs()["image"], -1, 0)
        return np.stack(
            [kind == 2, kind == 4, (kind == 4) & (state == 0), kind == 5, kind == 8], dtype=np.float32
        ).ravel()


def make_env() -> gymnasium.Env[Any, Any]:
    """Make one environment."""
    return Room(gymnasium.make("MiniGrid-DoorKey-8x8-v0", max_steps=250, disable_env_checker=True))


def advantages(batch: TensorDict, value: Tensor, following: Tensor) -> Tensor:
    """Compute generalised advantage estimates, float32 `[envs, T]`."""
    delta = batch["next", "reward"][..., 0] + GAMMA * following * ~batch["next", "terminated"][..., 0] - value
    keep, result = GAMMA * LAMBDA * ~batch["next", "done"][..., 0], torch.empty_like(delta)
    last = torch.zeros_like(delta[:, 0])
    for t in reversed(range(delta.shape[1])):
        last = result[:, t] = delta[:, t] + keep[:, t] * last
    return result


def train(policy: rollfleet.ActorCritic, optimizer: torch.optim.Optimizer, batch: TensorDict) -> None:
    """Make one PPO update on one batch, TensorDict `[envs, T]`."""
    # The rest is padding: a worker that leaves in the middle of a batch sends fewer frames than the others.
    mask = batch.get(("collector", "mask"), torch.ones(batch.shape, dtype=torch.bool))
    with torch.no_grad():
        value = policy.value(batch["observation"])[..., 0] * mask
        advantage = advantages(batch, value, policy.value(batch["next", "observation"])[..., 0] * mask)
        target, advantage = (advantage + value)[mask], advantage[mask]
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    frames = batch.select("observation", "action", "action_log_prob")[mask]
    for _ in range(EPOCHS):
        for index in torch.randperm(len(target)).split(MINIBATCH_FRAMES):
            some = frames[index]
            log_prob, entropy, value = policy.evaluate(some["observation"], some["action"])
            ratio = (log_prob - some["action_log_prob"]).exp()
            gain = torch.min(ratio * advantage[index], ratio.clamp(1 - CLIP, 1 + CLIP) * advantage[index])
            loss = (value[..., 0] - target[index]).square().mean() / 2 - gain.mean() - ENTROPY * entropy.mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def main(frames: int, workers: int, seed: int, *, fixed: bool) -> None:
    """Train a policy with PPO; evaluations are in the largest room."""
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    env = make_env()
    policy = rollfleet.ActorCritic(env.observation_space, env.action_space)
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-3)
    size, successes = LARGEST if fixed else SMALLEST, deque[bool](maxlen=EPISODES)
    with rollfleet.Collector(
        make_env,
        policy,
        num_envs=16,
        frames_per_batch=2048,
        total_frames=frames,
        workers=workers,
        seed=seed,
        evaluation={"every": 5, "episodes": 64, "exploration": "random"},
    ) as collector:
        collector.set_env({"size": size})
        for batch in collector:
            train(policy, optimizer, batch)
            ended = batch["next", "done"][..., 0] & (batch["collector", "env_version"] == collector.env_version)
            successes.extend(batch["next", "terminated"][..., 0][ended].tolist())
            if size < LARGEST and len(successes) == EPISODES and sum(successes) >= SUCCEEDS * EPISODES:
                size += 1
                collector.set_env({"size": size})
                successes.clear()
            if collector.batches % 5 == 0 and collector.evaluations:
                mean_return = collector.evaluations[-1].mean_return
                print(f"{collector.frames:8,} frames  size {size}  mean return in the largest room {mean_return:.2f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--frames", type=int, default=102_400)
    parser.add_argument("--workers", type=int, default=0, help="0: collect in this process")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--fixed", action="store_true", help="the largest room from the start")
    arguments = parser.parse_args()
    main(arguments.frames, arguments.workers, arguments.seed, fixed=arguments.fixed)
