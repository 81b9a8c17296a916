"""One NATS connection on its own thread, for blocking calls from a script, a notebook or a rollout.

The thread runs an asyncio loop. A running loop in the caller's thread does not matter.

Private names of nats-py (2.16): `Client._transport`, `_pending`, `_pending_data_size`. `tests/sdk/nats/test_link.py`
and `test_delivery.py` kill servers under a connection, and fail if these names change.
"""

import asyncio
import logging
import math
import os
import ssl
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future, wait
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, TypeVar, cast

import nats
import uvloop
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from rollfleet.errors import ConnectionFailed, Timeout
from rollfleet.nats.client import Client, Pieces
from rollfleet.nats.credentials import login
from rollfleet_api.address import CA, CREDENTIALS, Address
from rollfleet_api.job import CollectorJob
from rollfleet_api.messages import MessageInvalid, unpack
from rollfleet_api.permissions import Role
from rollfleet_api.publication import subjects_of
from rollfleet_api.subjects import Ask, Subjects

log = logging.getLogger(__name__)

T = TypeVar("T")
M = TypeVar("M")

RECONNECT_WAIT_S = 0.25
PING_EVERY_S, PINGS_UNANSWERED = 3.0, 2  # a connection that is open and carries nothing is cut after about 10 s
ANSWER_S = 0.02  # between two answers to processes that ask for the same, at least
SIGNAL_S = 1.0  # a signal that came just before a wait began is handled after it
PENDING_BYTES = 64 << 20  # nats-py's write buffer: the windows of all senders are far below it
TUNNEL_TIMEOUT_S = 10.0  # for a connection through an API server, which may be far away


class Link:
    """A connection to one job's NATS, with blocking calls for any thread.

    It reconnects without limit: a NATS server that restarts is a wait, not an error.

    Args:
        address: The job's NATS server, its name, and credentials.
        role: The role to connect as; None: the job's owner, with all permissions.
        timeout_s: How long to wait for the server.

    Attributes:
        client: The NATS client; use it on the connection's thread only.
        closed: Whether `close` was called.

    Raises:
        ConnectionFailed: The server could not be reached within `timeout_s`, or refused the credentials.
    """

    def __init__(self, address: Address, *, role: Role | None, timeout_s: float = 10.0) -> None:
        self.address = address
        self.subjects = Subjects.parse(address.job)
        self.client = Client()
        self.closed = False
        self._ending = threading.RLock()  # a signal's handler may close it
        self._on_deleted: list[Callable[[], object]] = []
        self._begun = set[asyncio.Task[object]]()  # tasks that nothing else refers to
        self._probe: list[Exception] | None = None  # refusals that `may_subscribe` expects
        self._last_error: Exception | None = None
        self._warned_of = set[type[Exception]]()  # since the last cut: such errors come again and again
        self._recoveries: list[Callable[[], Coroutine[Any, Any, None]]] = []
        self._after_close = ExitStack()
        self._loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
        self._refused: asyncio.Future[Exception] = self._loop.create_future()  # done when waiting longer would not help
        self._thread = threading.Thread(target=self._run, name="rollfleet-link", daemon=True)
        self._thread.start()
        try:
            self.call(self._connect(role, timeout_s), timeout_s=timeout_s + 5)
            self.call(self._check_job(), timeout_s=timeout_s + 5)
        except BaseException:
            self._stop()
            raise

    def follow(self, job: CollectorJob) -> None:
        """Have the subjects of this job from now on: those of its name alone carry only the job itself."""
        self.subjects = subjects_of(job)

    def call(self, coroutine: Coroutine[Any, Any, T], *, timeout_s: float | None = None) -> T:
        """Run a coroutine on the connection's thread, and wait for its result.

        Raises:
            Timeout: It took longer than `timeout_s`, or NATS did not answer one of its requests in time.
        """
        future, left_s = self.spawn(coroutine), math.inf if timeout_s is None else timeout_s
        try:
            while left_s > SIGNAL_S and not wait([future], SIGNAL_S).done:
                left_s -= SIGNAL_S
            return future.result(None if left_s == math.inf else left_s)
        except FutureTimeout:
            future.cancel()
            hint = f" (last error of the connection: {self._last_error!r})" if self._last_error else ""
            within = "in time" if timeout_s is None or not future.cancelled() else f"within {timeout_s:g} s"
            raise Timeout(f"NATS did not answer {within}{hint}") from None
        except BaseException:
            future.cancel()
            raise

    def spawn(self, coroutine: Coroutine[Any, Any, T]) -> "Future[T]":
        """Run a coroutine on the connection's thread, and return its future.

        Raises:
            ConnectionFailed: The connection was closed.
        """
        with self._unclosed(coroutine):
            return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def begin(self, coroutine: Coroutine[Any, Any, object]) -> None:
        """Run a coroutine on the connection's thread without waiting for it. An error is logged. Else as `spawn`."""
        with self._unclosed(coroutine):
            self._loop.call_soon_threadsafe(self._begin, coroutine)

    def _begin(self, coroutine: Coroutine[Any, Any, object]) -> None:
        task = self._loop.create_task(coroutine)
        self._begun.add(task)
        task.add_done_callback(self._on_ended)

    def _on_ended(self, task: "asyncio.Task[object]") -> None:
        self._begun.discard(task)
        if not task.cancelled() and (error := task.exception()):
            log.error("%s: background task failed: %r", self.address.job, error, exc_info=error)

    @contextmanager
    def _unclosed(self, coroutine: Coroutine[Any, Any, object]) -> Iterator[None]:
        with self._ending:
            if not self.closed:
                yield
                return
        coroutine.close()
        raise ConnectionFailed(f"the connection of {self.address.job} was closed")

    def soon(self, function: Callable[[], object]) -> None:
        """Run a function on the connection's thread without waiting for it. Does nothing once it is closed."""
        with self._ending:
            if not self.closed:
                self._loop.call_soon_threadsafe(function)

    def on_reconnect(self, recover: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Await `recover()` on the connection's thread after each reconnection."""
        self._recoveries.append(recover)

    def close(self, *, flush_timeout_s: float = 2.0) -> None:
        """Send buffered messages, close the connection and end its thread. Closing twice is harmless."""
        if self.closed:
            return
        try:
            self.call(self._close(flush_timeout_s), timeout_s=flush_timeout_s + 1)
        except Exception as error:  # of many kinds, when the client is caught in the middle of a reconnection
            log.debug("closing the connection: %r", error)
        finally:
            try:
                self._stop()
            finally:  # Ctrl-C may end the wait
                self._after_close.close()

    def on_deleted(self, function: Callable[[], object]) -> None:
        """Call a function, on the connection's thread, once the cluster no longer has the job."""
        self._on_deleted.append(function)

    def mark_deleted(self) -> None:
        """Note that the cluster no longer has the job."""
        for function in self._on_deleted:
            self.soon(function)

    def after_close(self, function: Callable[[], object]) -> None:
        """Call a function after the connection is closed: the last one given is called first."""
        self._after_close.callback(function)

    # --- for coroutines on the connection's thread ---

    async def publish(self, subject: str, data: bytes | Pieces) -> None:
        """Publish a message, which a cut may lose. While NATS is away it is not sent.

        The memory of `data` must not change until it is sent: a large message is not copied.
        """
        if self.client.is_connected:
            try:
                await self.client.publish(subject, cast(bytes, data))
            except (nats.errors.Error, OSError) as error:
                log.debug("publishing %s: %r", subject, error)

    async def listen(self, subject: str, kind: type[M], handler: Callable[[M], object]) -> Subscription:
        """Subscribe to messages of one type, on a subject or a wildcard. Invalid ones are logged and skipped.

        `handler` takes each valid message, on the connection's thread. It must not block.
        """

        async def on_message(message: Msg) -> None:
            if (parsed := unpack_or_skip(kind, message.data, message.subject)) is not None:
                handler(parsed)

        return await self.client.subscribe(subject, cb=on_message)

    async def may_subscribe(self, subject: str) -> bool:
        """Return whether the server permits this connection to subscribe to a subject."""
        self._probe = refusals = list[Exception]()
        try:
            subscription = await self.client.subscribe(subject)
            await self.flush()  # a refusal comes before the answer
            await subscription.unsubscribe()
        finally:
            self._probe = None
        return not refusals

    async def flush(self) -> None:
        """Wait until the server has processed all publications and subscriptions that were sent before."""
        await self.client.flush()  # this one may overtake data that is not yet written
        await self.client.flush()

    async def ask(self, what: Ask) -> None:
        """Ask all processes of the job for something; see `Ask`."""
        await self.publish(self.subjects.ask(what), b"")

    async def on_ask(self, what: Ask, answer: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Await `answer()` soon after a process asks for this: once for all that ask at the same time."""
        asked = False

        async def answer_soon() -> None:
            nonlocal asked
            await asyncio.sleep(ANSWER_S)
            asked = False
            await answer()

        async def on_message(_: Msg) -> None:
            nonlocal asked
            if not asked:
                asked = True
                self._begin(answer_soon())

        await self.client.subscribe(self.subjects.ask(what), cb=on_message)

    async def _connect(self, role: Role | None, timeout_s: float) -> None:
        address, options = self.address, dict[str, Any]()
        try:
            if file := address.credentials:
                options |= login(file)
            if file := address.ca:
                options["tls"] = ssl.create_default_context(cafile=str(file))
        except OSError as error:  # that of ssl names no file
            why = f"{file} cannot be read: {error.strerror or error}"
            raise ConnectionFailed(f"{why}; write its absolute path into {CREDENTIALS} or {CA}") from error
        if address.server_name:
            options |= {"tls_hostname": address.server_name, "connect_timeout": TUNNEL_TIMEOUT_S}
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
        await asyncio.wait([connecting, self._refused], timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        failed = connecting.exception() if connecting.done() else None  # no other attempt would mend it
        if not connecting.done() or failed:
            connecting.cancel()
            self._drop_socket()
            cause = self._refused.result() if self._refused.done() else failed or self._last_error or TimeoutError()
            where = ", ".join(url.rpartition("@")[2].removeprefix("nats://") for url in address.url.split(","))
            late = "cannot be connected to" if failed else f"did not accept us within {timeout_s:g} s"
            how = "refused us" if self._refused.done() else late
            raise ConnectionFailed(f"NATS at {where} {how}: {cause!r}") from cause

    async def _check_job(self) -> None:
        permitted = True
        with suppress(nats.errors.Error, OSError, TimeoutError):  # the connection is lost, and comes back
            permitted = await self.may_subscribe(self.subjects.spec)  # which workers and learners may read
        if not permitted:
            raise ConnectionFailed(
                f"this NATS, or these credentials, are not those of {self.subjects.key}: use its own, which are in the "
                "Secrets of the job"
            )

    async def _close(self, timeout_s: float) -> None:
        if self.client.is_connected:
            await asyncio.wait_for(self.client.flush(), timeout_s)
        await self.client.close()

    async def _on_error(self, error: Exception) -> None:
        self._last_error = error
        if isinstance(error, ssl.SSLCertVerificationError) and self.address.ca:  # the file may have a new one
            with suppress(OSError):
                self.client.options["tls"] = ssl.create_default_context(cafile=str(self.address.ca))
        if not self.client.is_connected:
            self._drop_socket()
            if "authorization violation" in str(error).lower() and not self._refused.done():
                self._refused.set_result(error)
        # A reconnection mends a cut. Warn about errors that it does not mend.
        refused = "violation" in str(error).lower()
        if refused and self._probe is not None:
            self._probe.append(error)
            refused = False
        lasting = refused or isinstance(error, nats.errors.SlowConsumerError)
        level = logging.WARNING if lasting and type(error) not in self._warned_of else logging.DEBUG
        if lasting:
            self._warned_of.add(type(error))
        log.log(level, "NATS connection of %s: %r", self.address.job, error)

    def _drop_socket(self) -> None:
        """Close the socket of a failed attempt: the client would forget it and open another."""
        left = self.client._transport
        if left:
            left.close()  # type: ignore[no-untyped-call]

    async def _on_disconnected(self) -> None:
        # The client would send its buffer as soon as it is back, and who sent it sends it again.
        self.client._pending.clear()
        self.client._pending_data_size = 0

    async def _on_reconnected(self) -> None:
        self._warned_of.clear()
        for recover in self._recoveries:
            self._begin(recover())

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        pending = asyncio.all_tasks(self._loop)
        for task in pending:
            task.cancel()
        if pending:
            self._loop.run_until_complete(asyncio.wait(pending, timeout=1))
        self._loop.call_soon(self._drop_socket)  # of a connection that did not close in time
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()

    def _stop(self) -> None:
        with self._ending:  # what was begun before is cancelled, and nothing begins later
            self.closed = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)


def unpack_or_skip(kind: type[M], data: bytes, subject: str) -> M | None:
    """Unpack a message; None: it is invalid, which is logged."""
    try:
        return unpack(kind, data)
    except MessageInvalid as error:
        log.warning("skipped an invalid message on %s: %s", subject, error)
        return None
