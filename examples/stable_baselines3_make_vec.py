"""Stable-Baselines3 trains its PPO on environments in servers. One line differs from its own examples.

`pip install stable-baselines3`, then `python examples/stable_baselines3_make_vec.py [FRAMES]`
"""

import sys

import gymnasium
import numpy as np
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.monitor import Monitor

from rollfleet.sb3 import ServedVecEnv


class Print(BaseCallback):
    """Prints the mean return of the last episodes after each rollout."""

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        returns = [episode["r"] for episode in self.model.ep_info_buffer or ()]
        print(f"{self.num_timesteps:7,} frames  mean return {np.mean(returns or [0.0]):.1f}")


def main(total_timesteps: int) -> None:
    """Train for this many frames."""
    torch.set_num_threads(1)  # for networks this small, threads cost more than they gain
    # Instead of SubprocVecEnv([...] * 8):
    envs = ServedVecEnv([lambda: Monitor(gymnasium.make("CartPole-v1"))] * 8, workers=2)
    model = PPO("MlpPolicy", envs, 1e-3, 128, 256, gamma=0.98, gae_lambda=0.9, seed=1, device="cpu")
    model.learn(total_timesteps, callback=Print())
    envs.close()


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else 100_000)
