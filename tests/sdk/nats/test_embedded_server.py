"""The embedded nats-server: on a free port, closed to strangers, without a trace after its end."""

import asyncio
import os
import socket
import stat
import sys
from pathlib import Path

import psutil
import pytest
from tests.job_server import Server

from rollfleet.errors import ConnectionFailed, RollfleetError
from rollfleet.nats import embedded_server as nats_server
from rollfleet.nats.embedded_server import NatsServer, find_nats_server, start_nats_server
from rollfleet.nats.link import Link
from rollfleet_api.address import Address
from rollfleet_api.nats_server import OWNER, USERS
from rollfleet_api.subjects import Subjects

SUBJECTS = Subjects(namespace="default", job="test")


def port_of(server: NatsServer) -> int:
    host, _, port = server.host_port.rpartition(":")
    assert host == "127.0.0.1"
    return int(port)


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def program(folder: Path, script: str) -> None:
    """Write a program called nats-server."""
    folder.mkdir()
    file = folder / "nats-server"
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)


async def stop(server: NatsServer) -> None:
    await server.child.stop(5)
    await server.child.wait()


async def test_two_servers_at_once_have_different_ports_and_passwords(tmp_path: Path) -> None:
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        folder.mkdir()
    servers = await asyncio.gather(*(start_nats_server(SUBJECTS, folder) for folder in folders))
    try:
        assert all(listens(port_of(server)) for server in servers)
        assert len({server.host_port for server in servers}) == 2
        passwords = [password for server in servers for password in server.passwords.values()]
        assert len(set(passwords)) == 2 * len(USERS) == 6
    finally:
        await asyncio.gather(*map(stop, servers))
    assert not any(listens(port_of(server)) for server in servers)


def test_server_listens_on_the_loopback_only(server: Server) -> None:
    connections = psutil.Process(server.pid).net_connections()
    assert [f"{each.laddr.ip}:{each.laddr.port}" for each in connections] == [server.host_port]
    assert server.host_port.startswith("127.0.0.1:")


def test_passwords_are_readable_by_the_owner_only(server: Server) -> None:
    passwords = server.passwords
    files = [file for file in server.folder.rglob("*") if file.is_file()]
    found = [file for file in files if passwords[OWNER].encode() in file.read_bytes()]
    assert [(file.name, stat.S_IMODE(file.stat().st_mode)) for file in found] == [("nats.json", 0o600)]
    command = psutil.Process(server.pid).cmdline()
    assert not [word for word in command for password in passwords.values() if password in word]


@pytest.mark.parametrize("credentials", ["", *(f"{user}:not-the-password@" for user in USERS)])
def test_no_password_and_a_wrong_one_are_refused_with_the_address(server: Server, credentials: str) -> None:
    address = Address(url=f"nats://{credentials}{server.host_port}", job="default/test")
    with pytest.raises(ConnectionFailed, match=f"NATS at {server.host_port}.*(?i:authorization violation)") as error:
        Link(address, role=None, timeout_s=60)
    assert "not-the-password" not in str(error.value)


def test_program_on_the_path_wins_over_the_one_beside_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("path", "beside"):
        program(tmp_path / name, "true")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "beside/python"))
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    assert find_nats_server() == tmp_path / "path/nats-server"
    monkeypatch.setenv("PATH", "")
    assert find_nats_server() == tmp_path / "beside/nats-server"


def test_server_that_ends_at_once_is_an_error_with_its_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path / "bin", "echo no space on this disk >&2; exit 1")
    monkeypatch.setenv("PATH", str(tmp_path / "bin") + os.pathsep + os.environ["PATH"])
    with pytest.raises(RollfleetError, match="ended at once: no space on this disk"):
        asyncio.run(start_nats_server(SUBJECTS, tmp_path))


def test_server_that_does_not_come_up_is_ended_with_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path / "bin", f"echo $$ > {tmp_path}/pid; echo still thinking; exec sleep 600")
    monkeypatch.setenv("PATH", str(tmp_path / "bin") + os.pathsep + os.environ["PATH"])
    monkeypatch.setattr(nats_server, "START_TIMEOUT_S", 2.0)
    with pytest.raises(RollfleetError, match=r"did not come up within 2 s: still thinking"):
        asyncio.run(start_nats_server(SUBJECTS, tmp_path))
    assert not psutil.pid_exists(int((tmp_path / "pid").read_text()))


def test_start_that_is_cancelled_leaves_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "pid")
    program(tmp_path / "bin", f"echo $$ > {tmp_path}/pid; exec sleep 600")
    monkeypatch.setenv("PATH", str(tmp_path / "bin") + os.pathsep + os.environ["PATH"])

    async def go() -> int:
        starting = asyncio.create_task(start_nats_server(SUBJECTS, tmp_path))
        pid = int(await asyncio.to_thread((tmp_path / "pid").read_text))  # waits until it is written
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        return pid

    assert not psutil.pid_exists(asyncio.run(go()))
