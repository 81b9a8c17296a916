"""The policy of examples/atari: workers and learner build it from this file."""

from typing import Any

import gymnasium
import torch
from torch import Tensor, nn
from torch.distributions import Categorical

from rollfleet.exploration import Exploration, exploration


class ConvolutionalActorCritic(nn.Module):
    """Convolutions over stacked images, then one linear layer each for the actor and the critic."""

    def __init__(self, images: int, height: int, width: int, actions: int) -> None:
        super().__init__()
        convolutions = nn.Sequential(
            nn.Conv2d(images, 16, 6, stride=3), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2), nn.ReLU(), nn.Flatten()
        )
        features = convolutions(torch.zeros(1, images, height, width)).shape[1]
        self.body = nn.Sequential(convolutions, nn.Linear(features, 256), nn.ReLU())
        self.actor, self.critic = nn.Linear(256, actions), nn.Linear(256, 1)
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d | nn.Linear):
                nn.init.orthogonal_(layer.weight, 2**0.5)
        nn.init.orthogonal_(self.actor.weight, 0.01)  # all actions are about equally likely at first
        # Convolutions on a CPU take half the time.
        self.to(memory_format=torch.channels_last)

    def forward(self, observation: Tensor) -> dict[str, Tensor]:
        """Act on observations uint8 [envs, images, height, width]."""
        policy, value = self.evaluate(observation)
        action = policy.sample() if exploration() is Exploration.RANDOM else policy.probs.argmax(-1)
        return {"action": action, "action_log_prob": policy.log_prob(action), "state_value": value[:, None]}

    def evaluate(self, observation: Tensor) -> tuple[Categorical, Tensor]:
        """Return the distributions of actions, and the values [n], of observations [n, images, height, width]."""
        # Without its mean, an image is its small bright things: the ball and the rackets.
        features = self.body(nn.functional.layer_norm(observation.float(), observation.shape[-2:]))
        return Categorical(logits=self.actor(features)), self.critic(features)[:, 0]


def make(observation_space: gymnasium.spaces.Box, action_space: gymnasium.Space[Any]) -> ConvolutionalActorCritic:
    """Build the policy; the job's `policy.entrypoint`."""
    assert isinstance(action_space, gymnasium.spaces.Discrete)
    images, height, width = observation_space.shape
    return ConvolutionalActorCritic(images, height, width, int(action_space.n))
