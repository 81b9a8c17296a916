"""A policy of your own: any `torch.nn.Module` that returns actions. Replace this one."""

import gymnasium
from torch import Tensor, nn
from torch.distributions import Categorical

from rollfleet.exploration import Exploration, exploration


def network(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    """Make a network of one hidden layer."""
    return nn.Sequential(nn.Linear(inputs, hidden), nn.Tanh(), nn.Linear(hidden, outputs))


class Policy(nn.Module):
    """An actor and a critic. Workers call `forward`; the learner trains by `value` and `evaluate`."""

    def __init__(self, inputs: int, hidden: int, actions: int) -> None:
        """Make the networks."""
        super().__init__()
        self.actor, self.critic = network(inputs, hidden, actions), network(inputs, hidden, 1)

    def forward(self, observation: Tensor) -> dict[str, Tensor]:
        """Act on observations [envs, inputs]. The batch has all of these outputs."""
        distribution = Categorical(logits=self.actor(observation))
        action = distribution.sample() if exploration() is Exploration.RANDOM else distribution.logits.argmax(-1)
        return {"action": action, "action_log_prob": distribution.log_prob(action)}

    def value(self, observation: Tensor) -> Tensor:
        """Return the values [..., 1] of observations [..., inputs]."""
        values: Tensor = self.critic(observation)
        return values

    def evaluate(self, observation: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return log-probabilities [n] and entropies [n] for actions [n], and values [n, 1]."""
        distribution = Categorical(logits=self.actor(observation))
        return distribution.log_prob(action), distribution.entropy(), self.value(observation)


def make(
    observation_space: gymnasium.spaces.Box, action_space: gymnasium.spaces.Discrete, *, hidden: int = 64
) -> nn.Module:
    """Build the policy on each worker and in the learner; `policy.kwargs` of the job arrive here."""
    return Policy(observation_space.shape[0], hidden, int(action_space.n))
