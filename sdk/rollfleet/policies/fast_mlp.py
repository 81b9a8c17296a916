"""The `mlp` policy on the CPU, evaluated by numpy: a call of torch costs several times as much.

A step only chooses actions. Log-probabilities and values are computed afterwards for all steps at once, in torch, as
the policy itself does. A policy with any unusual feature is called as any other: decision 0036.
"""

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import torch
from gymnasium.spaces import Box, Discrete
from torch import Generator, Tensor, nn
from torch.nn.modules import module as torch_module

from rollfleet.data.tensor_memory import Array
from rollfleet.envs.space_tree import Space
from rollfleet.exploration import Exploration, exploration
from rollfleet.policies.actor_critic import PRE_TANH_LIMIT, ActorCritic

Layer: TypeAlias = tuple[Array, Array, Callable[..., Any] | None, Array | None]
"""Weight, bias and activation of a layer, and the memory of its result; None: new memory in each step."""

BLOCK = 64
"""Steps for which random numbers are drawn at a time."""

LARGEST_PRODUCT = 1 << 18
"""The largest product of environments, inputs and outputs of a layer. Beyond it numpy's BLAS starts threads, which
compete with torch's, and the cost of a call of torch no longer matters."""

_ACTIVATIONS: dict[type, Callable[..., Any]] = {
    nn.Tanh: np.tanh,
    nn.ReLU: lambda value, out: np.maximum(value, 0.0, out=out),
}
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def fast(policy: object, spaces: tuple[Space, Space], num_envs: int) -> "FastMlp | None":
    """Return a fast form of a policy for single environments of these spaces, or None.

    It exists for an `ActorCritic` of observations that are one array of floats, and actions of a Discrete or Box space.
    """
    seen, acted = spaces
    if type(policy) is not ActorCritic or not isinstance(seen, Box) or seen.dtype.kind != "f":
        return None
    return FastMlp(policy, acted, num_envs) if isinstance(acted, Discrete | Box) else None


class FastMlp:
    """A fast form of a policy, for one fragment after the other; see `fast`."""

    def __init__(self, policy: ActorCritic, actions: Discrete | Box, num_envs: int) -> None:
        self._policy, self._actions, self._num_envs = policy, actions, num_envs
        self.reseed(0)

    def reseed(self, seed: int) -> None:
        """Start a stream of noise. Its numbers depend on the step, not on the fragment in which the step is."""
        self._generator = torch.Generator().manual_seed(seed)
        self._noise: Iterator[Array] = iter(())

    def begin(self) -> bool:
        """Start a fragment with copies of the current weights. False: call the policy itself this time."""
        if not _is_usual(self._policy):
            return False
        self._layers = list(_layers(self._policy.actor, self._num_envs))
        if any(self._num_envs * weight.size > LARGEST_PRODUCT for weight, *_ in self._layers):
            return False
        box = self._actions if isinstance(self._actions, Box) else None
        self._head = _Categorical(self._policy) if box is None else _Normal(self._policy, box)
        self._noisy = exploration() is Exploration.RANDOM
        self._steps: list[tuple[Array, Array, Array]] = []  # the network's inputs and outputs, and samples
        return True

    def act(self, observation: Array) -> Array:
        """Return actions [envs, ...] for observations [envs, ...]."""
        inputs = value = np.array(observation, np.float32)
        if value.ndim != 2:
            inputs = value = value.reshape(self._num_envs, -1)
        for weight, bias, activation, out in self._layers:
            value = np.dot(value, weight, out)
            np.add(value, bias, out=value)
            if activation is not None:
                activation(value, out=value)
        action, sample = self._head.choose(value, self._draw() if self._noisy else None)
        self._steps.append((inputs, value, sample))
        return action

    def rest(self) -> list[Array]:
        """Return the policy's other outputs for all steps since `begin`.

        These are action_log_prob [steps, envs] and state_value [steps, envs, 1]. Their last bits may depend on the
        number of steps.
        """
        with torch.inference_mode():
            inputs, outputs, samples = (torch.from_numpy(np.stack(each)) for each in zip(*self._steps, strict=True))
            return [self._head.log_prob(outputs, samples).numpy(), self._policy.critic(inputs).numpy()]

    def _draw(self) -> Array:
        for noise in self._noise:
            return noise
        drawn = torch.empty(BLOCK, self._num_envs, self._layers[-1][0].shape[1], device="cpu")
        self._noise = iter(self._head.draw(drawn, self._generator).numpy())
        return next(self._noise)


class _Categorical:
    """A categorical distribution: `ActorCritic._categorical` in numpy."""

    def __init__(self, policy: ActorCritic) -> None:
        self._start = policy.action_start

    def draw(self, noise: Tensor, generator: Generator) -> Tensor:
        # Gumbel's trick: the largest of the logits with this noise is a sample.
        return noise.exponential_(generator=generator).log_().neg_()

    def choose(self, outputs: Array, noise: Array | None) -> tuple[Array, Array]:
        index: Array = (outputs if noise is None else outputs + noise).argmax(-1)
        return index + self._start, index

    def log_prob(self, outputs: Tensor, index: Tensor) -> Tensor:
        return torch.log_softmax(outputs, -1).gather(-1, index.unsqueeze(-1)).squeeze(-1)


class _Normal:
    """A normal distribution, with tanh if the space has bounds: `ActorCritic._normal` in numpy."""

    def __init__(self, policy: ActorCritic, space: Box) -> None:
        self._policy, self._space = policy, space
        self._std = policy.log_std.detach().exp().numpy()
        if policy.bounded:
            self._centre, self._scale = policy.action_centre.numpy(), policy.action_scale.numpy()

    def draw(self, noise: Tensor, generator: Generator) -> Tensor:
        return noise.normal_(generator=generator)

    def choose(self, outputs: Array, noise: Array | None) -> tuple[Array, Array]:
        drawn = outputs.copy() if noise is None else outputs + noise * self._std
        if self._policy.bounded:
            np.maximum(drawn, -PRE_TANH_LIMIT, out=drawn)
            np.minimum(drawn, PRE_TANH_LIMIT, out=drawn)
            action = np.tanh(drawn)
            action *= self._scale
            action += self._centre
        else:
            action = drawn.copy()  # environments may keep and change their actions
        return action.reshape(len(action), *self._space.shape).astype(self._space.dtype, copy=False), drawn

    def log_prob(self, outputs: Tensor, drawn: Tensor) -> Tensor:
        return self._policy.normal_log_prob((drawn - outputs) * torch.exp(-self._policy.log_std), drawn)


def _layers(tower: nn.Sequential, num_envs: int) -> Iterator[Layer]:
    """Yield the layers with copies of their weights.

    They are copies because parameters change in place and may move, and because BLAS prefers this order in memory.
    """
    for layer, following in pairwise([*tower, None]):
        if isinstance(layer, nn.Linear):
            weight, bias = layer.weight.detach().numpy(), layer.bias.detach().numpy()
            out = None if layer is tower[-1] else np.empty((num_envs, len(weight)), np.float32)
            yield weight.T.copy(), bias.copy(), _ACTIVATIONS.get(type(following)), out


def _is_usual(policy: ActorCritic) -> bool:
    """Whether a call of the policy does nothing but evaluate its layers."""
    if torch.is_autocast_enabled("cpu") or torch_module._has_any_global_hook():
        return False
    tensors = (*policy.parameters(), *policy.buffers())
    if not all(tensor.dtype is torch.float32 and tensor.device.type == "cpu" for tensor in tensors):
        return False
    for module in policy.modules():
        if "forward" in vars(module) or any(vars(module)[name] for name in _HOOKS):
            return False
    return _alternates(list(policy.actor)) and _alternates(list(policy.critic))


def _alternates(layers: list[nn.Module]) -> bool:
    """Whether there are only Linear layers with bias, with at most one activation between two of them."""
    kinds = [type(layer) for layer in layers]
    after_linear = all(
        kind is nn.Linear or (kind in _ACTIVATIONS and before is nn.Linear)
        for before, kind in zip([None, *kinds], kinds, strict=False)
    )
    return (
        after_linear
        and kinds[-1:] == [nn.Linear]
        and all(layer.bias is not None for layer in layers if isinstance(layer, nn.Linear))
    )
