"""A connection over TLS that is used as a pipe, and carries arrays beside each message: memory that hosts share.

A frame is the length of the message and that of the arrays (u32, u64), the message, and the arrays: first all bytes of
pixels, as the difference to the last frame's, compressed, then the others. TLS lets in only who has the private key.
"""

import select
import socket
import ssl
import struct
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final

import cramjam
import numpy as np

from rollfleet.envs.space_tree import Array
from rollfleet.errors import JobInvalid
from rollfleet.system.child_processes import close_in_children
from rollfleet_api.env_servers import CERTIFICATE_HOST

SILENT_S: Final = 20
"""Time after which a connection to a host that does not answer any more ends. A server's, while its answer is under
way, ends after about a quarter of an hour."""

_LENGTHS: Final = struct.Struct("<IQ")
_PIXELS: Final = struct.Struct("<Q")
_LEAST_PIXELS: Final = 4 << 10  # fewer cost more time than their bytes
_MOST_BYTES: Final = 1 << 30
_BUFFER_BYTES: Final = 16 << 10  # of a record of TLS
_PROBES: Final = 3


class ArrayPipe:
    """One end. It has the methods of `multiprocessing.connection.Connection` that a vector and its servers use.

    Attributes:
        closed: Whether this end was closed. A frame that was interrupted closes it, for no other could follow.
    """

    def __init__(self, stream: socket.socket, *, serves: bool = False) -> None:
        """Take a connected socket. `serves`: what it sends may wait for as long as the vector's program trains."""
        close_in_children(stream)
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in (
            ("TCP_KEEPIDLE", SILENT_S // 4),
            ("TCP_KEEPINTVL", SILENT_S // 4),
            ("TCP_KEEPCNT", _PROBES),
            ("TCP_USER_TIMEOUT", SILENT_S * 1000),
        ):
            if hasattr(socket, option) and not (serves and option == "TCP_USER_TIMEOUT"):  # Linux
                stream.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
        self._stream, self.closed = stream, False
        self._poll, self._buffer = select.poll(), bytearray(_BUFFER_BYTES)
        self._poll.register(stream, select.POLLIN)
        self._sent, self._received = _Arrays(()), _Arrays(())

    def carry(self, *, sent: Sequence[Array], received: Sequence[Array]) -> None:
        """Send these arrays with each message from now on, and fill the others with those that come."""
        self._sent, self._received = _Arrays(sent), _Arrays(received)

    def send_bytes(self, message: bytes) -> None:
        """Send a message with the arrays.

        Raises:
            ConnectionError: The other end is closed, or silent.
        """
        arrays = self._sent.packed()
        lengths = _LENGTHS.pack(len(message), sum(len(part) for part in arrays))
        with _Whole(self):
            self._stream.sendall(b"".join([lengths, message, *arrays]))

    def recv_bytes(self) -> bytes:
        """Wait for a message, and take its arrays.

        Raises:
            ConnectionError: The other end is closed, or silent, or sends what no other end of this kind does.
        """
        self.poll(None)
        with _Whole(self):
            length, nbytes, frame = self._frame()
            self._received.unpack(frame[length : length + nbytes])
            return bytes(frame[:length])

    def poll(self, timeout_s: float | None) -> bool:
        """Wait until a message comes, or the other end is closed. An interruption here loses nothing."""
        if self.closed:
            raise ConnectionError("the connection is closed")
        return bool(self._poll.poll(None if timeout_s is None else 1000 * timeout_s))

    def fileno(self) -> int:
        """Return the number by which `multiprocessing.connection.wait` waits for it."""
        return self._stream.fileno()

    def close(self) -> None:
        """Close this end. May be called again."""
        self.closed = True
        self._stream.close()

    def _frame(self) -> tuple[int, int, memoryview]:
        """Return the lengths of the next frame, and what follows them. It ends with a record, so no more is read."""
        end, total, length, nbytes = 0, _LENGTHS.size, 0, 0
        while end < total:
            if not (count := self._stream.recv_into(memoryview(self._buffer)[end:])):
                raise ConnectionResetError("the other end is closed")
            end += count
            if total == _LENGTHS.size <= end:
                length, nbytes = _LENGTHS.unpack_from(self._buffer)
                if max(length, nbytes) > _MOST_BYTES:
                    raise ConnectionError(f"a message of {length:,} bytes with arrays of {nbytes:,}")
                total += length + nbytes
                if total > len(self._buffer):
                    self._buffer = self._buffer[:end] + bytes(total - end)
        return length, nbytes, memoryview(self._buffer)[_LENGTHS.size : total]


class _Whole:
    """Closes a pipe if its frame is not sent or received whole."""

    def __init__(self, pipe: ArrayPipe) -> None:
        self._pipe = pipe

    def __enter__(self) -> None:
        if self._pipe.closed:
            raise ConnectionError("the connection is closed")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if error is not None:
            self._pipe.close()
        if isinstance(error, OSError) and not isinstance(error, ConnectionError):  # ssl.SSLError, a host that is silent
            raise ConnectionError(str(error)) from error


class _Arrays:
    """The arrays of one direction, and the pixels that the other end has."""

    def __init__(self, arrays: Sequence[Array]) -> None:
        pixels = [each for each in arrays if each.dtype == np.uint8]
        if sum(each.nbytes for each in pixels) < _LEAST_PIXELS:
            pixels = []
        self._pixels = [each.reshape(-1) for each in pixels]
        self._others = [each for each in arrays if not any(each is one for one in pixels)]
        self._known = np.zeros(sum(each.size for each in self._pixels), np.uint8)
        self._nbytes = sum(each.nbytes for each in self._others)
        ends = np.cumsum([0, *(each.size for each in self._pixels)]).tolist()
        self._parts = [slice(*bounds) for bounds in pairwise(ends)]

    def packed(self) -> list[bytes]:
        parts = [each.tobytes() for each in self._others]
        if self._pixels:
            now = np.concatenate(self._pixels)
            change = np.bitwise_xor(now, self._known)
            packed = bytes(cramjam.lz4.compress_block(change.data, store_size=False))
            self._known = now
            parts = [_PIXELS.pack(len(packed)), packed, *parts]
        return parts

    def unpack(self, data: memoryview) -> None:
        """Raises: ConnectionError: These are not the arrays."""
        if self._pixels:
            length = _PIXELS.unpack_from(data)[0] if len(data) >= _PIXELS.size else len(data)
            packed, data = data[_PIXELS.size :][:length], data[_PIXELS.size + length :]
            change = np.empty_like(self._known)
            try:
                nbytes = cramjam.lz4.decompress_block_into(packed, change.data, output_len=change.nbytes)
            except cramjam.DecompressionError as error:
                raise ConnectionError(f"pixels that cannot be decompressed: {error}") from error
            if nbytes != change.nbytes:
                raise ConnectionError(f"pixels of {nbytes} bytes instead of {change.nbytes}")
            np.bitwise_xor(self._known, change, out=self._known)
            for each, part in zip(self._pixels, self._parts, strict=True):
                each[...] = self._known[part]
        if len(data) != self._nbytes:
            raise ConnectionError(f"arrays of {len(data)} bytes instead of {self._nbytes}")
        for array in self._others:
            array[...] = np.frombuffer(data[: array.nbytes], array.dtype).reshape(array.shape)
            data = data[array.nbytes :]


def tls(certificate: Path, *, serves: bool) -> ssl.SSLContext:
    """Return what makes a socket a connection between two programs that have the same certificate.

    Args:
        certificate: A PEM file with a private key, its certificate for the name "environments", and that of its
            authority; a certificate that signs itself is its own.
        serves: Whether this is the environment server's end.

    Raises:
        JobInvalid: The file cannot be used.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if serves else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode, context.check_hostname = ssl.CERT_REQUIRED, not serves
    try:
        context.load_cert_chain(certificate)
        context.load_verify_locations(certificate)
    except (OSError, ValueError) as error:
        raise JobInvalid(
            f"certificate: {certificate} cannot be used: {error}; write the path of a PEM file with a private key and "
            f'a certificate for the name "{CERTIFICATE_HOST}"'
        ) from error
    if serves:
        context.num_tickets = 0  # they would look like a message
    return context
