"""Small multi-layer perceptrons on the CPU, evaluated by numpy: a call of torch costs several times as much.

A step only chooses actions. Log-probabilities and values are computed afterwards for many steps at once, in torch, as
the policy itself does. A policy with any unusual feature has no fast form, or none for now, and is called as any other.
"""

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, Protocol, TypeAlias

import numpy as np
import torch
from gymnasium.spaces import Box, Discrete
from torch import Generator, Tensor, nn
from torch.nn.modules import module as torch_module
from torch.nn.parameter import is_lazy

from rollfleet.data.tensor_memory import Array
from rollfleet.envs.space_tree import Space
from rollfleet.exploration import Exploration, exploration
from rollfleet.policies.actor_critic import PRE_TANH_LIMIT, ActorCritic

Layer: TypeAlias = tuple[Array, Array, Callable[..., Any] | None]

BLOCK = 64
"""Steps for which memory is allocated, and random numbers are drawn, at a time."""

LARGEST_PRODUCT = 1 << 18
"""The largest product of environments, inputs and outputs of a layer. Beyond it numpy's BLAS starts threads, which
compete with torch's, and the cost of a call of torch no longer matters."""

_ACTIVATIONS: dict[type, Callable[..., Any]] = {
    nn.Tanh: np.tanh,
    nn.ReLU: lambda value, out: np.maximum(value, 0.0, out=out),
}
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def fast(policy: object, spaces: tuple[Space, Space], num_envs: int) -> "FastMlp | None":
    """Return a fast form of a policy, or None.

    Supported are an `ActorCritic`, and an `nn.Sequential` of Linear, Tanh and ReLU that maps observations to actions.
    Observations must be one array of floats.

    Args:
        policy: The policy.
        spaces: The observation and the action space of a single environment.
        num_envs: The number of environments.
    """
    seen, acted = spaces
    if not isinstance(seen, Box) or seen.dtype.kind != "f":
        return None
    if isinstance(policy, nn.Module) and any(map(is_lazy, policy.parameters())):
        return None
    if type(policy) is ActorCritic and isinstance(acted, Discrete):
        return FastMlp(policy, policy.actor, lambda: _Categorical(policy.action_start), num_envs)
    if type(policy) is ActorCritic and isinstance(acted, Box):
        return FastMlp(policy, policy.actor, lambda: _Normal(policy, acted), num_envs)
    if type(policy) is nn.Sequential and len(seen.shape) == 1 and isinstance(acted, Box) and len(acted.shape) == 1:
        return FastMlp(policy, policy, lambda: _Deterministic(acted), num_envs)
    return None


class FastMlp:
    """A fast form of a policy, for one fragment after the other; see `fast`."""

    def __init__(self, policy: nn.Module, tower: nn.Sequential, head: "Callable[[], _Head]", num_envs: int) -> None:
        self._policy, self._tower, self._make_head, self._num_envs = policy, tower, head, num_envs
        self._head: _Head | None = None
        self._layers: list[Layer] = []
        self._hidden: list[Array] = []
        self._blocks: list[_Block] = []
        self._noisy = True
        self._first = self._steps = 0  # steps of the fragment: positions in its blocks
        self.reseed(0)

    def reseed(self, seed: int) -> None:
        """Start a stream of noise. Its numbers depend on the step, not on the fragment in which the step is."""
        self._generator = torch.Generator().manual_seed(seed)
        self._block_state, self._steps = self._generator.get_state(), 0

    def begin(self) -> bool:
        """Start a fragment with copies of the current weights. False: call the policy itself this time."""
        if not _is_usual(self._policy):
            return False
        before, self._layers = [weight.shape for weight, *_ in self._layers], list(_layers(self._tower))
        shapes = [weight.shape for weight, *_ in self._layers]
        if not shapes or any(self._num_envs * inputs * outputs > LARGEST_PRODUCT for inputs, outputs in shapes):
            return False
        if shapes != before:
            self._hidden = [np.empty((self._num_envs, outputs), np.float32) for _, outputs in shapes[:-1]]
            self._blocks = []
        self._head = self._make_head()
        self._noisy = exploration() is Exploration.RANDOM
        self._first = self._steps = self._steps % BLOCK
        if self._first:  # the rest of a block: drawn again, because its scale may have changed with the weights
            self._generator.set_state(self._block_state)
            self._begin_block(0)
        return True

    def act(self, observation: Array) -> Array:
        """Return actions [envs, ...] for observations [envs, ...]; valid until the next `begin`."""
        index, row = divmod(self._steps, BLOCK)
        if not row:
            self._begin_block(index)
        self._steps += 1
        block = self._blocks[index]
        value, output = block.inputs[row], block.outputs[row]
        value[...] = observation if observation.ndim == 2 else observation.reshape(self._num_envs, -1)
        for (weight, bias, activation), out in zip(self._layers, (*self._hidden, output), strict=True):
            np.dot(value, weight, out=out)
            np.add(out, bias, out=out)
            if activation is not None:
                activation(out, out=out)
            value = out
        assert self._head is not None
        return self._head.choose(output, block.noise[row], block.taken[row])

    def rest(self) -> list[Array]:
        """Return the policy's other outputs for all steps since `begin`.

        For an `ActorCritic` these are action_log_prob [steps, envs] and state_value [steps, envs, 1]; else none. Their
        last bits may depend on the number of steps.
        """
        policy, head, first, steps = self._policy, self._head, self._first, self._steps
        if not isinstance(policy, ActorCritic) or head is None or steps == first:
            return []
        log_probs, values = [], []
        with torch.inference_mode():
            for start, block in zip(range(0, steps, BLOCK), self._blocks, strict=False):
                rows = slice(max(first - start, 0), steps - start)
                inputs, outputs, taken = (
                    torch.from_numpy(array[rows]) for array in (block.inputs, block.outputs, block.taken)
                )
                log_probs.append(head.log_prob(outputs, taken))
                values.append(policy.critic(inputs))
            return [torch.cat(log_probs).numpy(), torch.cat(values).numpy()]

    def _begin_block(self, index: int) -> None:
        assert self._head is not None
        if index == len(self._blocks):
            inputs, outputs = self._layers[0][0].shape[0], self._layers[-1][0].shape[1]
            self._blocks.append(_Block(self._num_envs, inputs, outputs, self._head))
        noise = self._blocks[index].noise
        self._block_state = self._generator.get_state()
        if self._noisy:
            self._head.draw(noise, self._generator)
        else:
            noise[...] = 0.0


class _Block:
    """The network's inputs and outputs, the noise, and the samples of `BLOCK` steps."""

    def __init__(self, num_envs: int, inputs: int, outputs: int, head: "_Head") -> None:
        lead = (BLOCK, num_envs)
        self.inputs = np.empty((*lead, inputs), np.float32)
        self.outputs, self.noise = (np.empty((*lead, outputs), np.float32) for _ in range(2))
        self.taken: Array = np.empty(lead, np.int64) if head.chooses_one else np.empty((*lead, outputs), np.float32)


class _Head(Protocol):
    """Turns outputs of the network into actions.

    Arrays are [envs, outputs] in `choose`; `draw` and `log_prob` have a dimension of steps in front.
    """

    chooses_one: bool

    def draw(self, noise: Array, generator: Generator) -> None:
        """Fill `noise` from the distribution that the policy itself draws from."""

    def choose(self, outputs: Array, noise: Array, taken: Array) -> Array:
        """Return actions, and write the values that `log_prob` needs into `taken`. `noise` is overwritten."""

    def log_prob(self, outputs: Tensor, taken: Tensor) -> Tensor:
        """Return the log-probabilities of chosen actions."""


class _Deterministic:
    """Actions that are the network's outputs."""

    chooses_one = False

    def __init__(self, space: Box) -> None:
        self._dtype = space.dtype

    def draw(self, noise: Array, generator: Generator) -> None:
        """Draw nothing."""

    def choose(self, outputs: Array, noise: Array, taken: Array) -> Array:
        return outputs.astype(self._dtype, copy=False)

    def log_prob(self, outputs: Tensor, taken: Tensor) -> Tensor:
        raise NotImplementedError("a deterministic policy has no log-probabilities")


class _Categorical:
    """A categorical distribution: `ActorCritic._categorical` in numpy."""

    chooses_one = True

    def __init__(self, start: int) -> None:
        self._start = start

    def draw(self, noise: Array, generator: Generator) -> None:
        # Gumbel's trick: the largest of the logits with this noise is a sample.
        torch.from_numpy(noise).exponential_(generator=generator).log_().neg_()

    def choose(self, outputs: Array, noise: Array, taken: Array) -> Array:
        np.add(outputs, noise, out=noise)
        noise.argmax(-1, out=taken)
        return taken + self._start if self._start else taken

    def log_prob(self, outputs: Tensor, taken: Tensor) -> Tensor:
        return torch.log_softmax(outputs, -1).gather(-1, taken.unsqueeze(-1)).squeeze(-1)


class _Normal:
    """A normal distribution, with tanh if the space has bounds: `ActorCritic._normal` in numpy."""

    chooses_one = False

    def __init__(self, policy: ActorCritic, space: Box) -> None:
        self._policy, self._shape, self._dtype = policy, space.shape, space.dtype
        self._std = policy.log_std.detach().exp()
        if policy.bounded:
            self._centre, self._scale = policy.action_centre.numpy(), policy.action_scale.numpy()

    def draw(self, noise: Array, generator: Generator) -> None:
        torch.from_numpy(noise).normal_(generator=generator).mul_(self._std)

    def choose(self, outputs: Array, noise: Array, taken: Array) -> Array:
        np.add(outputs, noise, out=taken)
        action = taken
        if self._policy.bounded:
            np.maximum(taken, -PRE_TANH_LIMIT, out=taken)
            np.minimum(taken, PRE_TANH_LIMIT, out=taken)
            action = np.tanh(taken, out=noise)
            np.multiply(action, self._scale, out=action)
            np.add(action, self._centre, out=action)
        if len(self._shape) != 1:
            action = action.reshape(len(action), *self._shape)
        return action.astype(self._dtype, copy=False)

    def log_prob(self, outputs: Tensor, taken: Tensor) -> Tensor:
        policy = self._policy
        return policy.normal_log_prob((taken - outputs) * torch.exp(-policy.log_std), taken)


def _layers(tower: nn.Sequential) -> Iterator[Layer]:
    """Yield copies of the weights, and the activation after each layer.

    They are copies because parameters change in place and may move, and because BLAS prefers this order in memory.
    """
    for layer, following in pairwise([*tower, None]):
        if isinstance(layer, nn.Linear):
            weight, bias = layer.weight.detach().numpy(), layer.bias.detach().numpy()
            yield weight.T.copy(), bias.copy(), _ACTIVATIONS.get(type(following))


def _is_usual(policy: nn.Module) -> bool:
    """Whether a call of the policy does nothing but evaluate its layers."""
    if torch.is_autocast_enabled("cpu") or torch_module._has_any_global_hook():
        return False
    tensors = (*policy.parameters(), *policy.buffers())
    if not all(tensor.dtype is torch.float32 and tensor.device.type == "cpu" for tensor in tensors):
        return False
    for module in policy.modules():
        if "forward" in vars(module) or any(vars(module)[name] for name in _HOOKS):
            return False
        if type(module) is nn.Sequential and not _alternates(list(module)):
            return False
    return True


def _alternates(layers: list[nn.Module]) -> bool:
    """Whether there are only Linear layers with bias, with at most one activation after each."""
    kinds = [type(layer) for layer in layers]
    after_linear = all(
        kind is nn.Linear or (kind in _ACTIVATIONS and before is nn.Linear)
        for before, kind in zip([None, *kinds], kinds, strict=False)
    )
    return after_linear and all(layer.bias is not None for layer in layers if isinstance(layer, nn.Linear))
