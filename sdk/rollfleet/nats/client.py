"""nats-py's client, without a copy of a large message that is sent.

nats-py joins a message three times before it is written. For messages of 1 MB that is most of the cost. Here a message
is handed to the socket in its pieces. Small messages take nats-py's own way.

Private names of nats-py (2.16), all in this file and in `link`:

- `Client`: `_send_command`, `_pending`, `_pending_data_size`, `_connect_to_server`, `_transport`, `_process_err`,
  `_process_op_err`, `_error_cb`
- `nats.protocol.parser`: `PERMISSIONS_ERR`
- `nats.aio.transport.TcpTransport`: `_io_writer`, `connect_tls`

`tests/sdk/nats/test_client.py` sends the same messages both ways, and fails if one of these changes.
"""

from collections.abc import Sequence
from typing import Any, TypeAlias

from nats.aio.client import Client as NatsClient
from nats.aio.transport import TcpTransport
from nats.errors import Error as NatsError
from nats.protocol.parser import PERMISSIONS_ERR

Piece: TypeAlias = bytes | bytearray | memoryview

LARGE_BYTES = 1 << 16  # smaller ones are cheaper to copy than to treat specially


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

    async def _send_command(self, cmd: bytes | Pieces, priority: bool = False) -> None:
        if isinstance(cmd, Pieces):
            self._pending.extend(cmd.pieces[:-1])  # type: ignore[arg-type]  # any buffer can be written
            self._pending_data_size += len(cmd) - len(cmd.pieces[-1])
            cmd = bytes(cmd.pieces[-1])  # the end of the line
        await super()._send_command(cmd, priority)

    async def _process_err(self, err_msg: str) -> None:
        """Reconnect after an error for which the server ends the connection: nats-py would close it for good.

        Credentials that have expired may be renewed, and an account that was deleted may come back.
        """
        if PERMISSIONS_ERR in err_msg:
            await super()._process_err(err_msg)
        else:
            error = NatsError("nats: " + err_msg.strip("'"))
            await self._error_cb(error)
            await self._process_op_err(error)

    async def _connect_to_server(self, s: Any) -> None:
        if not self._transport and s.uri.scheme not in ("ws", "wss"):
            self._transport = _Transport()  # type: ignore[no-untyped-call]
        await super()._connect_to_server(s)


class _Transport(TcpTransport):
    """nats-py's transport, without a warning of asyncio when the server closes it over TLS."""

    def __bool__(self) -> bool:  # else nats-py would replace it with its own before the connection
        return True

    async def connect_tls(self, *arguments: Any, **keywords: Any) -> None:
        await super().connect_tls(*arguments, **keywords)
        assert self._io_writer is not None
        self._io_writer.transport.get_protocol()._over_ssl = True  # type: ignore[attr-defined]  # asyncio's own
