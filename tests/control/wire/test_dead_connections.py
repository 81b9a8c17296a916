"""Connections to a NATS that no longer answers: the operator leaves them, and soon."""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trustme
from tests.control.wire.job_nats import NatsProcess, OrganisationNats, Site
from tests.faults.proxy import Proxy
from tests.held import descriptors

from rollfleet_operator.errors import NatsUnavailable
from rollfleet_operator.nats.connection import Connection
from rollfleet_operator.nats.server_port import NatsOnServers
from rollfleet_operator.nats_access import Login, NatsAccess
from rollfleet_operator.nats_port import JobKey


@pytest.mark.parametrize(
    "send",
    [lambda nats: nats.heartbeats(Site.job()), lambda nats: nats.remove(JobKey("default", "a"))],
    ids=["a look", "the end of a job"],
)
async def test_a_connection_that_carries_nothing_any_more_is_replaced_at_the_next_attempt(
    nats_server: OrganisationNats, send: Callable[[NatsOnServers], Awaitable[object]]
) -> None:
    proxy = Proxy([nats_server.url.removeprefix("nats://")])
    nats = NatsOnServers(NatsAccess.on(f"nats://{proxy.host_port}", nats_server.given, nats_server.access.key))
    await nats.heartbeats(Site.job())
    proxy.stall_for_good()
    with pytest.raises(NatsUnavailable):
        await send(nats)
    await send(nats)
    assert proxy.connections == 2
    await nats.close()
    proxy.close()


async def test_a_connection_over_tls_to_a_server_that_is_stopped_is_closed_soon(tmp_path: Path) -> None:
    authority, certificate, key = trustme.CA(), tmp_path / "tls.crt", tmp_path / "tls.key"
    issued = authority.issue_cert("127.0.0.1")
    issued.cert_chain_pems[0].write_to_path(certificate)
    issued.private_key_pem.write_to_path(key)
    server = NatsProcess(tmp_path / "nats", {"tls": {"cert_file": str(certificate), "key_file": str(key)}})
    try:
        before = descriptors()
        connection = Connection(Login(url=server.url, credentials=b"a:b", ca=authority.cert_pem.bytes()), "a")
        await connection.client()
        os.kill(server.pid, signal.SIGSTOP)
        async with asyncio.timeout(10):  # without a limit it takes 30 s
            await connection.close()
    finally:
        server.kill()
    async with asyncio.timeout(30):
        while descriptors() - before:  # noqa: ASYNC110 (the kernel closes the socket now)
            await asyncio.sleep(0.01)
