"""A TensorDict `[envs, T]` of any form as flat tensors `[envs, T, ...]`, and back.

Flat tensors lack four things, which a `Structure` has: the batch dimensions of groups, groups that are lazy stacks
(agents of different kinds), tensors whose shape changes from frame to frame, and values that are not tensors. The last
two are padded to one shape, beside the size of each frame. A value that is not a tensor travels as JSON, never as code.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import torch
from pydantic import ConfigDict, Field, with_config
from torch import Tensor

from rollfleet.errors import EnvironmentInvalid, MessageCorrupt

if TYPE_CHECKING:
    from tensordict import TensorDict

Key: TypeAlias = tuple[str, ...]
SIZES = "#sizes"
"""The first part of the keys under which the sizes of padded tensors are, int64 `[envs, T, dimensions]`."""

_STRICT = ConfigDict(strict=True, extra="forbid")
_Sizes: TypeAlias = tuple[Annotated[int, Field(ge=0, le=1 << 40)], ...]


def key_of(name: object) -> Key:
    """Return the key of a name in a TensorDict, where a key of one part may be a plain string."""
    return name if isinstance(name, tuple) else (str(name),)


@with_config(_STRICT)
@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A sub-TensorDict with batch dimensions of its own, such as a group of agents: `[envs, T, *sizes]`."""

    path: Key
    sizes: _Sizes


@with_config(_STRICT)
@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """A sub-TensorDict that is a lazy stack along `dim`, with `count` entries under the names "0", "1", ...."""

    path: Key
    dim: int
    count: int


@with_config(_STRICT)
@dataclass(frozen=True, slots=True, kw_only=True)
class Structure:
    """The form of a TensorDict `[envs, T]`, apart from the names, dtypes and shapes of its tensors.

    Attributes:
        groups: Sub-TensorDicts with batch dimensions of their own, and those without a tensor.
        stacks: Sub-TensorDicts that are lazy stacks.
        ragged: Tensors whose shape differs between frames.
        values: Entries that are not tensors.
    """

    groups: tuple[Group, ...] = ()
    stacks: tuple[Stack, ...] = ()
    ragged: tuple[Key, ...] = ()
    values: tuple[Key, ...] = ()


def flatten(batch: "TensorDict") -> tuple[dict[Key, Tensor], Structure]:
    """Return the tensors of a TensorDict `[envs, T]` by key, and its structure. Dense tensors are not copied.

    Raises:
        EnvironmentInvalid: A value is neither a tensor nor can be written as JSON; names its key.

    Example:
        >>> from tensordict import TensorDict
        >>> agents = TensorDict({"reward": torch.ones(2, 5, 3, 1)}, batch_size=[2, 5, 3])
        >>> flat, structure = flatten(TensorDict({"agents": agents}, batch_size=[2, 5]))
        >>> {key: list(value.shape) for key, value in flat.items()}, structure.groups
        ({('agents', 'reward'): [2, 5, 3, 1]}, (Group(path=('agents',), sizes=(3,)),))
        >>> rebuild(flat, structure)["agents"].batch_size
        torch.Size([2, 5, 3])
    """
    parts = _Parts()
    parts.add(batch, ())
    structure = Structure(
        groups=tuple(parts.groups), stacks=tuple(parts.stacks), ragged=tuple(parts.ragged), values=tuple(parts.values)
    )
    return parts.tensors, structure


class _Parts:
    def __init__(self) -> None:
        self.tensors: dict[Key, Tensor] = {}
        self.groups: list[Group] = []
        self.stacks: list[Stack] = []
        self.ragged: list[Key] = []
        self.values: list[Key] = []

    def add(self, node: Any, path: Key) -> None:
        """Add a TensorDict `[envs, T, ...]`."""
        from tensordict import LazyStackedTensorDict, is_tensor_collection

        if isinstance(node, LazyStackedTensorDict) and node.stack_dim >= 2:
            self.stacks.append(Stack(path=path, dim=node.stack_dim, count=len(node.tensordicts)))
            for index, entry in enumerate(node.tensordicts):
                self.add(entry, (*path, str(index)))
            return
        plain = False
        for name in sorted(node.keys()) if isinstance(node, LazyStackedTensorDict) else node.keys():
            key = (*path, name)
            try:
                value = node.get(name)
            except RuntimeError:  # tensors of different shapes cannot be stacked
                value = None
            if value is None:
                self._pad(key, [[frame.get(name) for frame in row.unbind(0)] for row in node.unbind(0)])
                self.ragged.append(key)
            elif isinstance(value, Tensor):
                self.tensors[key] = value
                plain = True
            elif _is_value(value):
                self._encode(key, value)
            elif is_tensor_collection(value):
                self.add(value, key)
        if path and (node.batch_dims != 2 or not plain):
            self.groups.append(Group(path=path, sizes=tuple(node.batch_size[2:])))

    def _encode(self, key: Key, value: Any) -> None:
        def text(frame: Any) -> Tensor:
            return torch.frombuffer(bytearray(json.dumps(frame).encode()), dtype=torch.uint8)

        try:
            self._pad(key, [[text(frame) for frame in row] for row in value.tolist()])
        except (TypeError, ValueError) as error:
            raise EnvironmentInvalid(
                f"{key} is neither a tensor nor can it be written as JSON: {error}; return text, numbers, or lists "
                "and dicts of these"
            ) from error
        self.values.append(key)

    def _pad(self, key: Key, frames: list[list[Tensor]]) -> None:
        shapes = [[frame.shape for frame in row] for row in frames]
        longest = [max(sizes) for sizes in zip(*(shape for row in shapes for shape in row), strict=True)]
        padded = frames[0][0].new_zeros((len(frames), len(frames[0]), *longest))
        for row, into in zip(frames, padded, strict=True):
            for frame, cell in zip(row, into, strict=True):
                cell[tuple(slice(size) for size in frame.shape)] = frame
        self.tensors[key] = padded
        self.tensors[SIZES, *key] = torch.tensor(shapes, dtype=torch.int64, device="cpu").reshape(
            len(frames), len(frames[0]), len(longest)
        )


def rebuild(flat: Mapping[Key, Tensor], structure: Structure) -> "TensorDict":
    """Return the TensorDict `[envs, T]` of these tensors: the inverse of `flatten`.

    Raises:
        MessageCorrupt: Tensors and structure do not fit. All is checked before use: a hostile peer may have sent it.
    """
    from tensordict import TensorDict

    padded = {*structure.ragged, *structure.values}
    batch_size = next(iter(flat.values())).shape[:2]
    root: dict[str, Any] = {}
    try:
        for key, value in flat.items():
            if key not in padded and key[0] != SIZES:
                _node(root, key[:-1])[key[-1]] = value
        for path in [group.path for group in structure.groups] + [stack.path for stack in structure.stacks]:
            _node(root, path)
        groups = {group.path: group.sizes for group in structure.groups}
        stacks: dict[Key, Stack] = {stack.path: stack for stack in structure.stacks}
        batch = _built(root, (), batch_size, groups, stacks)
        for key in structure.values:
            _owner(batch, key).set(key[-1], _values(_frames(flat, key), batch_size, groups.get(key[:-1], ())))
        if structure.ragged:
            batch = _with_ragged(batch, {key: _frames(flat, key) for key in structure.ragged})
        batch.names = [None, "time"]
    except (AttributeError, IndexError, KeyError, RecursionError, RuntimeError, TypeError, ValueError) as error:
        raise MessageCorrupt(f"tensors and their structure do not fit: {error}") from error
    found: TensorDict = batch
    return found


def _node(root: dict[str, Any], path: Key) -> dict[str, Any]:
    for name in path:
        root = root.setdefault(name, {})
    if not isinstance(root, dict):
        raise KeyError(path)
    return root


def _built(node: dict[str, Any], path: Key, batch: Any, groups: Mapping[Key, Any], stacks: Mapping[Key, Stack]) -> Any:
    from tensordict import LazyStackedTensorDict, TensorDict

    own = (*batch[:2], *groups[path]) if path in groups else batch
    inner = {
        name: _built(value, (*path, name), own, groups, stacks) if isinstance(value, dict) else value
        for name, value in node.items()
    }
    if (stack := stacks.get(path)) is None:
        return TensorDict(inner, batch_size=own)
    return LazyStackedTensorDict(*(inner[str(index)] for index in range(stack.count)), stack_dim=stack.dim)


def _owner(batch: Any, key: Key) -> Any:
    """Return the TensorDict that holds an entry; in lazy stacks by its position."""
    for name in key[:-1]:
        batch = batch.tensordicts[int(name)] if hasattr(batch, "tensordicts") else batch.get(name)
    return batch


def _frames(flat: Mapping[Key, Tensor], key: Key) -> list[list[Tensor]]:
    """Return the tensors of each frame without their padding."""
    padded, sizes = flat[key], flat[SIZES, *key]
    if sizes.shape != (*padded.shape[:2], padded.ndim - 2) or sizes.dtype != torch.int64 or bool((sizes < 0).any()):
        raise ValueError(f"the sizes of {key} are {sizes.dtype} {list(sizes.shape)}")
    return [
        [cell[tuple(slice(size) for size in shape)] for cell, shape in zip(row, of_row, strict=True)]
        for row, of_row in zip(padded, sizes.tolist(), strict=True)
    ]


def _values(frames: list[list[Tensor]], batch: Any, sizes: tuple[int, ...]) -> Any:
    from tensordict import NonTensorData, TensorDict

    def stacked(value: Any, dims: int) -> Any:
        if not dims:
            return NonTensorData(value)
        return TensorDict.maybe_dense_stack([stacked(each, dims - 1) for each in value], 0)

    decoded = [[json.loads(bytes(frame.tolist())) for frame in row] for row in frames]
    return stacked(decoded, len(batch[:2]) + len(sizes))


def _with_ragged(batch: Any, ragged: Mapping[Key, list[list[Tensor]]]) -> Any:
    """Return the TensorDict with these tensors: a lazy stack, as of frames that were stacked one by one."""
    from tensordict import TensorDict

    rows = []
    for env, row in enumerate(batch.unbind(0)):
        frames = []
        for t, frame in enumerate(row.unbind(0)):
            for key, values in ragged.items():
                _owner(frame, key).set(key[-1], values[env][t])
            frames.append(frame)
        rows.append(TensorDict.maybe_dense_stack(frames, 0))
    return TensorDict.maybe_dense_stack(rows, 0)


def _is_value(value: object) -> bool:
    from tensordict import NonTensorData, NonTensorStack

    return isinstance(value, NonTensorData | NonTensorStack)
