"""Chunks and messages as a receiver sees them: each one in one piece."""

from collections.abc import Iterator

from rollfleet.wire.batch_chunks import Identity, cut
from rollfleet.wire.codec import Encoded


def joined(encoded: Encoded) -> bytearray:
    """Return a message in one piece."""
    return bytearray(b"".join(encoded.parts))


def split(encoded: Encoded, identity: Identity, *, max_chunk_bytes: int) -> Iterator[bytes]:
    """Cut a message as `cut` does, and copy each chunk into one piece."""
    return (b"".join(pieces) for pieces in cut(encoded, identity, max_chunk_bytes=max_chunk_bytes))
