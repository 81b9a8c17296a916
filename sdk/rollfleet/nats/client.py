"""nats-py's client, with one copy of a large message on each side.

nats-py joins a message three times before it is written, and copies a received one six times. For messages of 1 MB that
is most of the cost. Here a message is handed to the socket in its pieces, and a large payload is received in its final
memory. Small messages and WebSockets take nats-py's own way. `Msg.data` of a large message is a `bytearray`.

Private names of nats-py (2.16), all in this file and in `link`:

- `Client`: `_ps`, `_send_command`, `_pending`, `_pending_data_size`, `_connect_to_server`, `_transport`,
  `_process_msg`, `_process_err`, `_process_op_err`, `_process_pong`, `_error_cb`, `_pings_outstanding`
- `nats.protocol.parser`: `Parser`'s `buf`, `needed`, `header_needed`, `state`, `msg_arg`, `nc`, and its constants
- `nats.aio.transport.TcpTransport`: `_io_reader`, `_io_writer`, `connect`, `connect_tls`, `read`, `at_eof`
- `asyncio.StreamReader` (Python): `_buffer`

`tests/sdk/nats/test_client.py` sends the same messages both ways, and fails if one of these changes.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeAlias

from nats.aio.client import Client as NatsClient
from nats.aio.transport import TcpTransport
from nats.errors import Error as NatsError
from nats.protocol.parser import AWAITING_CONTROL_LINE, AWAITING_MSG_PAYLOAD, CRLF_SIZE, PERMISSIONS_ERR, Parser

Piece: TypeAlias = bytes | bytearray | memoryview

LARGE_BYTES = 1 << 16  # smaller ones are cheaper to copy than to treat specially
SCRATCH_BYTES = 1 << 16  # received at most before it is parsed: the next bytes may belong in a large payload


class Pieces:
    """A message's payload in pieces that are never joined.

    Their memory must not change until NATS confirms the message. nats-py adds a message's head and end with `+`.

    Example:
        >>> payload = Pieces(b"prefix", memoryview(b"tensor"))
        >>> len(payload)
        12
    """

    def __init__(self, *pieces: Piece) -> None:
        self.pieces: Sequence[Piece] = pieces
        self._nbytes = sum(memoryview(piece).nbytes for piece in pieces)

    def __len__(self) -> int:
        """Return the size in bytes."""
        return self._nbytes

    def __radd__(self, before: Piece) -> "Pieces":
        """Return the payload with a piece before the others."""
        return Pieces(before, *self.pieces)

    def __add__(self, behind: Piece) -> "Pieces":
        """Return the payload with a piece after the others."""
        return Pieces(*self.pieces, behind)


class Client(NatsClient):
    """nats-py's client; a payload may be `Pieces`."""

    def __init__(self) -> None:
        super().__init__()
        self._ps = _Parser(self)

    async def _send_command(self, cmd: bytes | Pieces, priority: bool = False) -> None:
        if isinstance(cmd, Pieces):
            self._pending.extend(cmd.pieces[:-1])  # type: ignore[arg-type]  # any buffer can be written
            self._pending_data_size += len(cmd) - len(cmd.pieces[-1])
            cmd = bytes(cmd.pieces[-1])  # the end of the line
        await super()._send_command(cmd, priority)

    async def _process_err(self, err_msg: str) -> None:
        """Reconnect after an error for which the server ends the connection: nats-py would close it for good.

        Credentials that are refused may be renewed.
        """
        if PERMISSIONS_ERR in err_msg:
            await super()._process_err(err_msg)
        else:
            error = NatsError("nats: " + err_msg.strip("'"))
            await self._error_cb(error)
            await self._process_op_err(error)

    async def _process_pong(self) -> None:
        """Ignore an answer after its `flush` has given up, on a slow link: nats-py would stop reading for good."""
        with suppress(asyncio.InvalidStateError):
            await super()._process_pong()

    async def _connect_to_server(self, s: Any) -> None:
        if not self._transport and s.uri.scheme not in ("ws", "wss"):
            self._transport = _Transport(self._is_alive)
        await super()._connect_to_server(s)

    def _is_alive(self) -> None:
        """Note that bytes came: on a slow link, a ping waits behind other data, and its answer, too."""
        self._pings_outstanding = 0


class _Receiver(asyncio.BufferedProtocol):
    """Receives in place of nats-py's stream: into the memory of a large payload, or else into a backlog."""

    def __init__(self, transport: asyncio.Transport, reader: asyncio.StreamReader, alive: Callable[[], object]) -> None:
        self._missing: memoryview | None = None  # the rest of the memory to fill
        self._scratch = memoryview(bytearray(SCRATCH_BYTES))
        self._arrived = asyncio.Event()
        self._transport, self._reader, self._alive = transport, reader, alive
        self._stream: Any = transport.get_protocol()  # gets every event but data
        transport.pause_reading()
        self._backlog = bytearray(reader._buffer)  # type: ignore[attr-defined]
        reader._buffer.clear()  # type: ignore[attr-defined]
        transport.set_protocol(self)

    def at_end(self) -> bool:
        """Return whether the connection has ended, and all its bytes were read."""
        return self._reader.at_eof() and not self._backlog

    async def read(self) -> bytearray:
        """Wait for bytes and return them; nothing at the end of the connection."""
        while not self._backlog and await self._next_bytes():
            pass
        data, self._backlog = self._backlog, bytearray()
        return data

    async def fill(self, memory: memoryview) -> bool:
        """Fill this memory with the next bytes. False: the connection ended before."""
        taken = min(memory.nbytes, len(self._backlog))
        memory[:taken] = self._backlog[:taken]
        del self._backlog[:taken]
        self._missing = memory[taken:]
        while self._missing and await self._next_bytes():
            pass
        full, self._missing = not self._missing, None
        return full

    async def _next_bytes(self) -> bool:
        if error := self._reader.exception():
            raise error
        if self._reader.at_eof():
            return False
        self._arrived.clear()
        if not self._transport.is_closing():  # else the loss of the connection follows
            self._transport.resume_reading()
        await self._arrived.wait()
        return True

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._missing or self._scratch

    def buffer_updated(self, nbytes: int) -> None:
        self._alive()
        if self._missing:
            self._missing = self._missing[nbytes:]
        else:
            self._backlog += self._scratch[:nbytes]
            if nbytes == SCRATCH_BYTES:  # uvloop would read everything that follows before it runs other code
                self._transport.pause_reading()
        self._arrived.set()

    def eof_received(self) -> bool | None:
        self._arrived.set()
        keep_open: bool | None = self._stream.eof_received()
        return keep_open

    def connection_lost(self, exc: Exception | None) -> None:
        self._arrived.set()
        self._stream.connection_lost(exc)

    def pause_writing(self) -> None:
        self._stream.pause_writing()

    def resume_writing(self) -> None:
        self._stream.resume_writing()


class _Transport(TcpTransport):
    """nats-py's transport; a `_Receiver` reads from it after the handshake."""

    receiver: _Receiver | None = None

    def __init__(self, alive: Callable[[], object]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._alive = alive

    def __bool__(self) -> bool:  # else nats-py would replace it with its own before the connection
        return True

    async def connect(self, uri: Any, buffer_size: int, connect_timeout: int) -> None:
        self.receiver = None
        await super().connect(uri, buffer_size, connect_timeout)

    async def connect_tls(self, *arguments: Any, **keywords: Any) -> None:
        await super().connect_tls(*arguments, **keywords)
        assert self._io_writer is not None
        # asyncio does not notice that its stream is over TLS now, and would warn when the server closes it.
        self._io_writer.transport.get_protocol()._over_ssl = True  # type: ignore[attr-defined]

    async def read(self, buffer_size: int) -> Any:
        if self.receiver is None:
            assert self._io_reader is not None
            assert self._io_writer is not None
            if self._io_writer.transport.is_closing():
                return await super().read(buffer_size)
            self.receiver = _Receiver(self._io_writer.transport, self._io_reader, self._alive)  # type: ignore[arg-type]
        return await self.receiver.read()

    def at_eof(self) -> Any:
        return self.receiver.at_end() if self.receiver else super().at_eof()  # type: ignore[no-untyped-call]


class _Parser(Parser):
    """nats-py's parser for everything but the payload of a large message."""

    async def parse(self, data: bytes = b"") -> None:
        await super().parse(data)
        size, taken = self.needed + CRLF_SIZE, len(self.buf)
        receiver = getattr(self.nc._transport, "receiver", None)
        if self.state != AWAITING_MSG_PAYLOAD or size - taken < LARGE_BYTES or receiver is None:
            return
        payload = bytearray(size)
        payload[:taken] = self.buf
        self.buf.clear()
        if not await receiver.fill(memoryview(payload)[taken:]):
            return
        headers = bytes(payload[: self.header_needed])
        del payload[self.needed :]
        del payload[: self.header_needed]
        self.header_needed, self.state = 0, AWAITING_CONTROL_LINE
        head = self.msg_arg
        await self.nc._process_msg(head["sid"], head["subject"], head["reply"], payload, headers)
