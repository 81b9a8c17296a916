"""One NATS connection on a thread of its own, for blocking calls from a script, a notebook or a rollout.

The thread runs an asyncio loop (uvloop where it is installed). A running loop in the caller's thread does not matter.
"""

import asyncio
import logging
import math
import os
import ssl
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any, TypeVar, cast

import nats
from nats.js import JetStreamContext
from nats.js.errors import APIError

from rollfleet.errors import ConnectionFailed, RollfleetError, Timeout
from rollfleet.nats.client import LARGE_BYTES, Client, Pieces
from rollfleet.nats.credentials import follow_credentials
from rollfleet_api.environment import Address
from rollfleet_api.permissions import Role, inbox_prefix
from rollfleet_api.subjects import Subjects

log = logging.getLogger(__name__)

T = TypeVar("T")

RECONNECT_WAIT_S = 0.25
PING_EVERY_S, PINGS_UNANSWERED = 3.0, 2  # a connection that is open and carries nothing is cut after about 10 s
PENDING_BYTES = 64 << 20  # nats-py's own write buffer: our windows are far below it
REQUEST_TIMEOUT_S = 5.0
RETRY_WAIT_S = 0.2
TELL_AFTER_S = 30.0  # of a NATS that stores nothing: its disk may be full, or its cluster without a leader
_STARTING_UP = (None, 0, 10008)  # error codes of a JetStream that is not ready yet: it says none, or "temporarily"


class Link:
    """A connection to one job's NATS, with blocking calls for any thread.

    It reconnects for ever: a NATS server that restarts is no error, only a wait.

    Attributes:
        client: The NATS client; use it on the connection's thread only.
        js: Its JetStream context.
        closed: Whether `close` was called.

    Raises:
        ConnectionFailed: The server could not be reached within `timeout_s`, or refused the credentials.
    """

    def __init__(self, address: Address, *, role: Role | None, timeout_s: float = 10.0) -> None:
        self.address = address
        self.subjects = Subjects.parse(address.job)
        self.client = Client()
        self.closed = False
        self._role = role
        self._last_error: Exception | None = None
        self._told_s = -math.inf  # when it was last said that NATS stores nothing
        self._recoveries: list[Callable[[], Awaitable[None]]] = []
        self._recovering: asyncio.Task[None] | None = None
        self._loop = _new_loop()
        self._cut: asyncio.Future[None] = self._loop.create_future()  # done when the connection is lost
        self._refused: asyncio.Future[Exception] = self._loop.create_future()  # done when waiting longer would not help
        self._recovered = asyncio.Event()  # the connection is there, and whatever a cut left behind was seen to
        self._recovered.set()
        self._thread = threading.Thread(target=self._run, name="rollfleet-link", daemon=True)
        self._thread.start()
        given = address.credentials.read_bytes() if address.credentials and address.credentials.is_file() else b""
        try:
            self.call(self._connect(timeout_s), timeout_s=timeout_s + 5)
        except BaseException:
            self._stop()
            raise
        self.js: JetStreamContext = self.client.jetstream(timeout=REQUEST_TIMEOUT_S)
        if address.credentials:
            self.begin(follow_credentials(self.client, address.credentials, given))

    @property
    def max_payload_bytes(self) -> int:
        """The largest message that this server takes, headers included."""
        return self.client.max_payload

    def call(self, coroutine: Coroutine[Any, Any, T], *, timeout_s: float | None = None) -> T:
        """Run a coroutine on the connection's thread and wait for its result.

        Raises:
            Timeout: It took longer than `timeout_s`, or NATS did not answer one of its requests in time.
        """
        future = self.spawn(coroutine)
        try:
            return future.result(timeout_s)
        except FutureTimeout:
            future.cancel()
            hint = f" (last error of the connection: {self._last_error!r})" if self._last_error else ""
            within = "in time" if timeout_s is None else f"within {timeout_s:g} s"
            raise Timeout(f"NATS did not answer {within}{hint}") from None
        except BaseException:
            future.cancel()
            raise

    def spawn(self, coroutine: Coroutine[Any, Any, T]) -> "Future[T]":
        """Run a coroutine on the connection's thread; the result comes later.

        Raises:
            ConnectionFailed: The connection was closed.
        """
        if self.closed:
            coroutine.close()
            raise ConnectionFailed(f"the connection of {self.address.job} was closed")
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def begin(self, coroutine: Coroutine[Any, Any, object]) -> None:
        """Run a coroutine on the connection's thread of which nobody awaits the end; what breaks it is logged."""

        def tell(future: "Future[object]") -> None:
            if not future.cancelled() and (error := future.exception()):
                log.error("in the background of %s: %r", self.address.job, error, exc_info=error)

        self.spawn(coroutine).add_done_callback(tell)

    def soon(self, function: Callable[[], object]) -> None:
        """Run a function on the connection's thread."""
        self._loop.call_soon_threadsafe(function)

    def on_reconnect(self, recover: Callable[[], Awaitable[None]]) -> None:
        """Await `recover()` on the connection's thread whenever it is back after a cut, until NATS has answered it.

        Nothing is stored before: what it finds out may change what there is to store. If it raises an error of ours,
        nothing is stored any more.
        """
        self._recoveries.append(recover)

    def close(self, *, flush_timeout_s: float = 2.0) -> None:
        """Send what is buffered, close, and end the thread. Closing twice is fine."""
        if self.closed:
            return
        try:
            self.call(self._close(flush_timeout_s), timeout_s=flush_timeout_s + 1)
        except Exception as error:  # of many kinds, when the client is caught in the middle of a reconnection
            log.debug("closing the connection: %r", error)
        finally:
            self._stop()

    # --- for coroutines on the connection's thread ---

    async def store(self, subject: str, data: bytes | Pieces, headers: dict[str, str] | None = None) -> None:
        """Publish a message to a stream, again and again until NATS says that it has it. NATS being away is waited for.

        The memory of `data` must stay as it is until then: a large message is not copied.

        Raises:
            APIError: JetStream refused it (and is not merely starting up).
        """
        began_s = time.monotonic()
        payload = Pieces(data) if not isinstance(data, Pieces) and len(data) >= LARGE_BYTES else data
        while True:
            await self._recovered.wait()
            now = time.monotonic()
            if now - max(began_s, self._told_s) >= TELL_AFTER_S:  # of all that waits, one is worth a word
                self._told_s = now
                log.warning("NATS has not stored %s for %.0f s; trying again", subject, now - began_s)
            cut = self._cut
            publishing: asyncio.Future[Any] = asyncio.ensure_future(
                self.js.publish(subject, cast(bytes, payload), timeout=REQUEST_TIMEOUT_S, headers=headers)
            )
            try:
                # The answer to what was sent before a cut never comes: do not wait for it.
                either: set[asyncio.Future[Any]] = {publishing, cut}
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
                if publishing.done():
                    publishing.result()
                    return
            except (nats.errors.Error, TimeoutError, OSError) as error:
                if isinstance(error, APIError) and error.err_code not in _STARTING_UP:
                    raise
                log.debug("storing %s: %r; trying again", subject, error)
                await asyncio.sleep(RETRY_WAIT_S)
            finally:
                publishing.cancel()

    async def tell(self, subject: str, data: bytes) -> None:
        """Publish a message that may be lost: while NATS is away it is not sent at all."""
        if self.client.is_connected:
            try:
                await self.client.publish(subject, data)
            except (nats.errors.Error, OSError) as error:
                log.debug("publishing %s: %r", subject, error)

    async def flush(self) -> None:
        """Wait until the server has dealt with all that was sent before: published, subscribed."""
        await self.client.flush()  # this one may overtake what still waits to be written
        await self.client.flush()

    async def _connect(self, timeout_s: float) -> None:
        address, role = self.address, self._role
        options: dict[str, Any] = {}
        if address.credentials:
            options["user_credentials"] = str(address.credentials)
        if address.ca:
            options["tls"] = ssl.create_default_context(cafile=str(address.ca))
        if role:
            options["inbox_prefix"] = inbox_prefix(self.subjects, role)
        connecting: asyncio.Future[Any] = asyncio.ensure_future(
            self.client.connect(
                address.url.split(","),
                name=f"rollfleet {role or 'tool'} {address.job} pid {os.getpid()}",
                error_cb=self._on_error,
                disconnected_cb=self._on_disconnected,
                reconnected_cb=self._on_reconnected,
                max_reconnect_attempts=-1,
                reconnect_time_wait=RECONNECT_WAIT_S,  # type: ignore[arg-type]  # it only sleeps so long
                ping_interval=PING_EVERY_S,  # type: ignore[arg-type]  # the same
                max_outstanding_pings=PINGS_UNANSWERED,
                pending_size=PENDING_BYTES,
                **options,
            )
        )
        either: set[asyncio.Future[Any]] = {connecting, self._refused}
        await asyncio.wait(either, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if not connecting.done() or connecting.exception():
            connecting.cancel()
            self._drop_socket()
            error = self._refused.result() if self._refused.done() else self._last_error or TimeoutError()
            where = ", ".join(url.rpartition("@")[2].removeprefix("nats://") for url in address.url.split(","))
            how = "refused us" if self._refused.done() else f"did not accept us within {timeout_s:g} s"
            raise ConnectionFailed(f"NATS at {where} {how}: {error!r}") from error

    async def _close(self, timeout_s: float) -> None:
        if self.client.is_connected:
            await asyncio.wait_for(self.client.flush(), timeout_s)
        await self.client.close()

    async def _on_error(self, error: Exception) -> None:
        self._last_error = error
        if not self.client.is_connected:
            self._drop_socket()
            if "authorization violation" in str(error).lower() and not self._refused.done():
                self._refused.set_result(error)
        # Cuts are lived with; what a reconnection does not mend is worth a word.
        lasting = isinstance(error, nats.errors.SlowConsumerError) or "violation" in str(error).lower()
        log.log(logging.WARNING if lasting else logging.DEBUG, "NATS connection of %s: %r", self.address.job, error)

    def _drop_socket(self) -> None:
        """Close what a failed attempt left open: the client would forget it and open another."""
        left = self.client._transport
        if left:
            left.close()  # type: ignore[no-untyped-call]

    async def _on_disconnected(self) -> None:
        self._recovered.clear()
        if self._recovering:
            self._recovering.cancel()
        if not self._cut.done():
            self._cut.set_result(None)
        # The client would send what it has buffered as soon as it is back, before anybody could look around. What has
        # to arrive is stored again.
        self.client._pending.clear()
        self.client._pending_data_size = 0

    async def _on_reconnected(self) -> None:
        self._cut = self._loop.create_future()
        self._recovering = asyncio.ensure_future(self._recover())

    async def _recover(self) -> None:
        try:
            for recover in self._recoveries:
                await insist(recover)
        except RollfleetError as error:
            log.debug("%s stores nothing any more: %r", self.address.job, error)
        except Exception as error:
            log.error("after a cut, %s: %r", self.address.job, error, exc_info=error)
            self._recovered.set()
        else:
            self._recovered.set()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        pending = asyncio.all_tasks(self._loop)
        for task in pending:
            task.cancel()
        if pending:
            self._loop.run_until_complete(asyncio.wait(pending, timeout=1))
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()

    def _stop(self) -> None:
        self.closed = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)


async def insist(ask: Callable[[], Awaitable[None]]) -> None:
    """Ask something again and again until NATS has answered: a server that has just come back may not be ready yet."""
    while True:
        try:
            await ask()
        except (nats.errors.Error, TimeoutError, OSError) as error:
            log.debug("no answer: %r; asking again", error)
            await asyncio.sleep(RETRY_WAIT_S)
        else:
            return


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def now_s() -> float:
    """Seconds since the epoch."""
    return time.time()
