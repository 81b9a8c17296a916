"""Which Gymnasium spaces are supported, and what they mean for tensors and for the keys of a batch."""

from typing import Literal

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Dict

from rollfleet.data.batch import ACTION, OBSERVATION, RESERVED, Key
from rollfleet.envs.space_tree import ArraySpace, Space, SpaceTree, array_dtype, array_shape, leaves_of
from rollfleet.errors import EnvironmentInvalid

_LEAVES = "Box, Discrete, MultiDiscrete and MultiBinary are, alone or in Dict and Tuple"


def supported(space: object, role: Literal["observation", "action"], source: str) -> Space:
    """`space` itself, if it is one of those that are supported.

    Args:
        space: Of a single environment.
        role: Which of its spaces this is.
        source: What the environment is called, for the message.

    Raises:
        EnvironmentInvalid: A leaf is of another kind, or its dtype has no tensors, or a name in a Dict is not free.
    """
    if not isinstance(space, gymnasium.Space):
        raise EnvironmentInvalid(f"{source}: {role} space {space!r} is not a gymnasium.Space")
    leaves = list(leaves_of(space))
    if not leaves:
        raise EnvironmentInvalid(f"{source}: {role} space {space} has nothing in it")
    for path, leaf in leaves:
        where = f"{role} space {leaf}" + (f" at {list(path)}" if path else "")
        if not isinstance(leaf, ArraySpace):
            raise EnvironmentInvalid(
                f"{source}: {where} is not supported; {_LEAVES}. Write a wrapper that maps it to one of these "
                "(env.wrappers)"
            )
        try:
            torch.from_numpy(np.empty(0, array_dtype(leaf)))
        except TypeError as exc:
            raise EnvironmentInvalid(f"{source}: {where} has dtype {leaf.dtype}, which has no tensors") from exc
        if not all(isinstance(name, str) and name for name in path):
            raise EnvironmentInvalid(f"{source}: {where}: names in a Dict must be strings, and not empty")
        if role == "observation" and isinstance(space, Dict) and path[0] in RESERVED:
            raise EnvironmentInvalid(
                f"{source}: {where}: {path[0]!r} is a key that the batch has for itself; give it another name in a "
                "wrapper (env.wrappers)"
            )
    return space


def tensor_dtype(space: ArraySpace) -> torch.dtype:
    """Of tensors that hold elements of `space`."""
    return torch.from_numpy(np.empty(0, array_dtype(space))).dtype


def observation_keys(tree: SpaceTree) -> list[Key]:
    """Where the leaves of an observation are in a batch: a Dict's at the root, others' in `observation`."""
    return [path if isinstance(tree.space, Dict) else (*OBSERVATION, *path) for path in tree.leaves]


def action_keys(tree: SpaceTree) -> list[Key]:
    """Where the leaves of an action are in a batch."""
    return [(*ACTION, *path) for path in tree.leaves]


def described(space: ArraySpace, num_envs: int) -> str:
    """What a batch of `num_envs` elements must look like, in words for a message."""
    return f"{array_dtype(space)} {[num_envs, *array_shape(space)]} from {space}"
