"""Chunks and messages as a receiver sees them: each one in one piece."""

from collections.abc import Iterator

from rollfleet.wire.chunks import Identity, cut_message
from rollfleet.wire.codec import Encoded


def joined(encoded: Encoded) -> bytearray:
    """Return a message in one piece."""
    return bytearray(b"".join(encoded.parts))


def split(encoded: Encoded, identity: Identity, *, max_chunk_bytes: int) -> Iterator[bytes]:
    """Cut a batch as a worker does, and copy each chunk into one piece."""
    cut = cut_message(identity.key, encoded.parts, encoded.nbytes, max_chunk_bytes)
    return (b"".join(pieces) for pieces in cut)
