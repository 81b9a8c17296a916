"""nats-py's client, whose connection over TLS ends without a warning of asyncio.

Private names of nats-py (2.16) and asyncio: `Client._connect_to_server`, `_transport`, `TcpTransport._io_writer`,
`StreamReaderProtocol._over_ssl`. `tests/control/wire/test_tls.py` fails if they change.
"""

from typing import Any

from nats.aio.client import Client as NatsClient
from nats.aio.transport import TcpTransport


class Client(NatsClient):
    """nats-py's client for servers with `nats://` and `tls://`."""

    async def _connect_to_server(self, s: Any) -> None:
        if not self._transport:
            self._transport = _Transport()  # type: ignore[no-untyped-call]
        await super()._connect_to_server(s)


class _Transport(TcpTransport):
    def __bool__(self) -> bool:  # else nats-py would replace it with its own before the connection
        return True

    async def connect_tls(self, *arguments: Any, **keywords: Any) -> None:
        await super().connect_tls(*arguments, **keywords)
        assert self._io_writer is not None
        # asyncio does not notice that its stream is over TLS now, and would warn when the server closes it.
        self._io_writer.transport.get_protocol()._over_ssl = True  # type: ignore[attr-defined]
