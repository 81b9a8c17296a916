"""A fragment as one message: its tensors under keys that say which part they are, and what it says of itself."""

from torch import Tensor

from rollfleet.batch import Fragment
from rollfleet.codec import Buffer, Encoded, Key, decode, encode
from rollfleet.errors import MessageCorrupt
from rollfleet_api.messages import BatchMeta, MessageInvalid, pack, unpack

_STEPS, _FINAL, _EPISODES = "steps", "final", "episodes"
_RETURNS, _LENGTHS = (_EPISODES, "returns"), (_EPISODES, "lengths")


def pack_fragment(fragment: Fragment, meta: BatchMeta, *, checksum: bool = True) -> Encoded:
    """A message that points at the fragment's tensors: they must not change until it is sent."""
    tensors = {(_STEPS, *key): tensor for key, tensor in fragment.steps.items()}
    tensors |= {(_FINAL, *key): tensor for key, tensor in fragment.final.items()}
    tensors |= {_RETURNS: fragment.episode_returns, _LENGTHS: fragment.episode_lengths}
    return encode(pack(meta), tensors, checksum=checksum)


def unpack_fragment(buffer: Buffer, *, checksum: bool = True) -> tuple[BatchMeta, Fragment]:
    """The inverse. The fragment's tensors are views of `buffer`.

    Raises:
        MessageCorrupt: The bytes are not what `pack_fragment` makes.
    """
    header, tensors = decode(buffer, checksum=checksum)
    try:
        meta = unpack(BatchMeta, header)
        returns, lengths = tensors.pop(_RETURNS), tensors.pop(_LENGTHS)
    except (MessageInvalid, KeyError) as error:
        raise MessageCorrupt(f"no batch: {error}") from error
    parts: dict[str, dict[Key, Tensor]] = {_STEPS: {}, _FINAL: {}}
    for (part, *key), tensor in tensors.items():
        if part not in parts or not key:
            raise MessageCorrupt(f"no batch: it holds {(part, *key)}")
        parts[part][tuple(key)] = tensor
    fragment = Fragment(
        steps=parts[_STEPS],
        final=parts[_FINAL],
        episode_returns=returns,
        episode_lengths=lengths,
        version=meta.version,
    )
    return meta, fragment
