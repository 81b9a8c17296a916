"""The changes to nats-py's client: large messages arrive unchanged, between any two clients."""

import asyncio
import json
import random
import ssl
from collections.abc import Awaitable, Callable
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
LOOPS = (asyncio.new_event_loop, uvloop.new_event_loop)
Payload = bytes | Pieces


def sizes(count: int) -> list[int]:
    """Of messages of every kind behind each other."""
    return [*SIZES, *random.Random(0).choices(SIZES, k=count)]


def in_pieces(data: bytes) -> Payload:
    """Cut at random offsets."""
    half = max(1, len(data) // 2)
    return Pieces(data[:1], memoryview(data)[1:half], bytearray(data[half:]))


async def flush(client: NatsClient) -> None:
    """Until the server has dealt with all that was sent before."""
    await client.flush()  # this one may overtake what still waits to be written
    await client.flush()


async def carried(sender: NatsClient, receiver: NatsClient, count: int, form: Callable[[bytes], Payload]) -> None:
    """Send many, some with headers, some answered, and check all that arrives."""
    payloads = [random.Random(n).randbytes(size) for n, size in enumerate(sizes(count))]
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
        await sender.publish(f"large.{n}", form(data), headers=headers)  # type: ignore[arg-type]
        if n % 10 == 0:
            await sender.flush()
    await flush(sender)
    async with asyncio.timeout(30):
        await all_came.wait()
    for n, (message, data) in enumerate(zip(came, payloads, strict=True)):
        assert message.subject == f"large.{n}"
        assert message.data == data
        assert (message.headers or {}).get("Number") == (str(n) if n % 2 else None)


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize(("sender", "receiver"), [(Client, Client), (Client, NatsClient)])
def test_messages_arrive_between_this_client_and_plain_ones(
    server: Server,
    loop: Callable[[], asyncio.AbstractEventLoop],
    sender: type[NatsClient],
    receiver: type[NatsClient],
) -> None:
    async def main() -> None:
        ends = sender(), receiver()
        for each in ends:
            await each.connect(server.url())
        await carried(*ends, count=100, form=in_pieces if sender is Client else bytes)
        for each in ends:
            await each.close()

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(main())


@pytest.fixture
def trusting() -> ssl.SSLContext:
    """Trust the certificate of `tls_server`."""
    return ssl.create_default_context()


@pytest.fixture
def tls_server(tmp_path: Path, trusting: ssl.SSLContext) -> Callable[[], Awaitable[NatsServer]]:
    """Start a server over TLS."""
    authority = trustme.CA()
    certificate, key = tmp_path / "tls.crt", tmp_path / "tls.key"
    issued = authority.issue_cert("127.0.0.1")
    issued.cert_chain_pems[0].write_to_path(certificate)
    issued.private_key_pem.write_to_path(key)
    authority.configure_trust(trusting)

    async def start() -> NatsServer:
        server = await start_nats_server(Subjects.parse("tls"), tmp_path)
        await server.child.stop(5.0)
        config = tmp_path / CONFIG
        tls = {"cert_file": str(certificate), "key_file": str(key)}
        config.write_text(json.dumps(json.loads(config.read_text()) | {"tls": tls}))
        await server.start_again()
        return server

    return start


@pytest.mark.parametrize("loop", LOOPS)
def test_messages_arrive_over_tls(
    loop: Callable[[], asyncio.AbstractEventLoop],
    tls_server: Callable[[], Awaitable[NatsServer]],
    trusting: ssl.SSLContext,
) -> None:
    async def main() -> None:
        server = await tls_server()
        try:
            ends = Client(), Client()
            for each in ends:
                await each.connect(server.url(None), tls=trusting)
            await carried(*ends, count=100, form=in_pieces)
            for each in ends:
                await each.close()
        finally:
            await server.child.stop(5.0)

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(main())


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("refused", [False, True])
def test_an_end_of_a_connection_over_tls_is_no_warning(
    loop: Callable[[], asyncio.AbstractEventLoop],
    tls_server: Callable[[], Awaitable[NatsServer]],
    trusting: ssl.SSLContext,
    caplog: pytest.LogCaptureFixture,
    refused: bool,
) -> None:
    async def main() -> None:
        server, client, over = await tls_server(), Client(), asyncio.Event()

        async def end(*_: object) -> None:
            over.set()

        url = f"nats://admin:wrong@{server.host_port}" if refused else server.url(None)
        again: dict[str, Any] = {"max_reconnect_attempts": -1, "reconnect_time_wait": 0.1}
        connected = client.connect(url, tls=trusting, disconnected_cb=end, error_cb=end, **again)
        connecting = asyncio.ensure_future(connected)
        try:
            if not refused:
                await connecting
                await server.child.stop(5.0)
            async with asyncio.timeout(10):
                await over.wait()
        finally:
            connecting.cancel()
            await server.child.stop(5.0)
            await client.close()
            if client._transport:
                client._transport.close()  # type: ignore[no-untyped-call]
            await asyncio.sleep(0)

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(main())
    assert "eof_received" not in caplog.text


async def test_a_payload_over_the_servers_limit_is_refused_before_it_is_sent(server: Server) -> None:
    client = Client()
    await client.connect(server.url())
    with pytest.raises(nats.errors.MaxPayloadError):
        await client.publish("large.x", Pieces(bytes(client.max_payload), b"1"))  # type: ignore[arg-type]
    await client.close()
