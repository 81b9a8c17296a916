"""Small multi-layer perceptrons on the CPU, evaluated by numpy: torch's cost for each call is several times as much.

A step only chooses actions. What else the policy puts out, log-probabilities and values, is worked out afterwards for
many steps at once, in torch, as the policy itself does. Where anything about a policy is unusual there is no fast form
of it, or not for now, and it is called as any other.
"""

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, Protocol, TypeAlias

import numpy as np
import torch
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

from rollfleet.envs.space_tree import Space
from rollfleet.exploration import Exploration, exploration
from rollfleet.policies.actor_critic import PRE_TANH_LIMIT, ActorCritic

Array: TypeAlias = NDArray[Any]
Layer: TypeAlias = tuple[Array, Array, Callable[..., Any] | None]

BLOCK = 64
"""Memory is made, and random numbers are drawn, for so many steps at a time."""

LARGEST_PRODUCT = 1 << 18
"""Of environments, inputs and outputs of a layer. Beyond, numpy's BLAS starts threads, which compete with torch's, and
what a call of torch costs no longer counts."""

_ACTIVATIONS: dict[type, Callable[..., Any]] = {
    nn.Tanh: np.tanh,
    nn.ReLU: lambda value, out: np.maximum(value, 0.0, out=out),
}
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def fast(policy: object, spaces: tuple[Space, Space], num_envs: int) -> "FastMlp | None":
    """A fast form of a policy, or None.

    Args:
        policy: There is one of an `ActorCritic`, and of an `nn.Sequential` of Linear, Tanh and ReLU that maps
            observations to actions; for observations that are arrays of floats.
        spaces: Of a single environment: observations, actions.
        num_envs: How many there are.
    """
    seen, acted = spaces
    if not isinstance(seen, Box) or seen.dtype.kind != "f":
        return None
    if type(policy) is ActorCritic and isinstance(acted, Discrete):
        return FastMlp(policy, policy.actor, lambda: _Categorical(policy.action_start), num_envs)
    if type(policy) is ActorCritic and isinstance(acted, Box):
        return FastMlp(policy, policy.actor, lambda: _Normal(policy, acted), num_envs)
    if type(policy) is nn.Sequential and len(seen.shape) == 1 and isinstance(acted, Box) and len(acted.shape) == 1:
        return FastMlp(policy, policy, lambda: _Deterministic(acted), num_envs)
    return None


class FastMlp:
    """Acts as a policy does, in one fragment after the other; see `fast`."""

    def __init__(self, policy: nn.Module, tower: nn.Sequential, head: "Callable[[], _Head]", num_envs: int) -> None:
        self._policy, self._tower, self._make_head, self._num_envs = policy, tower, head, num_envs
        self._head: _Head | None = None
        self._layers: list[Layer] = []
        self._hidden: list[Array] = []
        self._blocks: list[_Block] = []
        self._noisy = True
        self._steps = 0

    def begin(self) -> bool:
        """A fragment begins: the weights are those of now. False: call the policy itself this time."""
        if not _usual(self._policy):
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
        self._steps = 0
        return True

    def act(self, observation: Array) -> Array:
        """Actions [envs, ...] for observations [envs, ...]; valid until the next `begin`."""
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
        """What the policy puts out besides actions, in all steps since `begin` or the last `rest`.

        Of an `ActorCritic` action_log_prob [steps, envs] and state_value [steps, envs, 1]; of others nothing.
        """
        policy, head, steps, self._steps = self._policy, self._head, self._steps, 0
        if not isinstance(policy, ActorCritic) or head is None or not steps:
            return []
        log_probs, values = [], []
        with torch.inference_mode():
            for start, block in zip(range(0, steps, BLOCK), self._blocks, strict=False):
                inputs, outputs, taken = (
                    torch.from_numpy(array[: steps - start]) for array in (block.inputs, block.outputs, block.taken)
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
        if self._noisy:
            self._head.draw(noise)
        else:
            noise[...] = 0.0


class _Block:
    """Of `BLOCK` steps: what went into the network, what came out of it, noise, and what was chosen by them."""

    def __init__(self, num_envs: int, inputs: int, outputs: int, head: "_Head") -> None:
        lead = (BLOCK, num_envs)
        self.inputs = np.empty((*lead, inputs), np.float32)
        self.outputs, self.noise = (np.empty((*lead, outputs), np.float32) for _ in range(2))
        self.taken: Array = np.empty(lead, np.int64) if head.chooses_one else np.empty((*lead, outputs), np.float32)


class _Head(Protocol):
    """From outputs of the network to actions. Arrays are [envs, outputs], with more dimensions in front at the end."""

    chooses_one: bool

    def draw(self, noise: Array) -> None:
        """Fill in random numbers, from torch's generator as the policy itself does."""
        ...

    def choose(self, outputs: Array, noise: Array, taken: Array) -> Array:
        """Actions; writes into `taken` what `log_prob` needs. `noise` is used up."""
        ...

    def log_prob(self, outputs: Tensor, taken: Tensor) -> Tensor:
        """Of the actions that were chosen."""
        ...


class _Deterministic:
    """The output is the action."""

    chooses_one = False

    def __init__(self, space: Box) -> None:
        self._dtype = space.dtype

    def draw(self, noise: Array) -> None:
        """There is none."""

    def choose(self, outputs: Array, noise: Array, taken: Array) -> Array:
        return outputs.astype(self._dtype, copy=False)

    def log_prob(self, outputs: Tensor, taken: Tensor) -> Tensor:
        raise NotImplementedError("nothing was left to chance")


class _Categorical:
    """One of several; `ActorCritic._categorical`, in numpy."""

    chooses_one = True

    def __init__(self, start: int) -> None:
        self._start = start

    def draw(self, noise: Array) -> None:
        # Gumbel's trick: the largest of the logits, each with such noise, is a sample.
        torch.from_numpy(noise).exponential_().log_().neg_()

    def choose(self, outputs: Array, noise: Array, taken: Array) -> Array:
        np.add(outputs, noise, out=noise)
        noise.argmax(-1, out=taken)
        return taken + self._start if self._start else taken

    def log_prob(self, outputs: Tensor, taken: Tensor) -> Tensor:
        return torch.log_softmax(outputs, -1).gather(-1, taken.unsqueeze(-1)).squeeze(-1)


class _Normal:
    """A normal distribution, with bounds by tanh where the space has them; `ActorCritic._normal`, in numpy."""

    chooses_one = False

    def __init__(self, policy: ActorCritic, space: Box) -> None:
        self._policy, self._shape, self._dtype = policy, space.shape, space.dtype
        self._std = policy.log_std.detach().exp()
        if policy.bounded:
            self._centre, self._scale = policy.action_centre.numpy(), policy.action_scale.numpy()

    def draw(self, noise: Array) -> None:
        torch.from_numpy(noise).normal_().mul_(self._std)

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
    """Copies of the weights, and what comes after each layer.

    Copies, since parameters are changed in place, and may be put elsewhere, while we keep ours as BLAS likes them.
    """
    for layer, following in pairwise([*tower, None]):
        if isinstance(layer, nn.Linear):
            weight, bias = layer.weight.detach().numpy(), layer.bias.detach().numpy()
            yield weight.T.copy(), bias.copy(), _ACTIVATIONS.get(type(following))


def _usual(policy: nn.Module) -> bool:
    """Whether calling the policy would do what its layers say, and nothing else."""
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
    """Linear layers with at most one activation after each, and nothing else."""
    kinds = [type(layer) for layer in layers]
    after_linear = all(
        kind is nn.Linear or (kind in _ACTIVATIONS and before is nn.Linear)
        for before, kind in zip([None, *kinds], kinds, strict=False)
    )
    return after_linear and all(layer.bias is not None for layer in layers if isinstance(layer, nn.Linear))
