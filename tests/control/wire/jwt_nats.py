"""A nats-server in JWT mode, an operator on it, and the programs of jobs."""

import asyncio
import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from nats.aio.client import Client
from nats.errors import Error as NatsError
from tests.api.job_data import job_data

from rollfleet.nats.embedded_server import find_nats_server
from rollfleet_api.address import Address
from rollfleet_api.job import CollectorJob
from rollfleet_api.messages import pack
from rollfleet_api.permissions import Role, inbox_prefix
from rollfleet_api.streams import subjects_of
from rollfleet_api.subjects import Subjects
from rollfleet_api.validation import parse_job
from rollfleet_operator.nats.connection import Connection, own_user
from rollfleet_operator.nats.server_port import NatsOnServer
from rollfleet_operator.nats.settings import NatsSettings
from rollfleet_operator.nats.trust import new_keys, trust_configuration
from rollfleet_operator.nats.users import role_credentials
from rollfleet_operator.nats_port import Endpoint

START_TIMEOUT_S = 60.0
PENDING_BYTES = 32 << 20  # the chart's default
ROOM_BYTES = 4 << 30  # as a bound: nothing is allocated


class NatsInJwtMode:
    """A nats-server that trusts one operator.

    Args:
        folder: The folder of its files.
        keys: The operator's keys; None: new ones.

    Attributes:
        folder: Its files.
        monitoring: The URL of its health checks.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.keys, self._port = folder, new_keys(os.urandom(32)), -1
        (folder / "trust.conf").write_text(trust_configuration(self.keys, now_s=int(time.time())))
        self._start()

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self._port}"

    @property
    def settings(self) -> NatsSettings:
        return NatsSettings(endpoint=Endpoint(url=self.url), keys=self.keys)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def peak_mib(self) -> int:
        return memory_mib(self._process.pid)

    def kill(self) -> None:
        """SIGKILL; it keeps its accounts."""
        self._process.kill()
        self._process.wait(START_TIMEOUT_S)

    def start_again(self, *, empty: bool = False, resolver: str | None = None) -> None:
        """After `kill`, on the same port; `empty`: with a new disk; `resolver`: other than the chart has it."""
        if empty:
            for store in ("jetstream", "accounts"):
                shutil.rmtree(self.folder / store)
        self._start(resolver)

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(START_TIMEOUT_S)

    def _start(self, resolver: str | None = None) -> None:
        store, accounts = self.folder / "jetstream", self.folder / "accounts"
        full = f'{{type: full, dir: "{accounts}", allow_delete: true, hard_delete: true}}'
        (self.folder / "nats.conf").write_text(
            f"listen: 127.0.0.1:{self._port}\n"
            f'ports_file_dir: "{self.folder}"\n'
            "http: 127.0.0.1:-1\n"
            "include trust.conf\n"
            f"max_pending: {PENDING_BYTES}\n"
            f"resolver: {resolver or full}\n"
            f'jetstream: {{store_dir: "{store}", max_file_store: 0, max_memory_store: {ROOM_BYTES}}}\n'
        )
        self._process, urls = start_nats_server(self.folder / "nats.conf")
        self._port = int(urls["nats"][0].rpartition(":")[2])
        self.monitoring = urls["monitoring"][0]


def start_nats_server(configuration: Path) -> tuple[subprocess.Popen[bytes], dict[str, list[str]]]:
    """Start a server, and wait for it; return it and where it listens. Its `ports_file_dir` is its folder."""
    folder = configuration.parent
    with (folder / "log").open("a") as log:
        process = subprocess.Popen([str(find_nats_server()), "-c", str(configuration)], stderr=log)
    ports = folder / f"nats-server_{process.pid}.ports"
    until = time.monotonic() + START_TIMEOUT_S
    while not (ports.exists() and ports.stat().st_size):
        assert process.poll() is None, (folder / "log").read_text()
        assert time.monotonic() < until, "nats-server did not come up"
        time.sleep(0.01)
    return process, json.loads(ports.read_text())


def memory_mib(pid: int, line: str = "VmHWM") -> int:
    """The most memory that a process has had; `VmRSS`: what it has now."""
    found = re.search(rf"{line}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found
    return int(found[1]) >> 10


class Guest:
    """Somebody's connection.

    Attributes:
        refused: What the server did not permit it, in order.
        closed: Whether it is over.
    """

    def __init__(self) -> None:
        self.client = Client()
        self.refused: asyncio.Queue[str] = asyncio.Queue()
        self.closed = asyncio.Event()

    async def flush(self) -> None:
        """Wait until the server has dealt with all that was sent before."""
        await self.client.flush()  # this one may overtake what still waits to be written
        await self.client.flush()


class Site:
    """A server and the operator's NATS to it, in one event loop."""

    def __init__(self, server: NatsInJwtMode, folder: Path) -> None:
        self.server, self._folder = server, folder
        self.nats, self._others = NatsOnServer(server.settings), list[NatsOnServer]()

    @staticmethod
    def job(name: str = "a", *, namespace: str = "default", uid: str = "uid-1", **spec: object) -> CollectorJob:
        small = {"policy": {"random": {}}, "collect": {"framesPerBatch": 8}}
        return parse_job(job_data({"name": name, "namespace": namespace, "uid": uid}, **small | spec))

    async def start(self, name: str = "a", **fields: Any) -> CollectorJob:
        """Return a job that the operator has provisioned."""
        job = self.job(name, **fields)
        await self.nats.provision(job)
        return job

    def nats_with(self, **settings: Any) -> NatsOnServer:
        """Return the NATS of another operator, which has heard nothing; it is closed after the test."""
        self._others.append(NatsOnServer(replace(self.server.settings, **settings)))
        return self._others[-1]

    async def close(self) -> None:
        for nats in (self.nats, *self._others):
            await nats.close()

    def credentials(self, job: CollectorJob, role: Role, *, life_s: int = 3600, ago_s: int = 0) -> bytes:
        return role_credentials(job, role, self.server.keys, issued_s=int(time.time()) - ago_s, life_s=life_s)

    def file(self, credentials: bytes, name: str = "user.creds") -> Path:
        path = self._folder / name
        path.write_bytes(credentials)
        return path

    def address(self, job: CollectorJob, role: Role) -> Address:
        file = self.file(self.credentials(job, role), f"{job.metadata.name}-{role}.creds")
        return Address(url=self.server.url, job=job.key, credentials=file)

    @asynccontextmanager
    async def guest(self, job: CollectorJob, role: Role, credentials: bytes | None = None) -> AsyncIterator[Guest]:
        created = credentials or self.credentials(job, role)
        guest = Guest()

        async def on_error(error: Exception) -> None:
            guest.refused.put_nowait(str(error))

        async def on_close() -> None:
            guest.closed.set()

        try:
            await guest.client.connect(
                self.server.url,
                user_credentials=str(self.file(created)),
                inbox_prefix=inbox_prefix(subjects_of(job), role),
                error_cb=on_error,
                closed_cb=on_close,
                allow_reconnect=False,
            )
            yield guest
        finally:
            await guest.client.close()
            if left := guest.client._transport:  # of an attempt that failed
                left.close()  # type: ignore[no-untyped-call]

    async def refusal(self, job: CollectorJob, role: Role, credentials: bytes) -> str:
        """Return why the server takes no connection with these credentials."""
        with pytest.raises((NatsError, TimeoutError)) as refused:
            async with self.guest(job, role, credentials):
                pass
        return str(refused.value)

    async def speak(self, job: CollectorJob, role: Role, messages: Mapping[str, Any]) -> None:
        """Say something as a role, and see that it was stored."""
        async with self.guest(job, role) as guest:
            for subject, message in messages.items():
                await guest.client.jetstream().publish(subject, pack(message))

    async def deafen(self) -> None:
        for connection, _ in self.nats._connections._open.values():
            client = await connection.account.client()
            for subscription in list(client._subs.values()):
                if not subscription.subject.startswith("_INBOX"):
                    await subscription.unsubscribe()

    async def stored(self, job: CollectorJob, subject: str) -> bytes:
        async with self.administrator(subjects_of(job)) as client:
            request = f"$JS.API.DIRECT.GET.{subjects_of(job).state_stream}.{subject}"
            return (await client.request(request, timeout=5)).data

    @asynccontextmanager
    async def administrator(self, subjects: Subjects) -> AsyncIterator[Client]:
        account = self.server.keys.account(subjects)
        connection = Connection(self.server.settings.endpoint, own_user(account), "test")
        try:
            yield await connection.client()
        finally:
            await connection.close()
