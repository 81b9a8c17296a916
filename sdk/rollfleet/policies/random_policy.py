"""The `random` policy: actions drawn uniformly from the action space."""

from collections.abc import Callable
from math import log, pi, prod
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Generator, Tensor

from rollfleet.envs.space_tree import ArraySpace, Space, SpaceTree, array_shape, bounds
from rollfleet.envs.spaces import supported, tensor_dtype


class RandomPolicy:
    """A policy of uniform random actions. It has no parameters and ignores the observation's values.

    It draws from torch's default generator, and is as reproducible as other policies.

    Example:
        >>> import torch
        >>> from gymnasium.spaces import Box
        >>> from rollfleet import RandomPolicy
        >>> RandomPolicy(Box(-1, 1, (3,)))(torch.zeros(8, 4)).shape
        torch.Size([8, 3])
    """

    def __init__(self, action_space: Space) -> None:
        """Take the action space of a single environment; the observation gives the number of environments.

        Raises:
            EnvironmentInvalid: The space is not supported.
        """
        supported(action_space, "action", "policy random")
        self._tree, self._uniform = SpaceTree(action_space), UniformActions(action_space)

    def __call__(self, observation: Any) -> Any:
        """Return actions [envs, ...] for observations [envs, ...]; for a Dict or Tuple space under `action`."""
        actions = self._tree.join(self._uniform.sample(_num_envs(observation))[0])
        return actions if self._tree.plain else {"action": actions}


class UniformActions:
    """Random elements of an action space, with their log-probabilities.

    As in Gymnasium, an unbounded dimension of a Box is drawn from a standard normal distribution, and one with a single
    bound from an exponential distribution shifted to it. Log-probabilities are those of these distributions.
    """

    def __init__(self, space: Space) -> None:
        """Take a `supported` space."""
        self._leaves = [_Uniform(leaf) for leaf in SpaceTree(space).leaves.values()]

    def sample(self, num_envs: int, generator: Generator | None = None) -> tuple[list[Tensor], Tensor]:
        """Draw actions from `generator`, or else from torch's default generator.

        Returns:
            The leaves of actions, each [envs, ...] in its space's dtype, and log-probabilities float32 [envs].
        """
        log_prob, actions = torch.zeros(num_envs, dtype=torch.float64, device="cpu"), []
        for leaf in self._leaves:
            action, own = leaf.sample(num_envs, generator)
            actions.append(action)
            log_prob += own
        return actions, log_prob.float()


class _Uniform:
    """One leaf of a space. The bounds of each number decide its distribution."""

    def __init__(self, space: ArraySpace) -> None:
        self._shape, self._dtype = array_shape(space), tensor_dtype(space)
        low, high = (torch.from_numpy(np.asarray(bound, np.float64).reshape(-1)) for bound in bounds(space))
        self._low, self._high = low, high
        self._integer = not self._dtype.is_floating_point
        low_known, high_known = low.isfinite(), high.isfinite()
        self._neither = ~low_known & ~high_known
        self._above, self._below = low_known & ~high_known, ~low_known & high_known
        self._bounded = bool((low_known & high_known).all())
        self._width = torch.where(low_known & high_known, high - low + self._integer, 1.0)
        self._constant = -float(self._width.log().sum())

    def sample(self, num_envs: int, generator: Generator | None) -> tuple[Tensor, Tensor]:
        size = (num_envs, prod(self._shape))
        drawing: Any = {"dtype": torch.float64, "generator": generator, "device": "cpu"}
        drawn = self._low + torch.rand(size, **drawing) * self._width
        log_prob = torch.full((num_envs,), self._constant, dtype=torch.float64, device="cpu")
        if not self._bounded:
            normal = torch.randn(size, **drawing)
            away = torch.empty_like(drawn).exponential_(generator=generator)
            drawn = torch.where(self._neither, normal, drawn)
            drawn = torch.where(self._above, self._low + away, drawn)
            drawn = torch.where(self._below, self._high - away, drawn)
            log_prob -= torch.where(self._neither, 0.5 * normal**2 + 0.5 * log(2 * pi), 0.0).sum(1)
            log_prob -= torch.where(self._above | self._below, away, 0.0).sum(1)
        if self._integer:
            drawn = drawn.floor()
        return drawn.to(self._dtype).reshape(num_envs, *self._shape), log_prob


def random_policy(action_space: Any) -> Callable[..., object]:
    """Return a policy of uniform random actions, for a space of Gymnasium or a spec of TorchRL."""
    if isinstance(action_space, gymnasium.Space):
        return RandomPolicy(action_space)
    from torchrl.modules import RandomPolicy as OfSpec

    return OfSpec(None)  # type: ignore[no-any-return]  # the environment draws them


def _num_envs(observation: Any) -> int:
    """Return the number of environments in a tensor, or in dicts and tuples of tensors."""
    while isinstance(observation, dict | tuple):
        observation = next(iter(observation.values() if isinstance(observation, dict) else observation))
    return len(observation)
