"""The actor of examples/pendulum: workers and learner build it from this file."""

from math import log, prod
from typing import Any

import gymnasium
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rollfleet.exploration import Exploration, exploration

HIDDEN = 64
LOG_STD_MIN, LOG_STD_MAX = -5.0, 2.0


class Actor(nn.Module):
    """A normal distribution whose mean and standard deviation depend on the observation, then tanh, then the bounds."""

    low: Tensor
    high: Tensor

    def __init__(self, observation_space: gymnasium.Space[Any], action_space: gymnasium.Space[Any]) -> None:
        super().__init__()
        assert isinstance(observation_space, gymnasium.spaces.Box)
        assert isinstance(action_space, gymnasium.spaces.Box)
        self.register_buffer("low", torch.as_tensor(action_space.low))
        self.register_buffer("high", torch.as_tensor(action_space.high))
        self.body = nn.Sequential(
            nn.Linear(prod(observation_space.shape), HIDDEN),
            nn.ReLU(),
            nn.Linear(HIDDEN, HIDDEN),
            nn.ReLU(),
            nn.Linear(HIDDEN, 2 * prod(action_space.shape)),
        )

    def forward(self, observation: Tensor) -> dict[str, Tensor]:
        """Act for a worker: sample actions [envs, n], or without exploration take the mean."""
        if exploration() is Exploration.RANDOM:
            return {"action": self.sample(observation)[0]}
        return {"action": self._bounded(self._distribution(observation)[0].tanh())}

    def sample(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        """Sample differentiable actions [..., n] and their log-probabilities [...], both float32."""
        mean, log_std = self._distribution(observation)
        noise = torch.randn_like(mean)
        drawn = mean + log_std.exp() * noise
        # The density of the action within (-1, 1) is the normal density divided by the slope of tanh. This form keeps
        # its precision when the slope is nearly 0.
        log_slope = 2.0 * (log(2.0) - drawn - F.softplus(-2.0 * drawn))
        log_prob = -0.5 * noise.square() - log_std - 0.5 * log(2.0 * torch.pi) - log_slope
        return self._bounded(drawn.tanh()), log_prob.sum(-1)

    def _distribution(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = self.body(observation).chunk(2, -1)
        return mean, log_std.clamp(LOG_STD_MIN, LOG_STD_MAX)

    def _bounded(self, action: Tensor) -> Tensor:
        return self.low + 0.5 * (action + 1.0) * (self.high - self.low)


def make(observation_space: gymnasium.Space[Any], action_space: gymnasium.Space[Any]) -> Actor:
    """Build the actor; the job's `policy.entrypoint`."""
    return Actor(observation_space, action_space)
