"""The policy of examples/halfcheetah: workers and learner build it from this file."""

from typing import Any

import gymnasium
from torch import Tensor, nn

import rollfleet


class NormalisedActorCritic(nn.Module):
    """The built-in actor-critic behind a normaliser of observations, whose statistics are broadcast with the weights.

    So every worker acts on the statistics that the learner trains with.
    """

    def __init__(self, observation_space: gymnasium.Space[Any], action_space: gymnasium.Space[Any]) -> None:
        super().__init__()
        assert observation_space.shape is not None
        self.norm = rollfleet.RunningNorm(observation_space.shape)
        self.actor_critic = rollfleet.ActorCritic(observation_space, action_space)

    def forward(self, observation: Tensor) -> dict[str, Tensor]:
        """Act on observations [envs, n]: `action`, `action_log_prob` and `state_value`."""
        outputs: dict[str, Tensor] = self.actor_critic(self.norm(observation))
        return outputs


def make(observation_space: gymnasium.Space[Any], action_space: gymnasium.Space[Any]) -> NormalisedActorCritic:
    """Build the policy; the job's `policy.entrypoint`."""
    return NormalisedActorCritic(observation_space, action_space)
