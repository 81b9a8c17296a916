"""Stable-Baselines3: PPO's collection of rollouts, actor and critic."""

from collections.abc import Iterator
from contextlib import contextmanager

from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import DummyVecEnv

from work import Running, Work, make


@contextmanager
def rollouts(work: Work) -> Iterator[Running]:
    """`PPO.collect_rollouts` over a DummyVecEnv."""
    venv = DummyVecEnv([lambda: make(work.env)] * work.num_envs)
    model = PPO("MlpPolicy", venv, n_steps=work.steps, device="cpu", policy_kwargs={"net_arch": list(work.hidden)})
    _, callback = model._setup_learn(total_timesteps=1 << 60)

    def next_batch() -> tuple[object, int]:
        model.collect_rollouts(venv, callback, model.rollout_buffer, n_rollout_steps=work.steps)
        return model.rollout_buffer, work.frames

    yield Running(next_batch=next_batch)
    venv.close()
