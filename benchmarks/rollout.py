"""Frames per second of `Rollout` beside the shortest loop by hand, with the same policy.

The hand-written loop over `SyncVectorEnv` records observation, action, log-probability, value, reward and flags into
preallocated memory; it has no trajectory ids, no returns, no final observations, and counts reset steps as frames.
Rounds alternate between the two; medians are printed. Run: `python benchmarks/rollout.py [--quick]`.
"""

import argparse
import time
from statistics import median

import gymnasium
import numpy as np
import torch
from gymnasium.vector import SyncVectorEnv

from rollfleet.envs.factory import make_env
from rollfleet.envs.spaces import supported
from rollfleet.policies.actor_critic import ActorCritic
from rollfleet.rollout.rollout import Rollout
from rollfleet.rollout.seeding import Seeds
from rollfleet.rollout.trajectory_ids import TrajectoryIds
from rollfleet_api.job import EnvSpec

STEPS = 128


class ByHand:
    """The loop to compare with."""

    def __init__(self, env_id: str, num_envs: int, policy: ActorCritic) -> None:
        """Reset the environments and allocate."""
        self.env = SyncVectorEnv([lambda: gymnasium.make(env_id, disable_env_checker=True)] * num_envs)
        self.policy = policy
        self.current, _ = self.env.reset(seed=0)
        action_space, lead = self.env.single_action_space, (num_envs, STEPS)
        self.observation = np.zeros((*lead, *self.current.shape[1:]), self.current.dtype)
        self.action = np.zeros((*lead, *(action_space.shape or ())), action_space.dtype)
        self.log_prob, self.reward = np.zeros(lead, np.float32), np.zeros(lead, np.float32)
        self.value = np.zeros((*lead, 1), np.float32)
        self.terminated, self.truncated = np.zeros(lead, np.bool_), np.zeros(lead, np.bool_)

    def collect(self) -> None:
        """Collect one batch."""
        with torch.inference_mode():
            for t in range(STEPS):
                out = self.policy(torch.from_numpy(self.current))
                action = out["action"].numpy()
                self.observation[:, t] = self.current
                self.action[:, t] = action
                self.log_prob[:, t] = out["action_log_prob"].numpy()
                self.value[:, t] = out["state_value"].numpy()
                self.current, self.reward[:, t], self.terminated[:, t], self.truncated[:, t], _ = self.env.step(action)


def compare(env_id: str, num_envs: int, *, rounds: int, round_s: float) -> None:
    """Print the medians of `rounds` rounds of `round_s` seconds each."""
    env = make_env(EnvSpec(id=env_id, num_envs=num_envs))
    torch.manual_seed(0)
    policy = ActorCritic(
        supported(env.single_observation_space, "observation", env_id),
        supported(env.single_action_space, "action", env_id),
    )
    seeds = Seeds.derive(0, 0, 0, num_envs)
    rollout = Rollout(env, policy, steps=STEPS, seeds=seeds, trajectories=TrajectoryIds(0, 0))
    contenders = {"rollout": lambda: rollout.collect(version=0), "hand": ByHand(env_id, num_envs, policy).collect}
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, collect in contenders.items():
            collect()
            frames, start = 0, time.perf_counter()
            while (elapsed := time.perf_counter() - start) < round_s:
                collect()
                frames += STEPS * num_envs
            rates[name].append(frames / elapsed)
    rollout.close()
    ours, hand = median(rates["rollout"]), median(rates["hand"])
    ratio = median(a / b for a, b in zip(rates["rollout"], rates["hand"], strict=True))
    print(f"{env_id:12} {num_envs:3} envs   rollout {ours:9,.0f}   by hand {hand:9,.0f} frames/s   ratio {ratio:.2f}")


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="seconds instead of a minute; figures vary more")
    parser.add_argument("--env", default="CartPole-v1", help="id of the environment")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for num_envs in (1, 8, 64):
        compare(options.env, num_envs, rounds=3 if options.quick else 9, round_s=0.3 if options.quick else 2.0)


if __name__ == "__main__":
    main()
