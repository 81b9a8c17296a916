"""skrl trains its PPO on environments in servers. One line differs from its own examples.

`pip install skrl`, then `python examples/skrl_make_vec.py [FRAMES]`
"""

import sys
from typing import Any

import numpy as np
import torch
from gymnasium.wrappers.vector import RecordEpisodeStatistics
from skrl import logger
from skrl.agents.torch.ppo import PPO, PPO_CFG
from skrl.envs.wrappers.torch import wrap_env
from skrl.memories.torch import RandomMemory
from skrl.models.torch import CategoricalMixin, DeterministicMixin, Model
from skrl.trainers.torch import SequentialTrainer
from skrl.utils import set_seed
from torch import Tensor, nn

import rollfleet

NUM_ENVS, NUM_STEPS = 8, 128


def mlp(outputs: int) -> nn.Sequential:
    """Make a network for the four numbers that CartPole observes."""
    return nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs))


class Policy(CategoricalMixin, Model):
    """The actor, in skrl's form."""

    def __init__(self, **spaces: Any) -> None:
        Model.__init__(self, **spaces)
        CategoricalMixin.__init__(self)
        self.network = mlp(2)

    def compute(self, inputs: dict[str, Any], role: str = "") -> tuple[Tensor, dict[str, Any]]:
        """Return logits of the actions."""
        return self.network(inputs["observations"]), {}


class Value(DeterministicMixin, Model):
    """The critic, in skrl's form."""

    def __init__(self, **spaces: Any) -> None:
        Model.__init__(self, **spaces)
        DeterministicMixin.__init__(self)
        self.network = mlp(1)

    def compute(self, inputs: dict[str, Any], role: str = "") -> tuple[Tensor, dict[str, Any]]:
        """Return values."""
        return self.network(inputs["observations"]), {}


class PrintingPPO(PPO):
    """Prints the mean return of the last episodes after each update."""

    def __init__(self, recorded: RecordEpisodeStatistics, **settings: Any) -> None:
        super().__init__(**settings)
        self.recorded = recorded

    def update(self, *, timestep: int, timesteps: int) -> None:
        """Train on a rollout."""
        super().update(timestep=timestep, timesteps=timesteps)
        returns = self.recorded.return_queue or [0.0]
        print(f"{(timestep + 1) * NUM_ENVS:7,} frames  mean return {np.mean(returns):.1f}")


def main(total_timesteps: int) -> None:
    """Train for this many frames."""
    torch.set_num_threads(1)  # for networks this small, threads cost more than they gain
    logger.setLevel("WARNING")
    set_seed(1)
    # Instead of gymnasium.make_vec("CartPole-v1", NUM_ENVS, "async", ...):
    envs = rollfleet.make_vec("CartPole-v1", num_envs=NUM_ENVS, workers=2, autoreset_mode="SameStep")
    recorded = RecordEpisodeStatistics(envs)
    env = wrap_env(recorded)
    spaces = {"observation_space": env.observation_space, "action_space": env.action_space, "device": env.device}
    settings = PPO_CFG(
        rollouts=NUM_STEPS, mini_batches=4, discount_factor=0.98, gae_lambda=0.9, value_loss_scale=0.5, value_clip=0
    )
    settings.experiment.write_interval = settings.experiment.checkpoint_interval = 0
    agent = PrintingPPO(
        recorded,
        models={"policy": Policy(**spaces), "value": Value(**spaces)},
        memory=RandomMemory(memory_size=NUM_STEPS, num_envs=NUM_ENVS, device=env.device),
        cfg=settings,
        **spaces,
    )
    run = {"timesteps": total_timesteps // NUM_ENVS, "headless": True, "disable_progressbar": True}
    SequentialTrainer(env=env, agents=agent, cfg=run).train()
    env.close()


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else 100_000)
