"""The `mlp` policy: an actor and a critic, with a categorical, multi-categorical or (tanh-)normal distribution."""

from collections.abc import Iterable, Sequence
from math import inf, log, pi, prod, sqrt
from typing import Any, Literal

import gymnasium
import torch
import torch.nn.functional as F
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete
from torch import Tensor, nn

from rollfleet.arguments import shown, whole_number
from rollfleet.envs.spaces import supported, tensor_dtype
from rollfleet.errors import JobInvalid, PolicyInvalid
from rollfleet.exploration import Exploration, exploration
from rollfleet.policies.observation_encoder import ObservationEncoder
from rollfleet_api.policy import Activation

_HALF_LOG_2PI = 0.5 * log(2 * pi)
_LOG_2 = log(2.0)

PRE_TANH_LIMIT = 5.0
"""Normal samples are clamped to this before tanh: actions reach 0.9999 of the way to their bounds.

Nearer to the bounds float32 cannot distinguish the samples of different actions. The log-probability of an action from
a batch would then differ from the recorded one. So both are computed from the clamped sample.
"""


class ActorCritic(nn.Module):
    """Actor and critic, each a multi-layer perceptron, for all observation spaces and action spaces of one array.

    Discrete actions have a categorical distribution; MultiDiscrete and MultiBinary actions one for each number. Box
    actions without bounds have a normal distribution; with bounds they then go through tanh and are scaled. The
    standard deviation does not depend on the observation. `ObservationEncoder` explains how observations are encoded.

    Attributes:
        actor: The network that computes the distribution's parameters.
        critic: The network that computes the state's value.
        action_start: The smallest action of a Discrete space.
        bounded: Whether actions are `action_scale * tanh(x) + action_centre` of a normal sample `x`.
        hidden: The width of each hidden layer.
        activation: The function after each hidden layer.

    Example:
        >>> import torch
        >>> from gymnasium.spaces import Box, Discrete
        >>> from rollfleet import ActorCritic
        >>> policy = ActorCritic(Box(-1, 1, (4,)), Discrete(2), hidden=(32,))
        >>> {key: list(value.shape) for key, value in policy(torch.zeros(8, 4)).items()}
        {'action': [8], 'action_log_prob': [8], 'state_value': [8, 1]}
    """

    def __init__(
        self,
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        *,
        hidden: Sequence[int] = (64, 64),
        activation: Literal["Tanh", "Relu"] = "Tanh",
    ) -> None:
        """Initialise orthogonal weights as usual for PPO: gain sqrt(2), in the actor's last layer 0.01, the critic's 1.

        Args:
            observation_space: The observation space of one environment.
            action_space: The action space of one environment.
            hidden: The width of each hidden layer; empty: a linear policy.
            activation: The function after each hidden layer, in upper or lower case.

        Raises:
            JobInvalid: `hidden` is not a sequence of positive numbers, or the activation is unknown.
            PolicyInvalid: The action space is a Dict, a Tuple, or a Box of integers or with bounds on one side only.
            EnvironmentInvalid: A space is not supported.
        """
        super().__init__()
        if not isinstance(hidden, Iterable):
            raise JobInvalid(f"hidden: expected a list of widths such as [64, 64], got {shown(hidden)}")
        known = {each.lower(): each.value for each in Activation}
        if (function := known.get(str(activation).lower())) is None:
            raise JobInvalid(f"activation: expected one of {', '.join(known.values())}, got {shown(activation)}")
        self.hidden = tuple(whole_number(width, "hidden", least=1) for width in hidden)
        self.activation = function
        action_space = supported(action_space, "action", "policy mlp")
        self._encode = ObservationEncoder(supported(observation_space, "observation", "policy mlp"))
        self._choices: MultiCategorical | None = None
        self.action_start = self._action_n = 0
        self.bounded = False
        self._action_shape: tuple[int, ...] = ()
        self._action_dtype = torch.int64
        inputs = self._encode.inputs
        if isinstance(action_space, Discrete):
            self.action_start, self._action_n = int(action_space.start), int(action_space.n)
            outputs = self._action_n
        elif isinstance(action_space, MultiDiscrete | MultiBinary):
            self._choices = MultiCategorical(action_space)
            outputs, self._action_shape = self._choices.outputs, self._choices.shape
        elif isinstance(action_space, Box):
            outputs = prod(action_space.shape)
            self._take_box(action_space, outputs)
        else:
            raise PolicyInvalid(
                f"policy mlp cannot act in {action_space}: it has several parts; flatten it in a wrapper, "
                "or write a policy"
            )
        self.actor = _tower(inputs, self.hidden, outputs, self.activation, head_gain=0.01)
        self.critic = _tower(inputs, self.hidden, 1, self.activation, head_gain=1.0)

    def forward(self, observation: Any) -> dict[str, Tensor]:
        """Choose actions.

        Args:
            observation: [envs, ...]; dicts and tuples of these where the space is Dict or Tuple.

        Returns:
            action: int64 [envs], or [envs, ...] in the space's dtype. `exploration()` decides whether it is sampled
                or the most likely one.
            action_log_prob: float32 [envs], of that action, in the units of the action space.
            state_value: float32 [envs, 1].
        """
        inputs = self._encode(observation, 1)
        outputs, value = self.actor(inputs), self.critic(inputs)
        sample = exploration() is Exploration.RANDOM
        if self._action_n:
            action, log_prob = self._categorical(outputs, sample)
        elif self._choices is None:
            action, log_prob = self._normal(outputs, sample)
        else:
            action, log_prob = self._choices.act(outputs, sample=sample)
        return {"action": action, "action_log_prob": log_prob, "state_value": value}

    def evaluate(self, observation: Any, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Evaluate recorded actions, with gradients.

        Args:
            observation: [..., *observation shape]; for a Dict space the batch itself works.
            action: [..., *action shape], from `forward`.

        Returns:
            Log-probability [...]; entropy [...]; value [..., 1]. All float32. With bounds the entropy is that of the
            normal distribution before tanh, which has a closed form.
        """
        lead = action.shape[: action.ndim - len(self._action_shape)]
        inputs = self._encode(observation, len(lead))
        outputs, value = self.actor(inputs), self.critic(inputs)
        if self._action_n:
            log_probs = F.log_softmax(outputs, -1)
            log_prob = log_probs.gather(-1, (action - self.action_start).unsqueeze(-1)).squeeze(-1)
            return log_prob, -(log_probs.exp() * log_probs).sum(-1), value
        if self._choices is not None:
            return *self._choices.evaluate(outputs, action), value
        flat = action.reshape(*lead, -1).to(outputs.dtype)
        if self.bounded:
            # Clamped before atanh, whose value and gradient are infinite at the bounds.
            limit = torch.tanh(torch.tensor(PRE_TANH_LIMIT, dtype=flat.dtype, device=flat.device))
            flat = torch.atanh(((flat - self.action_centre) / self.action_scale).clamp(-limit, limit))
        noise = (flat - outputs) * torch.exp(-self.log_std)
        entropy = (self.log_std + (0.5 + _HALF_LOG_2PI)).sum().expand(lead)
        return self.normal_log_prob(noise, flat), entropy, value

    def value(self, observation: Any, *, leading: int = 2) -> Tensor:
        """Return the critic's value, with gradients: float32 [..., 1].

        Args:
            observation: As in `evaluate`.
            leading: The number of dimensions before the observation's own: 2 for a batch [envs, T].
        """
        value: Tensor = self.critic(self._encode(observation, leading))
        return value

    def _take_box(self, space: Box, outputs: int) -> None:
        below, above = space.bounded_below, space.bounded_above
        if space.dtype.kind != "f":
            raise PolicyInvalid(
                f"policy mlp cannot act in {space}: it has integers; use Discrete, or write policy.entrypoint"
            )
        if not ((below & above).all() or not (below | above).any()):
            raise PolicyInvalid(
                f"policy mlp cannot act in {space}: some dimensions have bounds on both sides and some do not; wrap "
                "the environment in gymnasium.wrappers.RescaleAction or ClipAction, or write policy.entrypoint"
            )
        if (space.low == space.high).any():
            raise PolicyInvalid(
                f"policy mlp cannot act in {space}: `low` equals `high` in a dimension; remove that in a wrapper, or "
                "write policy.entrypoint"
            )
        self.bounded = bool(below.all()) and outputs > 0
        self._action_shape = space.shape
        self._action_dtype = torch.float64 if space.dtype.itemsize == 8 else torch.float32
        self.log_std = nn.Parameter(torch.zeros(outputs, dtype=torch.float32))
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
        log_std = self.log_std
        drawn = torch.addcmul(mean, torch.randn_like(mean), log_std.exp()) if sample else mean
        if self.bounded:
            drawn = drawn.clamp(-PRE_TANH_LIMIT, PRE_TANH_LIMIT)
        log_prob = self.normal_log_prob((drawn - mean) * torch.exp(-log_std), drawn)
        flat = torch.addcmul(self.action_centre, torch.tanh(drawn), self.action_scale) if self.bounded else drawn
        action = flat if len(self._action_shape) == 1 else flat.reshape(mean.shape[0], *self._action_shape)
        return action.to(self._action_dtype), log_prob

    def normal_log_prob(self, noise: Tensor, drawn: Tensor) -> Tensor:
        """Return the log-probability [...] of normal samples.

        Args:
            noise: [..., n], their distance from the mean in standard deviations.
            drawn: [..., n], the samples, before tanh.
        """
        terms = -0.5 * noise * noise - (self.log_std + _HALF_LOG_2PI)
        if self.bounded:  # the logarithm of tanh's slope, in a form that keeps its digits, and of the scale
            terms = terms - self.action_log_scale - 2.0 * (_LOG_2 - drawn - F.softplus(-2.0 * drawn))
        return terms.sum(-1)


class MultiCategorical(nn.Module):
    """Independent categorical distributions, one for each number of a MultiDiscrete or MultiBinary action.

    Attributes:
        outputs: The number of logits: those of all distributions in a row.
        shape: The shape of one action.
    """

    _index: Tensor
    _missing: Tensor
    _start: Tensor

    def __init__(self, space: MultiDiscrete | MultiBinary) -> None:
        """Prepare indices; there are no parameters, and nothing is in the state_dict."""
        super().__init__()
        self.shape, self._dtype = space.shape, tensor_dtype(space)
        if isinstance(space, MultiDiscrete):
            sizes, start = (torch.as_tensor(array).reshape(-1).long() for array in (space.nvec, space.start))
        else:
            sizes = torch.full((prod(space.shape),), 2)
            start = torch.zeros_like(sizes)
        self.outputs = int(sizes.sum())
        # Numbers have different counts of options: [numbers, most options], with missing ones at -infinity.
        option = torch.arange(int(sizes.max()))
        missing = option >= sizes[:, None]
        index = ((sizes.cumsum(0) - sizes)[:, None] + option).masked_fill(missing, 0)
        for name, value in (("_index", index), ("_missing", missing), ("_start", start)):
            self.register_buffer(name, value, persistent=False)

    def act(self, logits: Tensor, *, sample: bool) -> tuple[Tensor, Tensor]:
        """Return actions [envs, ...] in the space's dtype, sampled or most likely, and log-probabilities [envs]."""
        log_probs = self._log_probs(logits)
        # Gumbel's trick: the largest of (log-probability - log of an exponential) is a sample.
        scores = log_probs - torch.empty_like(log_probs).exponential_().log_() if sample else log_probs
        index = scores.argmax(-1)
        action = (index + self._start).reshape(-1, *self.shape).to(self._dtype)
        return action, self._chosen(log_probs, index)

    def evaluate(self, logits: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-probability and entropy [...] of actions [..., *shape]."""
        log_probs = self._log_probs(logits)
        index = action.reshape(*logits.shape[:-1], -1).long() - self._start
        entropy = -(log_probs.exp() * log_probs.masked_fill(self._missing, 0.0)).sum((-1, -2))
        return self._chosen(log_probs, index), entropy

    def _log_probs(self, logits: Tensor) -> Tensor:
        return torch.log_softmax(logits[..., self._index].masked_fill(self._missing, -inf), -1)

    def _chosen(self, log_probs: Tensor, index: Tensor) -> Tensor:
        return log_probs.gather(-1, index.unsqueeze(-1)).squeeze(-1).sum(-1)


def _tower(inputs: int, hidden: Sequence[int], outputs: int, activation: str, *, head_gain: float) -> nn.Sequential:
    layers: list[nn.Module] = []
    for width in hidden:
        layers += [_linear(inputs, width, sqrt(2)), nn.ReLU() if activation == Activation.RELU else nn.Tanh()]
        inputs = width
    return nn.Sequential(*layers, _linear(inputs, outputs, head_gain))


def _linear(inputs: int, outputs: int, gain: float) -> nn.Linear:
    layer = nn.Linear(inputs, outputs, dtype=torch.float32)  # as observations are, whatever the default dtype
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer
