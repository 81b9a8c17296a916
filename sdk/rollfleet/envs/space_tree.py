"""Spaces as trees: Dict and Tuple are the branches, each leaf is an array. Most spaces are a single leaf.

The processes of environments import this file; it must not import torch.
"""

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias, TypeVar

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from numpy.typing import NDArray

from rollfleet.arguments import shown
from rollfleet.errors import EnvironmentInvalid

ArraySpace: TypeAlias = Box | Discrete | MultiDiscrete | MultiBinary
Space: TypeAlias = gymnasium.Space[Any]
Path: TypeAlias = tuple[str, ...]
Array: TypeAlias = NDArray[Any]
T = TypeVar("T")
_LEAVES = "Box, Discrete, MultiDiscrete and MultiBinary are, alone or in Dict and Tuple"


class SpaceTree:
    """The leaves of a space, and conversions between values and their leaves.

    Attributes:
        leaves: Its leaves by path: names in a Dict, "0", "1", ... in a Tuple; `()` for a space of a single leaf.
        plain: Whether the space is a single leaf.

    Example:
        >>> tree = SpaceTree(Dict(image=Box(0, 255, (8, 8), np.uint8), speed=Discrete(3)))
        >>> tree.join(tree.split({"image": "pixels", "speed": 2}))
        {'image': 'pixels', 'speed': 2}
    """

    def __init__(self, space: Space) -> None:
        """Take a `supported` space."""
        self.space = space
        self.leaves: dict[Path, ArraySpace] = dict(leaves_of(space))
        self.plain = not isinstance(space, Dict | Tuple)

    def split(self, value: Any) -> list[Any]:
        """Return the leaves of a value in order. For a Tuple it may be a tuple or a mapping of "0", "1", ...."""
        try:
            return [value] if self.plain else list(_split(self.space, value))
        except (IndexError, KeyError, TypeError, ValueError) as error:
            raise EnvironmentInvalid(f"the value {shown(value)} lacks parts of {self.space}: {error}") from None

    def join(self, leaves: Sequence[T]) -> Any:
        """Return a value from its leaves: the inverse of `split`."""
        return leaves[0] if self.plain else _join(self.space, iter(leaves))


def array_dtype(space: ArraySpace) -> np.dtype[Any]:
    """Return the dtype of arrays of elements: int64 for Discrete, as in TorchRL, else the space's own."""
    return np.dtype(np.int64) if isinstance(space, Discrete) else np.dtype(space.dtype)


def array_shape(space: ArraySpace) -> tuple[int, ...]:
    """Return the shape of one element: () for Discrete."""
    return () if isinstance(space, Discrete) else space.shape


def bounds(space: ArraySpace) -> tuple[Any, Any]:
    """Return the least and the greatest value of each number of an element; infinite where a Box has no bound."""
    if isinstance(space, Box):
        return np.where(space.bounded_below, space.low, -np.inf), np.where(space.bounded_above, space.high, np.inf)
    if isinstance(space, MultiBinary):
        return np.zeros(space.shape), np.ones(space.shape)
    return space.start, space.start + (space.n if isinstance(space, Discrete) else space.nvec) - 1


def unheld(values: Array, dtype: np.dtype[Any]) -> list[Any]:
    """Return the first of the values that an integer dtype cannot hold: numpy would cut or wrap it. Empty: none.

    Example:
        >>> unheld(np.array([7.0, 0.5]), np.dtype(np.uint8)), unheld(np.array([7.0]), np.dtype(np.uint8))
        ([0.5], [])
    """
    if dtype.kind not in "iub" or np.can_cast(values.dtype, dtype):
        return []
    wrong: Array = values
    if values.dtype.kind in "iubf":
        with np.errstate(invalid="ignore"):  # NaN and infinity
            wrong = values[values.astype(dtype) != values]
    first: list[Any] = wrong.flatten()[:1].tolist()
    return first


def array_leaves(space: object, role: str, source: str) -> list[tuple[Path, ArraySpace]]:
    """Return the leaves of a space by path; `source` names the environment in messages.

    Raises:
        EnvironmentInvalid: It is no space, has no leaf, or one of another kind.
    """
    if not isinstance(space, gymnasium.Space):
        raise EnvironmentInvalid(f"{source}: {role} space {space!r} is not a gymnasium.Space")
    leaves = list(leaves_of(space))
    if not leaves:
        raise EnvironmentInvalid(f"{source}: {role} space {space} is empty")
    for path, leaf in leaves:
        if not isinstance(leaf, ArraySpace):
            where = f"{role} space {leaf}" + (f" at {list(path)}" if path else "")
            raise EnvironmentInvalid(
                f"{source}: {where} is not supported; {_LEAVES}. Write a wrapper that maps it to one of these"
            )
    return leaves


def leaves_of(space: Space, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Yield the leaves of a space by path, supported or not."""
    if not isinstance(space, Dict | Tuple):
        yield path, space
    for name, inner in _children(space):
        yield from leaves_of(inner, (*path, name))


def _children(space: Space) -> Iterator[tuple[Any, Space]]:
    if isinstance(space, Dict):
        yield from space.spaces.items()
    elif isinstance(space, Tuple):
        yield from ((str(index), inner) for index, inner in enumerate(space.spaces))


def _split(space: Space, value: Any) -> Iterator[Any]:
    if not isinstance(space, Dict | Tuple):
        yield value
    by_position = isinstance(value, tuple | list)
    for name, inner in _children(space):
        yield from _split(inner, value[int(name)] if by_position else value[name])


def _join(space: Space, leaves: Iterator[Any]) -> Any:
    if isinstance(space, Dict):
        return {name: _join(inner, leaves) for name, inner in _children(space)}
    if isinstance(space, Tuple):
        return tuple(_join(inner, leaves) for _, inner in _children(space))
    return next(leaves)
