"""Spaces as trees: Dict and Tuple are the branches, each leaf is an array. Most spaces are one leaf and no branch.

The processes of environments need this much: no torch here.
"""

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias, TypeVar

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

ArraySpace: TypeAlias = Box | Discrete | MultiDiscrete | MultiBinary
Space: TypeAlias = gymnasium.Space[Any]
Path: TypeAlias = tuple[str, ...]
T = TypeVar("T")


class SpaceTree:
    """The leaves of a space, and the way between a value and its leaves.

    Attributes:
        space: Itself.
        leaves: By path: names in a Dict, "0", "1", ... in a Tuple; of a space without branches `()` alone.
        plain: It is one leaf and no branch.
    """

    def __init__(self, space: Space) -> None:
        """Of a space that is `supported`."""
        self.space = space
        self.leaves: dict[Path, ArraySpace] = dict(leaves_of(space))
        self.plain = not isinstance(space, Dict | Tuple)

    def split(self, value: Any) -> list[Any]:
        """The leaves of a value (dicts, tuples; a Tuple's may also be a mapping with "0", "1", ...), in order."""
        return [value] if self.plain else list(_split(self.space, value))

    def join(self, leaves: Sequence[T]) -> Any:
        """The inverse: dicts and tuples of `leaves`, or the one there is."""
        return leaves[0] if self.plain else _join(self.space, iter(leaves))


def array_dtype(space: ArraySpace) -> np.dtype[Any]:
    """Of arrays that hold elements of `space`: int64 for Discrete, as in TorchRL, else the space's own."""
    return np.dtype(np.int64) if isinstance(space, Discrete) else np.dtype(space.dtype)


def array_shape(space: ArraySpace) -> tuple[int, ...]:
    """Of one element of `space`: () for Discrete."""
    return () if isinstance(space, Discrete) else space.shape


def leaves_of(space: Space, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """The leaves of a space by path, whatever they are."""
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
