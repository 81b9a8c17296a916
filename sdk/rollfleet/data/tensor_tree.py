"""A TensorDict `[envs, T]` of any form as flat tensors `[envs, T, ...]`, and back.

Flat tensors lack the batch dimensions of groups, and lazy stacks of agents of different kinds: the `Structure` has
these. Two kinds of entries have no shape `[envs, T, ...]`, and stand under keys that begin with one of `UNEVEN`: a
tensor whose shape changes from frame to frame is one row of numbers beside the sizes of each frame, and values that are
not tensors are JSON, never code.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import torch
from pydantic import ConfigDict, Field, with_config
from torch import Tensor

from rollfleet.errors import EnvironmentInvalid, MessageCorrupt

if TYPE_CHECKING:
    from tensordict import TensorDict

Key: TypeAlias = tuple[str, ...]

_NUMBERS, _SIZES, _JSON = "#numbers", "#sizes", "#json"
UNEVEN = (_NUMBERS, _SIZES, _JSON)
"""First parts of keys: the numbers `[n]` of all frames, their sizes int64 `[envs * T, dimensions]`; JSON, uint8 `[n]`.
"""


def key_of(name: object) -> Key:
    """Return the key of a name in a TensorDict, where a key of one part may be a plain string."""
    return name if isinstance(name, tuple) else (str(name),)


@with_config(ConfigDict(strict=True, extra="forbid"))
@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A sub-TensorDict with batch dimensions of its own, such as a group of agents: `[envs, T, *sizes]`.

    `dim`: it is a lazy stack along this dimension, of entries under the names "0", "1", ...; None: it is none.
    """

    path: Key
    sizes: tuple[Annotated[int, Field(ge=0, le=1 << 40)], ...]
    dim: Annotated[int, Field(ge=2, le=32)] | None = None


Structure: TypeAlias = tuple[Group, ...]
"""The form of a TensorDict `[envs, T]`: its sub-TensorDicts that are groups or lazy stacks, or have no tensor."""


def flatten(batch: "TensorDict") -> tuple[dict[Key, Tensor], Structure]:
    """Return the tensors of a TensorDict `[envs, T]` by key, and its structure. Dense tensors are not copied.

    Raises:
        EnvironmentInvalid: A value is neither a tensor nor can be written as JSON; names its key.

    Example:
        >>> from tensordict import TensorDict
        >>> agents = TensorDict({"reward": torch.ones(2, 5, 3, 1)}, batch_size=[2, 5, 3])
        >>> flat, structure = flatten(TensorDict({"agents": agents}, batch_size=[2, 5]))
        >>> {key: list(value.shape) for key, value in flat.items()}, structure
        ({('agents', 'reward'): [2, 5, 3, 1]}, (Group(path=('agents',), sizes=(3,), dim=None),))
        >>> rebuild(flat, structure)["agents"].batch_size
        torch.Size([2, 5, 3])
    """
    tensors: dict[Key, Tensor] = {}
    groups: list[Group] = []
    _flatten(batch, (), tensors, groups)
    return tensors, tuple(groups)


def _flatten(node: Any, path: Key, tensors: dict[Key, Tensor], groups: list[Group]) -> None:
    """Add a TensorDict `[envs, T, ...]`."""
    from tensordict import LazyStackedTensorDict, is_non_tensor, is_tensor_collection

    sizes, lazy = tuple(node.batch_size[2:]), isinstance(node, LazyStackedTensorDict)
    if lazy and node.stack_dim >= 2:
        groups.append(Group(path=path, sizes=sizes, dim=node.stack_dim))
        for index, entry in enumerate(node.tensordicts):
            _flatten(entry, (*path, str(index)), tensors, groups)
        return
    plain = False
    for name in sorted(node.keys()) if lazy else node.keys():
        key = (*path, name)
        try:
            value = node.get(name)
        except RuntimeError:  # tensors of different shapes cannot be stacked
            frames = [frame.get(name) for row in node.unbind(0) for frame in row.unbind(0)]
            tensors[_NUMBERS, *key] = torch.cat([frame.reshape(-1) for frame in frames])
            shapes = [frame.shape for frame in frames]
            tensors[_SIZES, *key] = torch.tensor(shapes, dtype=torch.int64, device="cpu")
            continue
        if isinstance(value, Tensor):
            tensors[key] = value
            plain = True
        elif is_non_tensor(value):
            tensors[_JSON, *key] = _encoded(key, value.tolist())
        elif is_tensor_collection(value):
            _flatten(value, key, tensors, groups)
    if path and (sizes or not plain):
        groups.append(Group(path=path, sizes=sizes))


def _encoded(key: Key, values: Any) -> Tensor:
    try:
        return torch.frombuffer(bytearray(json.dumps(values).encode()), dtype=torch.uint8)
    except (TypeError, ValueError) as error:
        raise EnvironmentInvalid(
            f"{key} is neither a tensor nor can it be written as JSON: {error}; return text, numbers, or lists "
            "and dicts of these"
        ) from error


def rebuild(flat: Mapping[Key, Tensor], structure: Structure) -> "TensorDict":
    """Return the TensorDict `[envs, T]` of these tensors: the inverse of `flatten`.

    Raises:
        MessageCorrupt: Tensors and structure do not fit. All is checked before use: a hostile peer may have sent it.
    """
    even = {key: value for key, value in flat.items() if key[0] not in UNEVEN}
    try:
        root = nested(even)
        for group in structure:
            _node(root, group.path)
        batch_size = next(iter(even.values())).shape[:2]
        batch = _built(root, (), batch_size, {group.path: group for group in structure})
        ragged: dict[Key, list[Tensor]] = {}
        for (form, *name), value in flat.items():
            if form == _JSON:
                owner = _owner(batch, name)
                owner.set(name[-1], _values(json.loads(value.numpy().tobytes()), owner.batch_size))
            elif form == _NUMBERS:
                sizes = flat[_SIZES, *name]
                if sizes.ndim != 2 or len(sizes) != batch_size.numel():  # or 600 bytes could ask for gigabytes
                    raise ValueError(f"sizes of shape {list(sizes.shape)} for {batch_size.numel()} frames")
                parts = zip(value.split(sizes.prod(1).tolist()), sizes.tolist(), strict=True)
                ragged[tuple(name)] = [numbers.view(shape) for numbers, shape in parts]
        if ragged:
            batch = _with_ragged(batch, ragged)
        batch.names = [None, "time"]
    except (AttributeError, IndexError, KeyError, RecursionError, RuntimeError, TypeError, ValueError) as error:
        raise MessageCorrupt(f"tensors and their structure do not fit: {error}") from error
    found: TensorDict = batch
    return found


def nested(flat: Mapping[Key, object]) -> dict[str, Any]:
    """Return nested dicts, one level for each part of a key.

    Raises:
        MessageCorrupt: A key is a tensor and a group of tensors at once.
    """
    root: dict[str, Any] = {}
    for key, value in flat.items():
        group = root
        for name in key[:-1]:
            inner = group.setdefault(name, {})
            if not isinstance(inner, dict):
                raise MessageCorrupt(f"key {key} lies inside {name!r}, which is a tensor")
            group = inner
        if key[-1] in group:
            raise MessageCorrupt(f"key {key} is a tensor and a group of tensors at once")
        group[key[-1]] = value
    return root


def grouped(
    flat: Mapping[Key, Tensor],
    sizes: torch.Size,
    names: Sequence[str | None] | None = None,
    device: torch.device | None = None,
) -> "TensorDict":
    """Return a TensorDict of tensors `[*sizes, ...]`, with a group for each first part of a key.

    It does not check their shapes and device: TensorDict's own checks would take as long as all else in a small batch.

    Raises:
        MessageCorrupt: See `nested`.
    """
    from tensordict import TensorDict

    def made(node: dict[str, Any]) -> TensorDict:
        values = {name: made(value) if isinstance(value, dict) else value for name, value in node.items()}
        return TensorDict._new_unsafe(values, batch_size=sizes, names=names and [*names], device=device)

    return made(nested(flat))


def _node(root: dict[str, Any], path: Key) -> dict[str, Any]:
    for name in path:
        root = root.setdefault(name, {})
    if not isinstance(root, dict):
        raise KeyError(path)
    return root


def _built(node: dict[str, Any], path: Key, batch: tuple[int, ...], groups: Mapping[Key, Group]) -> Any:
    from tensordict import LazyStackedTensorDict, TensorDict

    group = groups.get(path)
    dim = None if group is None else group.dim
    if group is not None and dim is None:
        batch = (*batch[:2], *group.sizes)
    inner = {
        name: _built(value, (*path, name), batch, groups) if isinstance(value, dict) else value
        for name, value in node.items()
    }
    if group is None or dim is None:
        return TensorDict(inner, batch_size=batch)
    return LazyStackedTensorDict(*(inner[str(index)] for index in range(group.sizes[dim - 2])), stack_dim=dim)


def _owner(batch: Any, key: Sequence[str]) -> Any:
    """Return the TensorDict that holds an entry; in lazy stacks by its position."""
    for name in key[:-1]:
        batch = batch.tensordicts[int(name)] if hasattr(batch, "tensordicts") else batch.get(name)
    return batch


def _values(value: Any, sizes: Sequence[int]) -> Any:
    """Return nested lists of these sizes as an entry of a TensorDict."""
    from tensordict import NonTensorData, TensorDict

    if not sizes:
        return NonTensorData(value)
    if len(value) != sizes[0]:
        raise ValueError(f"{len(value)} values for {sizes[0]}")
    return TensorDict.maybe_dense_stack([_values(each, sizes[1:]) for each in value], 0)


def _with_ragged(batch: Any, ragged: Mapping[Key, list[Tensor]]) -> Any:
    """Return the TensorDict with these tensors: a lazy stack, as of frames that were stacked one by one."""
    from tensordict import TensorDict

    rows = []
    for env, row in enumerate(batch.unbind(0)):
        frames = list(row.unbind(0))
        for t, frame in enumerate(frames):
            for key, values in ragged.items():
                _owner(frame, key).set(key[-1], values[env * len(frames) + t])
        rows.append(TensorDict.maybe_dense_stack(frames, 0))
    return TensorDict.maybe_dense_stack(rows, 0)
