"""nats-py's client, where large messages are copied once on each side.

nats-py joins a message three times before it is written, and copies one that it receives six times, 32 KiB at a time:
of 1 MB messages that is most of what sending and receiving cost. Here a message is handed to the socket in the pieces
that it has, and the payload of a large one is received where it stays. All else is nats-py's: what is small, and what
comes through a WebSocket, takes its own way, and `Msg.data` of a large message is a `bytearray` instead of `bytes`.

This reaches into nats-py. That both ways carry the same is tested (tests/sdk/nats/test_client.py).
"""

import asyncio
from collections.abc import Sequence
from typing import Any, TypeAlias

from nats.aio.client import Client as NatsClient
from nats.aio.transport import TcpTransport
from nats.protocol.parser import AWAITING_CONTROL_LINE, AWAITING_MSG_PAYLOAD, CRLF_SIZE, Parser

Piece: TypeAlias = bytes | bytearray | memoryview

LARGE_BYTES = 1 << 16  # smaller ones are cheaper to copy than to treat specially
SCRATCH_BYTES = 1 << 16  # received at most before it is looked at: what follows may be wanted elsewhere


class Pieces:
    """The payload of a message, never joined: its memory must stay as it is until the message is known to have arrived.

    nats-py puts what belongs before and behind it by `+`.
    """

    def __init__(self, *pieces: Piece) -> None:
        self.pieces: Sequence[Piece] = pieces
        self._nbytes = sum(memoryview(piece).nbytes for piece in pieces)

    def __len__(self) -> int:
        """In bytes."""
        return self._nbytes

    def __radd__(self, before: Piece) -> "Pieces":
        """With a piece before the others."""
        return Pieces(before, *self.pieces)

    def __add__(self, behind: Piece) -> "Pieces":
        """With a piece behind the others."""
        return Pieces(*self.pieces, behind)


class Client(NatsClient):
    """As nats-py's, and a payload may be `Pieces`."""

    def __init__(self) -> None:
        super().__init__()
        self._ps = _Parser(self)

    async def _send_command(self, cmd: bytes | Pieces, priority: bool = False) -> None:
        if isinstance(cmd, Pieces):
            self._pending.extend(cmd.pieces[:-1])  # type: ignore[arg-type]  # whatever can be written
            self._pending_data_size += len(cmd) - len(cmd.pieces[-1])
            cmd = bytes(cmd.pieces[-1])  # the end of the line
        await super()._send_command(cmd, priority)

    async def _connect_to_server(self, s: Any) -> None:
        if not self._transport and s.uri.scheme not in ("ws", "wss"):
            self._transport = _Transport()  # type: ignore[no-untyped-call]
        await super()._connect_to_server(s)


class _Receiver(asyncio.BufferedProtocol):
    """Takes over from the stream that nats-py made: bytes go into memory that is wanted, else into a backlog."""

    def __init__(self, transport: asyncio.Transport, reader: asyncio.StreamReader) -> None:
        self.wanted: memoryview | None = None  # what is left to fill of the memory that is wanted
        self._transport, self._reader = transport, reader
        self._scratch = memoryview(bytearray(SCRATCH_BYTES))
        self._came: asyncio.Future[None] | None = None
        self._stream: Any = transport.get_protocol()  # which is told of everything but data
        self._paused = False
        transport.pause_reading()
        self._backlog = bytearray(reader._buffer)  # type: ignore[attr-defined]
        reader._buffer.clear()  # type: ignore[attr-defined]
        transport.set_protocol(self)
        transport.resume_reading()

    async def read(self) -> bytes | bytearray:
        """What has come; nothing once what is wanted is complete, or at the end."""
        while self.wanted is None or self.wanted.nbytes:
            if error := self._reader.exception():
                raise error
            if self._reader.at_eof() or (self.wanted is None and self._backlog):
                data, self._backlog = self._backlog, bytearray()
                return data
            if self._paused and not self._transport.is_closing():
                self._transport.resume_reading()
            self._paused = False
            self._came = asyncio.get_running_loop().create_future()
            await self._came
        return b""

    def want(self, memory: memoryview) -> None:
        """Fill this first, whatever comes then."""
        taken = min(memory.nbytes, len(self._backlog))
        memory[:taken] = self._backlog[:taken]
        del self._backlog[:taken]
        self.wanted = memory[taken:]

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.wanted or self._scratch

    def buffer_updated(self, nbytes: int) -> None:
        if self.wanted:
            self.wanted = self.wanted[nbytes:]
        else:
            self._backlog += self._scratch[:nbytes]
            if nbytes == SCRATCH_BYTES:  # there is more, and uvloop would read all of it before it lets anybody look
                self._transport.pause_reading()
                self._paused = True
        self._wake()

    def eof_received(self) -> bool | None:
        keep_open: bool | None = self._stream.eof_received()
        self._wake()
        return keep_open

    def connection_lost(self, exc: Exception | None) -> None:
        self._stream.connection_lost(exc)
        self._wake()

    def pause_writing(self) -> None:
        self._stream.pause_writing()

    def resume_writing(self) -> None:
        self._stream.resume_writing()

    def _wake(self) -> None:
        if self._came and not self._came.done():
            self._came.set_result(None)


class _Transport(TcpTransport):
    """nats-py's, whose reading is taken over once the handshake is done."""

    receiver: _Receiver | None = None

    def __bool__(self) -> bool:  # else nats-py would put one of its own in its place before it is connected
        return True

    async def connect(self, uri: Any, buffer_size: int, connect_timeout: int) -> None:
        self.receiver = None
        await super().connect(uri, buffer_size, connect_timeout)

    async def read(self, buffer_size: int) -> Any:
        if self.receiver is None:
            assert self._io_writer is not None
            assert self._io_reader is not None
            if self._io_writer.transport.is_closing():
                return await super().read(buffer_size)
            transport: Any = self._io_writer.transport  # which reads, too
            self.receiver = _Receiver(transport, self._io_reader)
        return await self.receiver.read()


class _Parser(Parser):
    """nats-py's, for all but the payload of a large message."""

    def reset(self) -> None:
        super().reset()
        self._large: bytearray | None = None

    async def parse(self, data: bytes = b"") -> None:
        transport = self.nc._transport
        if self._large is not None:
            if not transport.receiver.wanted:
                transport.receiver.wanted = None
                await self._finish(self._large)
            return
        await super().parse(data)
        needed = self.needed + CRLF_SIZE
        if self.state == AWAITING_MSG_PAYLOAD and needed - len(self.buf) >= LARGE_BYTES:
            if not isinstance(transport, _Transport) or transport.receiver is None:
                return
            self._large = bytearray(needed)
            self._large[: len(self.buf)] = self.buf
            transport.receiver.want(memoryview(self._large)[len(self.buf) :])
            self.buf.clear()

    async def _finish(self, payload: bytearray) -> None:
        headers = bytes(payload[: self.header_needed])
        del payload[self.needed :]
        del payload[: self.header_needed]
        self._large, self.header_needed, self.state = None, 0, AWAITING_CONTROL_LINE
        said = self.msg_arg
        await self.nc._process_msg(said["sid"], said["subject"], said["reply"], payload, headers)
