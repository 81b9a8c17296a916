"""The changes to nats-py's client: large messages arrive unchanged, between any two clients."""

import asyncio
import json
import random
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import nats
import pytest
import trustme
import uvloop
from nats.aio.client import Client as NatsClient
from nats.aio.msg import Msg
from tests.job_server import Server

from rollfleet.nats.client import LARGE_BYTES, Client, Pieces
from rollfleet.nats.embedded_server import CONFIG, NatsServer, start_nats_server
from rollfleet_api.subjects import Subjects

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


@LOOPS
@pytest.mark.parametrize("kind", [Client, NatsClient])
def test_messages_arrive_at_this_client_and_at_a_plain_one(server: Server, loop: Loop, kind: type[NatsClient]) -> None:
    async def main() -> None:
        sender, receiver = Client(), kind()
        for each in (sender, receiver):
            await each.connect(server.url())
        await carried(sender, receiver)

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(main())


@asynccontextmanager
async def tls_server(folder: Path) -> AsyncIterator[tuple[NatsServer, ssl.SSLContext]]:
    """A server over TLS, and a context that trusts its certificate."""
    authority, certificate, key = trustme.CA(), folder / "tls.crt", folder / "tls.key"
    issued = authority.issue_cert("127.0.0.1")
    issued.cert_chain_pems[0].write_to_path(certificate)
    issued.private_key_pem.write_to_path(key)
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    server = await start_nats_server(Subjects.parse("tls"), folder)
    await server.child.stop(5.0)
    config, tls = folder / CONFIG, {"cert_file": str(certificate), "key_file": str(key)}
    config.write_text(json.dumps(json.loads(config.read_text()) | {"tls": tls}))
    await server.start_again()
    try:
        yield server, trusting
    finally:
        await server.child.stop(5.0)


@LOOPS
def test_messages_arrive_over_tls(loop: Loop, tmp_path: Path) -> None:
    async def main() -> None:
        async with tls_server(tmp_path) as (server, trusting):
            sender, receiver = Client(), Client()
            for each in (sender, receiver):
                await each.connect(server.url(None), tls=trusting)
            await carried(sender, receiver)

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(main())


@LOOPS
@pytest.mark.parametrize("refused", [False, True])
def test_an_end_of_a_connection_over_tls_is_no_warning(
    loop: Loop, tmp_path: Path, caplog: pytest.LogCaptureFixture, refused: bool
) -> None:
    async def main() -> None:
        client, over = Client(), asyncio.Event()

        async def end(*_: object) -> None:
            over.set()

        async with tls_server(tmp_path) as (server, trusting):
            url = f"nats://admin:wrong@{server.host_port}" if refused else server.url(None)
            again: dict[str, Any] = {"max_reconnect_attempts": -1, "reconnect_time_wait": 0.1}
            connected = client.connect(url, tls=trusting, disconnected_cb=end, error_cb=end, **again)
            connecting = asyncio.ensure_future(connected)
            if not refused:
                await connecting
                await server.child.stop(5.0)
            async with asyncio.timeout(10):
                await over.wait()
            connecting.cancel()
        await client.close()
        if left := client._transport:  # noqa: SLF001 (nats-py leaves that of a failed attempt)
            left.close()  # type: ignore[no-untyped-call]
        await asyncio.sleep(0)

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(main())
    assert "eof_received" not in caplog.text


@LOOPS
def test_a_message_that_is_cut_off_does_not_disturb_those_after_the_reconnection(loop: Loop) -> None:
    payload, sizes = random.Random(0).randbytes(200_000), [100, 0]

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Send a message, a small one, and the beginning of another, and die; then send the message again."""
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
        writer.close()

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
