"""The policy of examples/dqn: workers and learner build it from this file."""

from math import prod
from typing import Any

import gymnasium
import torch
from torch import Tensor, nn

from rollfleet.exploration import Exploration, exploration

HIDDEN = 256


class QNetwork(nn.Module):
    """The value of each action. It acts epsilon-greedily, by an epsilon that is sent with the weights."""

    epsilon: Tensor

    def __init__(self, observation_space: gymnasium.Space[Any], action_space: gymnasium.Space[Any]) -> None:
        super().__init__()
        assert observation_space.shape is not None
        assert isinstance(action_space, gymnasium.spaces.Discrete)
        self.register_buffer("epsilon", torch.ones(()))
        self.values = nn.Sequential(
            nn.Linear(prod(observation_space.shape), HIDDEN),
            nn.ReLU(),
            nn.Linear(HIDDEN, HIDDEN),
            nn.ReLU(),
            nn.Linear(HIDDEN, int(action_space.n)),
        )

    def forward(self, observation: Tensor) -> Tensor:
        """Act for a worker: the best actions [envs], and with exploration some random ones."""
        values: Tensor = self.values(observation)
        best = values.argmax(-1)
        if exploration() is not Exploration.RANDOM:
            return best
        return torch.where(torch.rand(best.shape) < self.epsilon, torch.randint_like(best, values.shape[-1]), best)


def make(observation_space: gymnasium.Space[Any], action_space: gymnasium.Space[Any]) -> QNetwork:
    """Build the policy; the job's `policy.entrypoint`."""
    return QNetwork(observation_space, action_space)
