"""The built-in `mlp` policy: two towers, a categorical or (tanh-)normal distribution, and a value."""

from collections.abc import Sequence
from math import log, pi, prod, sqrt
from typing import Any, Literal

import gymnasium
import torch
import torch.nn.functional as F
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete
from torch import Tensor, nn

from rollfleet.envs.spaces import supported
from rollfleet.errors import PolicyInvalid
from rollfleet.exploration import Exploration, exploration
from rollfleet.policies.choices import Choices
from rollfleet.policies.features import Features

_HALF_LOG_2PI = 0.5 * log(2 * pi)
_LOG_2 = log(2.0)

PRE_TANH_LIMIT = 5.0
"""Normal samples are clamped to this before tanh: actions reach 0.9999 of the way to their bounds.

Nearer to the bounds float32 cannot tell the samples of different actions apart, and the log-probability of an action
that comes back from a batch would not be the one it was taken with. So both are computed from the clamped sample.
"""

_RANDOM = Exploration.RANDOM


class ActorCritic(nn.Module):
    """Actor and critic, each a multi-layer perceptron, for observations of all kinds and actions without branches.

    Discrete actions: a categorical distribution; MultiDiscrete and MultiBinary: one for each number. Box actions with
    bounds: normal, then tanh, then scaled to the bounds. Box actions without bounds: normal. The standard deviation
    does not depend on the observation.

    Observations are flattened to float32, and concatenated where the space is a Dict or Tuple; uint8 (images) are
    divided by 255, Discrete and MultiDiscrete ones become one-hot.

    Attributes:
        actor: The network that tells the distribution.
        critic: The network that tells the value.
        action_start: Of a Discrete action space.
        bounded: Actions are normal, then tanh, then scaled: `action_scale * tanh(x) + action_centre`.
    """

    def __init__(
        self,
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        *,
        hidden: Sequence[int] = (64, 64),
        activation: Literal["Tanh", "Relu"] = "Tanh",
    ) -> None:
        """Weights are orthogonal, as is usual for PPO: gain sqrt(2), at the policy's head 0.01, at the value's 1.

        Args:
            observation_space: Of one environment.
            action_space: Of one environment.
            hidden: Width of each hidden layer; none: linear.
            activation: After each hidden layer.

        Raises:
            PolicyInvalid: An action space of branches, of integers, or bounded on one side only.
            EnvironmentInvalid: A space that is not supported.
        """
        super().__init__()
        action_space = supported(action_space, "action", "policy mlp")
        self._features = Features(supported(observation_space, "observation", "policy mlp"))
        self._choices: Choices | None = None
        self.action_start = self._action_n = 0
        self.bounded = False
        self._action_shape: tuple[int, ...] = ()
        self._action_dtype = torch.int64
        inputs = self._features.inputs
        if isinstance(action_space, Discrete):
            self.action_start, self._action_n = int(action_space.start), int(action_space.n)
            outputs = self._action_n
        elif isinstance(action_space, MultiDiscrete | MultiBinary):
            self._choices = Choices(action_space)
            outputs, self._action_shape = self._choices.outputs, self._choices.shape
        elif isinstance(action_space, Box):
            outputs = prod(action_space.shape)
            self._take_box(action_space, outputs)
        else:
            raise PolicyInvalid(
                f"policy mlp cannot act in {action_space}: it has several parts; flatten it in a wrapper "
                "(env.wrappers), or write policy.entrypoint"
            )
        self.actor = _tower(inputs, hidden, outputs, activation, head_gain=0.01)
        self.critic = _tower(inputs, hidden, 1, activation, head_gain=1.0)

    def forward(self, observation: Any) -> dict[str, Tensor]:
        """Act.

        Args:
            observation: [envs, ...]; dicts and tuples of these where the space is Dict or Tuple.

        Returns:
            action: int64 [envs], or [envs, ...] in the space's dtype; sampled, or the most likely one, as
                `exploration()` says.
            action_log_prob: float32 [envs], of that action, in the units of the action space.
            state_value: float32 [envs, 1].
        """
        inputs = self._features(observation, 1)
        outputs, value = _run(self.actor, inputs), _run(self.critic, inputs)
        sample = exploration() is _RANDOM
        if self._action_n:
            action, log_prob = self._categorical(outputs, sample)
        elif self._choices is None:
            action, log_prob = self._normal(outputs, sample)
        else:
            action, log_prob = self._choices.act(outputs, sample=sample)
        return {"action": action, "action_log_prob": log_prob, "state_value": value}

    def evaluate(self, observation: Any, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """What a learner needs of actions that were taken, with gradients.

        Args:
            observation: [..., *observation shape]; where the space is a Dict, the batch itself will do.
            action: [..., *action shape], as `forward` gave it.

        Returns:
            Log-probability [...]; entropy [...] (for actions with bounds that of the normal distribution before tanh,
            which has a closed form); value [..., 1]. All float32.
        """
        lead = action.shape[: action.ndim - len(self._action_shape)]
        inputs = self._features(observation, len(lead))
        outputs, value = self.actor(inputs), self.critic(inputs)
        if self._action_n:
            log_probs = F.log_softmax(outputs, -1)
            log_prob = log_probs.gather(-1, (action - self.action_start).unsqueeze(-1)).squeeze(-1)
            return log_prob, -(log_probs.exp() * log_probs).sum(-1), value
        if self._choices is not None:
            return *self._choices.evaluate(outputs, action), value
        flat = action.reshape(*lead, -1).to(outputs.dtype)
        if self.bounded:
            # Clamped before atanh, whose gradient and value are infinite at the bounds; its inverse maps it to the
            # same limit.
            limit = torch.tanh(torch.tensor(PRE_TANH_LIMIT, dtype=flat.dtype, device=flat.device))
            flat = torch.atanh(((flat - self.action_centre) / self.action_scale).clamp(-limit, limit))
        noise = (flat - outputs) * torch.exp(-self.log_std)
        entropy = (self.log_std + (0.5 + _HALF_LOG_2PI)).sum().expand(lead)
        return self.normal_log_prob(noise, flat), entropy, value

    def value(self, observation: Any, *, leading: int = 2) -> Tensor:
        """The critic alone, with gradients: float32 [..., 1].

        Args:
            observation: As in `evaluate`.
            leading: How many dimensions come before the observation's own: 2 for a batch [envs, T].
        """
        value: Tensor = self.critic(self._features(observation, leading))
        return value

    def _take_box(self, space: Box, outputs: int) -> None:
        below, above = space.bounded_below, space.bounded_above
        if space.dtype.kind != "f":
            raise PolicyInvalid(
                f"policy mlp cannot act in {space}: it has integers; use Discrete, or write policy.entrypoint"
            )
        if not ((below & above).all() or not (below | above).any()):
            raise PolicyInvalid(
                f"policy mlp cannot act in {space}: some dimensions have bounds on both sides and some have not; wrap "
                "the environment in gymnasium.wrappers.RescaleAction or ClipAction, or write policy.entrypoint"
            )
        self.bounded = bool(below.all()) and outputs > 0
        self._action_shape = space.shape
        self._action_dtype = torch.float64 if space.dtype.itemsize == 8 else torch.float32
        self.log_std = nn.Parameter(torch.zeros(outputs))
        if self.bounded:
            low = torch.as_tensor(space.low).reshape(-1).double()
            high = torch.as_tensor(space.high).reshape(-1).double()
            self.register_buffer("action_centre", ((high + low) / 2).float())
            self.register_buffer("action_scale", ((high - low) / 2).float())
            self.register_buffer("action_log_scale", ((high - low) / 2).log().float())

    action_centre: Tensor
    action_scale: Tensor
    action_log_scale: Tensor

    def _categorical(self, logits: Tensor, sample: bool) -> tuple[Tensor, Tensor]:
        log_probs = torch.log_softmax(logits, -1)
        # Gumbel's trick: the largest of (log-probability - log of an exponential) is a sample.
        scores = log_probs - torch.empty_like(log_probs).exponential_().log_() if sample else log_probs
        index = scores.argmax(-1, keepdim=True)
        log_prob = log_probs.gather(-1, index).squeeze(-1)
        action = index.squeeze(-1)
        return (action + self.action_start if self.action_start else action), log_prob

    def _normal(self, mean: Tensor, sample: bool) -> tuple[Tensor, Tensor]:
        log_std = self._parameters["log_std"]
        assert log_std is not None
        drawn = torch.addcmul(mean, torch.randn_like(mean), log_std.exp()) if sample else mean
        if self.bounded:
            drawn = drawn.clamp(-PRE_TANH_LIMIT, PRE_TANH_LIMIT)
        log_prob = self.normal_log_prob((drawn - mean) * torch.exp(-log_std), drawn)
        flat = torch.addcmul(self.action_centre, torch.tanh(drawn), self.action_scale) if self.bounded else drawn
        action = flat if len(self._action_shape) == 1 else flat.reshape(mean.shape[0], *self._action_shape)
        return action.to(self._action_dtype), log_prob

    def normal_log_prob(self, noise: Tensor, drawn: Tensor) -> Tensor:
        """Of actions whose value before tanh is `drawn`, `noise` standard deviations from the mean; both [..., n]."""
        terms = -0.5 * noise * noise - (self.log_std + _HALF_LOG_2PI)
        if self.bounded:  # the logarithm of tanh's slope, in a form that does not lose digits, and the scale's
            terms = terms - self.action_log_scale - 2.0 * (_LOG_2 - drawn - F.softplus(-2.0 * drawn))
        return terms.sum(-1)


def _tower(inputs: int, hidden: Sequence[int], outputs: int, activation: str, *, head_gain: float) -> nn.Sequential:
    layers: list[nn.Module] = []
    for width in hidden:
        layers += [_linear(inputs, width, sqrt(2)), nn.ReLU() if activation == "Relu" else nn.Tanh()]
        inputs = width
    return nn.Sequential(*layers, _linear(inputs, outputs, head_gain))


def _linear(inputs: int, outputs: int, gain: float) -> nn.Linear:
    layer = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


def _run(tower: nn.Sequential, value: Tensor) -> Tensor:
    """`tower(value)` without the cost of calling `nn.Module`s, and so without their hooks."""
    for layer in tower._modules.values():
        if type(layer) is nn.Linear:
            own = layer._parameters
            value = F.linear(value, own["weight"], own["bias"])  # type: ignore[arg-type]
        else:
            value = layer.forward(value)
    return value
