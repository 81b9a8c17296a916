"""Messages of a hostile peer: any header or bytes, under a right checksum."""

import json
import struct

import xxhash

from rollfleet.wire.codec import ALIGNMENT

FIELDS = struct.Struct("<4sIIIQ")


def sealed(frame: bytearray) -> bytearray:
    """Correct the checksum: bytes of a hostile peer, not of an accident."""
    checksum = xxhash.xxh3_64_intdigest(bytes(frame[:24] + frame[32:]))
    return frame[:24] + struct.pack("<Q", checksum) + frame[32:]


def forged(header: bytes, payload: bytes = b"", meta: bytes = b"") -> bytearray:
    """Make a message with right lengths and checksum around any header."""
    body = header + meta
    padding = bytes(-(32 + len(body)) % ALIGNMENT)
    fields = FIELDS.pack(b"RLFT", 1, len(header), len(meta), len(payload))
    return sealed(bytearray(fields + bytes(8) + body + padding + payload))


def tensor_header(**changes: object) -> bytes:
    """Make the header of one tensor of 64 bytes, with these changes."""
    return json.dumps({"tensors": [{"key": ["a"], "dtype": "uint8", "shape": [64]} | changes]}).encode()
