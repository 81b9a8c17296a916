"""The changes to nats-py's client: large messages arrive unchanged, between any two clients."""

import asyncio
import os
import random
import signal
import ssl
from collections.abc import Callable
from contextlib import closing, suppress
from typing import Any

import nats
import pytest
import uvloop
from nats.aio.client import Client as NatsClient
from nats.aio.msg import Msg
from tests.job_server import Server
from tests.sdk.nats.encrypted import encrypt

from rollfleet.nats.client import LARGE_BYTES, Client, Pieces

SIZES = (0, 1, 100, LARGE_BYTES - 1, LARGE_BYTES, LARGE_BYTES + 1, 300_000, 1_000_000)
LOOPS = pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
Loop = Callable[[], asyncio.AbstractEventLoop]


def in_pieces(data: bytes) -> Any:
    """Cut in three."""
    half = max(1, len(data) // 2)
    return Pieces(data[:1], memoryview(data)[1:half], bytearray(data[half:]))


async def flush(client: NatsClient) -> None:
    """Until the server has dealt with all that was sent before."""
    await client.flush()  # this one may overtake what still waits to be written
    await client.flush()


async def carried(sender: Client, receiver: NatsClient) -> None:
    """Send many messages of every size, some with headers, some answered, and check all that arrives."""
    sizes = [*SIZES, *random.Random(0).choices(SIZES, k=100)]
    payloads = [random.Random(n).randbytes(size) for n, size in enumerate(sizes)]
    came: list[Msg] = []
    all_came = asyncio.Event()

    async def take(message: Msg) -> None:
        came.append(message)
        if len(came) == len(payloads):
            all_came.set()

    await receiver.subscribe("large.*", cb=take, pending_bytes_limit=0)
    await flush(receiver)
    for n, data in enumerate(payloads):
        headers = {"Number": str(n)} if n % 2 else None
        await sender.publish(f"large.{n}", in_pieces(data), headers=headers)
        if n % 10 == 0:
            await sender.flush()
    await flush(sender)
    async with asyncio.timeout(30):
        await all_came.wait()
    for n, (message, data) in enumerate(zip(came, payloads, strict=True)):
        assert message.subject == f"large.{n}"
        assert message.data == data
        assert (message.headers or {}).get("Number") == (str(n) if n % 2 else None)
    await sender.close()
    await receiver.close()


def over_tls(server: Server) -> ssl.SSLContext:
    """Start the server again over TLS, and return a context that trusts its certificate."""
    trusting = ssl.create_default_context()
    encrypt(server).configure_trust(trusting)
    return trusting


@LOOPS
@pytest.mark.parametrize(
    ("kind", "tls"),
    [(Client, False), (NatsClient, False), (Client, True)],
    ids=["at this client", "at a plain one", "over TLS"],
)
def test_messages_arrive(server: Server, loop: Loop, kind: type[NatsClient], tls: bool) -> None:
    trusting = over_tls(server) if tls else None

    async def main() -> None:
        sender, receiver = Client(), kind()
        for each in (sender, receiver):
            await each.connect(server.url(), tls=trusting)
        await carried(sender, receiver)

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(main())


@LOOPS
@pytest.mark.parametrize("refused", [False, True])
def test_an_end_of_a_connection_over_tls_is_no_warning(
    server: Server, loop: Loop, caplog: pytest.LogCaptureFixture, refused: bool
) -> None:
    trusting = over_tls(server)
    url = f"nats://admin:wrong@{server.host_port}" if refused else server.url()

    async def main() -> None:
        client, over, left = Client(), asyncio.Event(), list[asyncio.StreamWriter]()

        async def end(*_: object) -> None:
            over.set()
            if client._transport:  # noqa: SLF001 (nats-py leaves that of each failed attempt)
                left.append(client._transport._io_writer)  # type: ignore[attr-defined] # noqa: SLF001

        again: dict[str, Any] = {"max_reconnect_attempts": -1, "reconnect_time_wait": 0.1}
        connected = client.connect(url, tls=trusting, disconnected_cb=end, error_cb=end, **again)
        connecting = asyncio.ensure_future(connected)
        if not refused:
            await connecting
            os.kill(server.pid, signal.SIGTERM)
        async with asyncio.timeout(10):
            await over.wait()
        connecting.cancel()
        await asyncio.wait([connecting], timeout=5)
        await end()
        await client.close()
        for writer in left:
            writer.close()
            with suppress(OSError, TimeoutError):
                await asyncio.wait_for(writer.wait_closed(), 5)

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(main())
    assert "eof_received" not in caplog.text


@LOOPS
def test_a_message_that_is_cut_off_does_not_disturb_those_after_the_reconnection(loop: Loop) -> None:
    payload, sizes = random.Random(0).randbytes(200_000), [100, 0]

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Send a message, a small one, and the beginning of another, and die; then send the message again."""
        with closing(writer):
            writer.write(b'INFO {"max_payload":1048576,"headers":true}\r\n')
            while line := await reader.readline():
                if line.startswith(b"PING"):
                    writer.write(b"PONG\r\n")
                elif line.startswith(b"SUB"):
                    whole = b"MSG x 1 200000\r\n" + payload + b"\r\n"
                    writer.write(whole + b"MSG x 1 4\r\nlast\r\n" + whole[: sizes.pop(0)])
                    await writer.drain()
                    if sizes:
                        break

    async def ignore(_: Exception) -> None:
        """The cut is the subject of the test."""

    async def main() -> None:
        came: asyncio.Queue[Msg] = asyncio.Queue()
        client, server = Client(), await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        await client.connect(f"nats://127.0.0.1:{port}", reconnect_time_wait=0, error_cb=ignore)
        try:
            async with asyncio.timeout(10):
                await client.subscribe("x", cb=came.put)
                messages = [await came.get() for _ in range(4)]
                await client.close()
        finally:
            server.close()
        assert [each.data for each in messages] == [payload, b"last"] * 2
        assert not sizes

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(main())


async def test_a_payload_over_the_servers_limit_is_refused_before_it_is_sent(server: Server) -> None:
    client = Client()
    await client.connect(server.url())
    with pytest.raises(nats.errors.MaxPayloadError):
        await client.publish("large.x", Pieces(bytes(client.max_payload), b"1"))  # type: ignore[arg-type]
    await client.close()


@LOOPS
def test_an_answer_that_comes_after_its_flush_gave_up_does_not_end_the_reading(loop: Loop) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the first PING, and the second one only after a subscription, with a message behind."""
        answers = [b"PONG\r\n"]
        with closing(writer):
            writer.write(b'INFO {"max_payload":1048576,"headers":true}\r\n')
            while line := await reader.readline():
                if line.startswith(b"PING") and answers:
                    writer.write(answers.pop())
                elif line.startswith(b"SUB"):
                    writer.write(b"PONG\r\nMSG x 1 4\r\nlast\r\n")

    async def main() -> None:
        came: asyncio.Queue[Msg] = asyncio.Queue()
        client, server = Client(), await asyncio.start_server(serve, "127.0.0.1", 0)
        await client.connect(f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        try:
            with pytest.raises(nats.errors.FlushTimeoutError):
                await client.flush(timeout=0.05)  # type: ignore[arg-type]  # it only waits so long
            await client.subscribe("x", cb=came.put)
            async with asyncio.timeout(10):
                assert (await came.get()).data == b"last"
        finally:
            await client.close()
            server.close()

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(main())
