"""The operator's connections over TLS."""

import asyncio
import json
from pathlib import Path

import pytest
import trustme

from rollfleet.nats.embedded_server import CONFIG, start_nats_server
from rollfleet_api.subjects import Subjects
from rollfleet_operator.nats.connection import Connection, Server, own_user
from rollfleet_operator.nats.tokens import Kind, Signer


async def test_an_end_of_a_connection_over_tls_is_no_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    issued.cert_chain_pems[0].write_to_path(tmp_path / "tls.crt")
    issued.private_key_pem.write_to_path(tmp_path / "tls.key")
    server = await start_nats_server(Subjects.parse("tls"), tmp_path)
    await server.child.stop(5.0)
    settings = json.loads((tmp_path / CONFIG).read_text())
    del settings["authorization"]  # any identity may connect
    tls = {"cert_file": str(tmp_path / "tls.crt"), "key_file": str(tmp_path / "tls.key")}
    (tmp_path / CONFIG).write_text(json.dumps(settings | {"tls": tls}))
    await server.start_again()
    where = Server(url=f"tls://{server.host_port}", ca=authority.cert_pem.bytes())
    connection = Connection(where, own_user(Signer.of(Kind.ACCOUNT, bytes(32))), "test")
    try:
        client = await connection.client()
        over = asyncio.Event()

        async def end() -> None:
            over.set()

        client._closed_cb = end
        await server.child.stop(5.0)
        async with asyncio.timeout(10):
            await over.wait()
    finally:
        await connection.close()
        await server.child.stop(5.0)
    assert "eof_received" not in caplog.text
