"""A fragment as one message: its tensors under keys that name their part, and its metadata.

Observations that are stacks of images are folded: see `rollfleet.wire.frame_stacks`.
"""

import torch
from torch import Tensor

from rollfleet.data.batch import EPISODES, Fragment, compact
from rollfleet.data.tensor_tree import Structure
from rollfleet.errors import MessageCorrupt
from rollfleet.wire.codec import Allocate, Buffer, Encoded, Key, decode, empty_buffer, encode
from rollfleet.wire.frame_stacks import Folded, fold, unfold
from rollfleet_api.job import Compression
from rollfleet_api.messages import BatchMeta, MessageInvalid, pack, unpack
from rollfleet_api.versions import count_of

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
        compression: How to compress the tensors that gain from it.
    """
    tensors: dict[Key, Tensor] = {}
    if fragment.structure is not None:
        fragment = compact(fragment)
        tensors[_STRUCTURE] = torch.frombuffer(bytearray(pack(fragment.structure)), dtype=torch.uint8)
    for key, tensor in fragment.steps.items():
        stacks = fold(tensor) if folded and key in fragment.final else None
        if stacks is None:
            tensors[_STEPS, *key] = tensor
        else:
            tensors |= {(part, *key): value for part, value in zip(_FOLDED, stacks, strict=True)}
    tensors |= {(_FINAL, *key): tensor for key, tensor in fragment.final.items()}
    tensors |= {(_EPISODES, name): tensor for name, tensor in fragment.episodes.items()}
    return encode(pack(meta), tensors, checksum=checksum, compression=compression)


def unpack_fragment(
    buffer: Buffer, *, checksum: bool = True, allocate: Allocate = empty_buffer
) -> tuple[BatchMeta, Fragment]:
    """Decode a fragment. Its tensors are views of `buffer`, or have memory of `allocate`: compressed and folded ones.

    Raises:
        MessageCorrupt: `pack_fragment` did not make these bytes.
    """
    header, tensors = decode(buffer, checksum=checksum, allocate=allocate)
    try:
        meta = unpack(BatchMeta, header)
        episodes = {name: tensors.pop((_EPISODES, name)) for name in EPISODES}
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
        steps={**parts[_STEPS], **_unfolded(parts, allocate)},
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
