"""A connection to NATS that is opened on first use, and again after a loss."""

import asyncio
import logging
import ssl
from typing import Any

from nats.aio.client import Client, RawCredentials
from nats.errors import Error as NatsError

from rollfleet_operator.errors import NatsUnavailable
from rollfleet_operator.nats_access import Login

log = logging.getLogger(__name__)

CONNECT_TIMEOUT_S = 4
RETRY_WAIT_S = 0.1
CLOSE_S = 1.0  # a server that is gone takes no part in the end of TLS, for which asyncio would wait 30 s


class Connection:
    """A connection as one user. `name` is shown by NATS.

    It does not reconnect in the background: after a loss, the next caller opens it again. For one caller at a time.
    """

    def __init__(self, login: Login, name: str) -> None:
        self.login, self._name = login, name
        self._client: Client | None = None

    async def client(self) -> Client:
        """Return the open connection.

        Raises:
            NatsUnavailable: NATS could not be reached, or refused the login.
        """
        if self._client is None or not self._client.is_connected:
            await self.close()
            self._client = await self._open()
        return self._client

    async def use(self, login: Login) -> None:
        """Be this user from now on, such as one with a new password."""
        if login != self.login:
            await self.close()
            self.login = login

    async def close(self) -> None:
        """Close the connection; the next use opens it again."""
        client, self._client = self._client, None
        if client:
            closing = asyncio.create_task(client.close())
            await asyncio.wait([closing], timeout=CLOSE_S)
            if not closing.done() and (writer := getattr(client._transport, "_io_writer", None)):
                writer.transport.abort()
            await closing

    async def _open(self) -> Client:
        ca, client, refusals = self.login.ca, Client(), list[Exception]()

        async def on_error(error: Exception) -> None:
            refusals[:] = [error]  # only the last one is read
            _drop_socket(client)
            log.debug("NATS connection %s: %r", self._name, error)

        try:
            await client.connect(
                self.login.url.split(","),
                name=f"rollfleet operator {self._name}",
                tls=ssl.create_default_context(cadata=ca.decode()) if ca else None,
                error_cb=on_error,
                connect_timeout=CONNECT_TIMEOUT_S,
                allow_reconnect=False,
                max_reconnect_attempts=1,  # of the first connection, to which the line above does not apply
                reconnect_time_wait=RETRY_WAIT_S,  # type: ignore[arg-type]  # it is only slept for
                **_identity(self.login.credentials.decode()),
            )
        except (NatsError, OSError, TimeoutError) as error:
            reason = refusals[-1] if refusals else error
            raise NatsUnavailable(f"NATS at {self.login.url} refused the operator: {reason!r}") from error
        finally:  # it may also have been cancelled
            _drop_socket(client)
        return client


def _drop_socket(client: Client) -> None:
    """Close the socket of a failed attempt, which the client would leave open."""
    if not client.is_connected and (left := client._transport):
        left.close()  # type: ignore[no-untyped-call]


def _identity(credentials: str) -> dict[str, Any]:
    """Return the options of the client that log in."""
    if credentials.startswith("-----BEGIN"):
        return {"user_credentials": RawCredentials(credentials)}
    user, _, password = credentials.strip().partition(":")
    return {"user": user, "password": password}
