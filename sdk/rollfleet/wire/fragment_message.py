"""A fragment as one message: its tensors under keys that name their part, and its metadata.

Observations that are stacks of images are folded: see `rollfleet.wire.frame_stacks`.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rollfleet.data.batch import EPISODES, TRAJECTORY, Fragment, compact, is_episode_info
from rollfleet.data.tensor_tree import Structure
from rollfleet.errors import MessageCorrupt, MessageTooLarge
from rollfleet.wire.codec import LARGEST_BATCH_BYTES, Allocate, Buffer, Encoded, Key, decode, empty_buffer, encode
from rollfleet.wire.frame_stacks import Folded, fold, unfold
from rollfleet_api.job import Compression
from rollfleet_api.messages import MessageInvalid, pack, unpack
from rollfleet_api.transfers import BatchMeta
from rollfleet_api.versions import count_of

MOST_TIMES = 500
"""What decompressing and unfolding take together, in multiples of the message; next observations double it."""

_STEPS, _FINAL, _EPISODES = "steps", "final", "episodes"
_STRUCTURE = ("structure", "json")  # of TorchRL's environments only
_FOLDED = tuple(f"folded {part}" for part in Folded._fields)


def pack_fragment(
    fragment: Fragment,
    meta: BatchMeta,
    *,
    checksum: bool = True,
    folded: bool = True,
    compression: Compression = Compression.NONE,
) -> Encoded:
    """Encode a fragment. The message points at the fragment's tensors: they must not change until it is sent.

    Args:
        fragment: The fragment.
        meta: Session, round, version and frames.
        checksum: Add a checksum, so that the receiver notices changed bytes.
        folded: Look for stacks of images, and send each image once.
        compression: How to compress the tensors that gain from it, as far as `MOST_TIMES` allows.
    """
    tensors: dict[Key, Tensor] = {}
    unfolded_bytes = 0
    if fragment.structure is not None:
        fragment = compact(fragment)
        tensors[_STRUCTURE] = torch.frombuffer(bytearray(pack(fragment.structure)), dtype=torch.uint8)
    for key, tensor in fragment.steps.items():
        stacks = fold(tensor) if folded and key in fragment.final else None
        if stacks is None:
            tensors[_STEPS, *key] = tensor
        else:
            tensors |= {(part, *key): value for part, value in zip(_FOLDED, stacks, strict=True)}
            unfolded_bytes += tensor.nbytes
    tensors |= {(_FINAL, *key): tensor for key, tensor in fragment.final.items()}
    tensors |= {(_EPISODES, name): tensor for name, tensor in fragment.episodes.items()}
    rebuilt_bytes = unfolded_bytes + sum(tensor.nbytes for tensor in tensors.values())
    for each in (compression, Compression.LZ4, Compression.NONE):
        encoded = encode(pack(meta), tensors, checksum=checksum, compression=each)
        if rebuilt_bytes <= MOST_TIMES * encoded.nbytes:
            break
    return replace(encoded, saved_bytes=encoded.saved_bytes + unfolded_bytes)


def unpack_fragment(
    buffer: Buffer, *, checksum: bool = True, allocate: Allocate = empty_buffer, most: tuple[int, int] = (0, 0)
) -> tuple[BatchMeta, Fragment]:
    """Decode a fragment. Its tensors are views of `buffer`, or have memory of `allocate`: compressed and folded ones.

    `most` are the environments and T at most, by the job; 0: no bound.

    Raises:
        MessageCorrupt: `pack_fragment` did not make these bytes, or the fragment is larger than `most`.
        MessageTooLarge: It would take more than `MOST_TIMES` its own memory, or `LARGEST_BATCH_BYTES`.
    """

    def check(shapes: Mapping[Key, tuple[int, ...]]) -> None:
        shape = shapes.get((_STEPS, *TRAJECTORY), ())
        if any(own > bound > 0 for own, bound in zip(shape, most, strict=False)):
            raise MessageCorrupt(f"a fragment of shape {list(shape)}; the job's have {list(most)} at most")

    taken, most_bytes = 0, min(MOST_TIMES * len(buffer), LARGEST_BATCH_BYTES)

    def bounded(nbytes: int) -> NDArray[np.uint8]:
        nonlocal taken
        if (taken := taken + nbytes) > most_bytes:
            raise MessageTooLarge(taken, most_bytes, "a decompressed batch")
        return allocate(nbytes)

    header, tensors = decode(buffer, checksum=checksum, allocate=bounded, check=check)
    try:
        meta = unpack(BatchMeta, header)
        names = [*EPISODES, *(key[1] for key in tensors if key[0] == _EPISODES and is_episode_info(key[1:]))]
        episodes = {name: tensors.pop((_EPISODES, name)) for name in names}
        form = tensors.pop(_STRUCTURE, None)
        structure = None if form is None else unpack(Structure, bytes(form.numpy()))
    except (MessageInvalid, KeyError) as error:
        raise MessageCorrupt(f"no batch: {error}") from error
    parts: dict[str, dict[Key, Tensor]] = {part: {} for part in (_STEPS, _FINAL, *_FOLDED)}
    for (part, *key), tensor in tensors.items():
        if part not in parts or not key:
            raise MessageCorrupt(f"no batch: it holds {(part, *key)}")
        parts[part][tuple(key)] = tensor
    fragment = Fragment(
        steps={**parts[_STEPS], **_unfolded(parts, bounded)},
        final=parts[_FINAL],
        episodes=episodes,
        version=count_of(meta.version),
        structure=structure,
    )
    return meta, fragment


def _unfolded(parts: dict[str, dict[Key, Tensor]], allocate: Allocate) -> dict[Key, Tensor]:
    images, *others = (parts[part] for part in _FOLDED)
    if any(other.keys() != images.keys() for other in others) or images.keys() & parts[_STEPS].keys():
        raise MessageCorrupt(f"no batch: parts of folded observations are missing, or a key occurs twice: {[*images]}")
    return {key: unfold(Folded(images[key], *(other[key] for other in others)), allocate) for key in images}
