"""The Gymnasium spaces that are supported, and their tensors and keys in a batch."""

from typing import Literal

import numpy as np
import torch
from gymnasium.spaces import Dict

from rollfleet.data.batch import ACTION, OBSERVATION, RESERVED, Key
from rollfleet.envs.space_tree import ArraySpace, Space, SpaceTree, array_dtype, array_leaves, array_shape
from rollfleet.errors import EnvironmentInvalid


def supported(space: object, role: Literal["observation", "action"], source: str) -> Space:
    """Return a space of a single environment if it is supported; `source` names the environment in messages.

    Raises:
        EnvironmentInvalid: A leaf is of another kind, or torch lacks its dtype, or a name in a Dict is reserved.
    """
    for path, leaf in array_leaves(space, role, source):
        where = f"{role} space {leaf}" + (f" at {list(path)}" if path else "")
        try:
            torch.from_numpy(np.empty(0, array_dtype(leaf)))
        except (TypeError, ValueError) as exc:
            raise EnvironmentInvalid(f"{source}: {where} has dtype {leaf.dtype}, which torch does not support") from exc
        if not all(isinstance(name, str) and name for name in path):
            raise EnvironmentInvalid(f"{source}: {where}: names in a Dict must be strings that are not empty")
        if role == "observation" and isinstance(space, Dict) and path[0] in RESERVED:
            raise EnvironmentInvalid(f"{source}: {where}: {path[0]!r} is reserved in a batch; rename it in a wrapper")
    return space  # type: ignore[return-value]


def tensor_dtype(space: ArraySpace) -> torch.dtype:
    """Return the dtype of tensors of elements of `space`."""
    return torch.from_numpy(np.empty(0, array_dtype(space))).dtype


def observation_keys(tree: SpaceTree) -> list[Key]:
    """Return the keys of an observation's leaves in a batch: at the root for a Dict, else under `observation`."""
    return [path if isinstance(tree.space, Dict) else (*OBSERVATION, *path) for path in tree.leaves]


def action_keys(tree: SpaceTree) -> list[Key]:
    """Return the keys of an action's leaves in a batch."""
    return [(*ACTION, *path) for path in tree.leaves]


def described(space: ArraySpace, num_envs: int) -> str:
    """Describe the dtype and shape of `num_envs` elements, for a message."""
    return f"{array_dtype(space)} {[num_envs, *array_shape(space)]} from {space}"
