"""The policy of examples/halfcheetah: workers and learner build it from this file."""

from typing import Any

import gymnasium
import torch
from torch import Tensor, nn

import rollfleet

LIMIT = 10.0  # the networks' inputs are clipped at this many standard deviations from the mean


class NormalisedActorCritic(nn.Module):
    """The built-in actor-critic behind a normaliser of observations, whose statistics are buffers.

    So they are broadcast with the weights: every worker acts on the statistics that the learner trains with.
    """

    mean: Tensor
    variance: Tensor
    count: Tensor

    def __init__(self, observation_space: gymnasium.Space[Any], action_space: gymnasium.Space[Any]) -> None:
        super().__init__()
        self.actor_critic = rollfleet.ActorCritic(observation_space, action_space)
        assert observation_space.shape is not None
        self.register_buffer("mean", torch.zeros(observation_space.shape, dtype=torch.float64))
        self.register_buffer("variance", torch.ones(observation_space.shape, dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))

    def forward(self, observation: Tensor) -> dict[str, Tensor]:
        """Act on observations [envs, n]: `action`, `action_log_prob` and `state_value`."""
        outputs: dict[str, Tensor] = self.actor_critic(self.normalised(observation))
        return outputs

    def normalised(self, observation: Tensor) -> Tensor:
        """Normalise observations [..., n] for the networks; float32 [..., n]."""
        scaled = (observation - self.mean) * (self.variance + 1e-8).rsqrt()
        return scaled.clamp(-LIMIT, LIMIT).float()

    def learn_statistics(self, observation: Tensor) -> None:
        """Merge the mean and variance of observations [..., n] into those of all earlier ones (Chan et al., 1983)."""
        flat = observation.flatten(0, -2).double()
        variance, mean = torch.var_mean(flat, 0, correction=0)
        total, distance = self.count + len(flat), mean - self.mean
        self.variance.mul_(self.count).add_(variance * len(flat) + distance.square() * self.count * len(flat) / total)
        self.variance.div_(total)
        self.mean.add_(distance * len(flat) / total)
        self.count.copy_(total)


def make(observation_space: gymnasium.Space[Any], action_space: gymnasium.Space[Any]) -> NormalisedActorCritic:
    """Build the policy; the job's `policy.entrypoint`."""
    return NormalisedActorCritic(observation_space, action_space)
