"""RLlib's environment runner in this process: vectorized, with PPO's default module and connectors."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.env.single_agent_env_runner import SingleAgentEnvRunner

from work import Running, Work


def ppo(work: Work) -> PPOConfig:
    """Configure PPO's environment runners."""
    return (
        PPOConfig()
        .environment(work.env)
        .env_runners(
            num_env_runners=work.workers,
            num_envs_per_env_runner=work.num_envs,
            gym_env_vectorize_mode="sync",
            rollout_fragment_length=work.steps,
        )
        .rl_module(model_config=DefaultModelConfig(fcnet_hiddens=list(work.hidden), fcnet_activation="tanh"))
        .training(train_batch_size_per_learner=max(1, work.workers) * work.frames)
    )


def frames(episodes: Any) -> int:
    """Count the frames of pieces of episodes."""
    return sum(map(len, episodes))


@contextmanager
def runner(work: Work) -> Iterator[Running]:
    """`SingleAgentEnvRunner.sample`."""
    own = SingleAgentEnvRunner(config=ppo(work))

    def next_batch() -> tuple[Any, int]:
        episodes = own.sample(num_timesteps=work.frames)
        return episodes, frames(episodes)

    yield Running(next_batch=next_batch)
    own.stop()
