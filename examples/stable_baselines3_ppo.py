"""Stable-Baselines3 trains its PPO on batches of Rollfleet's workers, which run its policy.

`pip install stable-baselines3`, then `python examples/stable_baselines3_ppo.py [FRAMES]`
"""

import sys

import torch
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.logger import Logger
from tensordict import TensorDict
from torch import Tensor, nn

import rollfleet

NUM_WORKERS, NUM_ENVS, NUM_STEPS = 2, 4, 128


class Actor(nn.Module):
    """The policy of Stable-Baselines3, with Rollfleet's names for its outputs."""

    def __init__(self, policy: nn.Module) -> None:
        super().__init__()
        self.policy = policy

    def forward(self, observation: Tensor) -> dict[str, Tensor]:
        """Act for observations [envs, 4] on a worker. The batch has these outputs."""
        action, value, log_prob = self.policy(observation)
        return {"action": action, "state_value": value, "action_log_prob": log_prob}


def fill_buffer(model: PPO, batch: TensorDict) -> None:
    """Copy a batch, TensorDict `[envs, T]`, into the model's rollout buffer, and compute the advantages."""
    following = batch["next", "observation"]
    truncated = (batch["next", "truncated"] & ~batch["next", "terminated"])[..., 0]
    done, reward = batch["next", "done"][..., 0], batch["next", "reward"][..., 0]
    with torch.no_grad():
        next_value = model.policy.predict_values(following.flatten(0, 1)).view(done.shape)
    # As Stable-Baselines3 does: a truncated episode would have continued, so its value goes into the reward.
    reward = (reward + model.gamma * next_value * truncated).numpy()
    observation, action, ends = batch["observation"].numpy(), batch["action"].numpy(), done.numpy()
    model.rollout_buffer.reset()
    for t in range(NUM_STEPS):
        starts = ends[:, t - 1]  # of the first step, it uses none
        value, log_prob = batch["state_value"][:, t], batch["action_log_prob"][:, t]
        model.rollout_buffer.add(observation[:, t], action[:, t], reward[:, t], starts, value, log_prob)
    model.rollout_buffer.compute_returns_and_advantage(next_value[:, -1], ends[:, -1])


def main(total_timesteps: int) -> None:
    """Train for this many frames."""
    torch.set_num_threads(1)  # for networks this small, threads cost more than they gain
    spaces = make_vec_env("CartPole-v1", NUM_WORKERS * NUM_ENVS)  # is never stepped
    model = PPO("MlpPolicy", spaces, 1e-3, NUM_STEPS, 256, gamma=0.98, gae_lambda=0.9, seed=1, device="cpu")
    model.set_logger(Logger(None, []))
    collector = rollfleet.Collector(
        "CartPole-v1",
        Actor(model.policy),
        workers=NUM_WORKERS,
        num_envs=NUM_ENVS,
        frames_per_batch=NUM_WORKERS * NUM_ENVS * NUM_STEPS,
        total_frames=total_timesteps,
    )
    with collector:
        for batch in collector:
            fill_buffer(model, batch)
            model.train()
            print(f"{collector.frames:7,} frames  mean return {collector.mean_return or 0:.1f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else 100_000)
