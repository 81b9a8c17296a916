"""NATS for the operator's tests: servers of single jobs, an organisation's, and the programs of jobs."""

import asyncio
import base64
import itertools
import json
import os
import re
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from nats.aio.client import Client
from nats.errors import Error as NatsError
from tests.api.job_data import job_data
from tests.ports import free_ports

from rollfleet.nats.embedded_server import find_nats_server
from rollfleet_api.address import Address
from rollfleet_api.job import CollectorJob
from rollfleet_api.messages import pack
from rollfleet_api.permissions import Role
from rollfleet_api.publication import subjects_of
from rollfleet_api.state.processes import Heartbeats
from rollfleet_api.subjects import Ask
from rollfleet_api.validation import parse_job
from rollfleet_operator import nats_server
from rollfleet_operator.errors import NatsUnavailable
from rollfleet_operator.installation_key import KEY_BYTES, InstallationKey
from rollfleet_operator.nats.server_port import NatsOnServers
from rollfleet_operator.nats_access import Login, NatsAccess
from rollfleet_operator.settings import Settings

START_TIMEOUT_S = 60.0


class NatsProcess:
    """A nats-server with a configuration, on a free port of this machine, which it keeps.

    Attributes:
        folder: The folder of its files.
        url: Its URL.
    """

    def __init__(self, folder: Path, configuration: Mapping[str, Any], url: str = "") -> None:
        folder.mkdir(parents=True)
        self.folder, self.url = folder, url or f"nats://127.0.0.1:{free_ports(1)[0]}"
        here: dict[str, Any] = {
            "listen": self.url.removeprefix("nats://"),
            "http": "127.0.0.1:-1",
            "ports_file_dir": str(folder),
        }
        (folder / "nats.json").write_text(json.dumps({**configuration, **here}))
        self.start_again()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def peak_mib(self) -> int:
        return memory_mib(self._process.pid)

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(START_TIMEOUT_S)

    def start_again(self) -> None:
        """After `kill`: on the same port, and empty."""
        with (self.folder / "log").open("a") as log:
            command = [str(find_nats_server()), "-c", str(self.folder / "nats.json")]
            self._process = subprocess.Popen(command, stderr=log)
        ports = self.folder / f"nats-server_{self._process.pid}.ports"
        until = time.monotonic() + START_TIMEOUT_S
        while not (ports.exists() and ports.stat().st_size):
            assert self._process.poll() is None, self.log
            assert time.monotonic() < until, "nats-server did not come up"
            time.sleep(0.01)

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(START_TIMEOUT_S)


class OrganisationNats(NatsProcess):
    """The fixture `nats_server`: a NATS that an organisation has already, with one plain user for all jobs.

    Attributes:
        given: The folder with the user's files, as the chart mounts it.
    """

    def __init__(self, folder: Path) -> None:
        user = {"user": "collecting", "password": "a-password"}
        super().__init__(folder, {"authorization": {"users": [user]}})
        self.given = folder / "given"
        self.given.mkdir()
        (self.given / "username").write_text(user["user"])
        (self.given / "password").write_text(user["password"])

    @property
    def access(self) -> NatsAccess:
        return NatsAccess.on(self.url, self.given, InstallationKey(bytes(KEY_BYTES)))


def memory_mib(pid: int) -> int:
    """The most memory that a process has had."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found
    return int(found[1]) >> 10


@dataclass(frozen=True, kw_only=True)
class Here(NatsAccess):
    """The access to servers on this machine instead of pods."""

    servers: dict[str, NatsProcess] = field(default_factory=dict)

    def login(self, job: CollectorJob, user: str, *, host: str = "") -> Login:
        return replace(NatsAccess.login(self, job, user), url=self.servers[job.key].url)


class Guest:
    """Somebody's connection.

    Attributes:
        refused: What the server did not permit it, in order.
    """

    def __init__(self) -> None:
        self.client = Client()
        self.refused: asyncio.Queue[str] = asyncio.Queue()

    async def flush(self) -> None:
        """Wait until the server has dealt with all that was sent before."""
        await self.client.flush()  # this one may overtake what still waits to be written
        await self.client.flush()


class Site:
    """Servers of jobs, as the operator configures them, and its NATS, in one event loop."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._numbers = folder, itertools.count()
        self.access = Here(key=InstallationKey(os.urandom(KEY_BYTES)), tls=False)
        self.nats, self._others = NatsOnServers(self.access), list[NatsOnServers]()
        self._guests = AsyncExitStack()

    @staticmethod
    def job(
        name: str = "a", *, namespace: str = "default", uid: str = "uid-1", generation: int = 1, **spec: object
    ) -> CollectorJob:
        small = {"policy": {"random": {}}, "collect": {"framesPerBatch": 8}}
        metadata = {"name": name, "namespace": namespace, "uid": uid, "generation": generation}
        return parse_job(job_data(metadata, **small | spec))

    def server(self, job: CollectorJob, *, url: str = "") -> NatsProcess:
        """Return the server of a job, which is started by the first call; `url`: where an earlier one was."""
        if job.key not in self.access.servers:
            written = nats_server.secret(job, Settings(), self.access)["data"]["nats.json"]
            folder = self._folder / f"server-{next(self._numbers)}"
            self.access.servers[job.key] = NatsProcess(folder, json.loads(base64.b64decode(written)), url)
        return self.access.servers[job.key]

    def without_server(self, job: CollectorJob) -> None:
        """Its pod goes."""
        self.access.servers.pop(job.key).stop()

    async def start(self, name: str = "a", **fields: Any) -> CollectorJob:
        """Return a job that the operator has published on its server."""
        job = self.job(name, **fields)
        self.server(job)
        await self.nats.heartbeats(job)
        return job

    def another_operator(self) -> NatsOnServers:
        """Return the NATS of another operator, which has heard nothing; it is closed after the test."""
        self._others.append(NatsOnServers(self.access))
        return self._others[-1]

    async def close(self) -> None:
        await self._guests.aclose()
        for nats in (self.nats, *self._others):
            await nats.close()
        for server in self.access.servers.values():
            server.stop()

    def address(self, job: CollectorJob, user: str) -> Address:
        login = self.access.login(job, user)
        path = self._folder / f"{job.metadata.namespace}.{job.metadata.name}-{user}.creds"
        path.write_bytes(login.credentials)
        return Address(url=login.url, job=job.key, credentials=path)

    @asynccontextmanager
    async def guest(self, job: CollectorJob, user: str, *, password: str | None = None) -> AsyncIterator[Guest]:
        guest = Guest()

        async def on_error(error: Exception) -> None:
            guest.refused.put_nowait(str(error))

        try:
            await guest.client.connect(
                self.server(job).url,
                user=user,
                password=password or self.access.key.password(job, user),
                error_cb=on_error,
                allow_reconnect=False,
            )
            yield guest
        finally:
            await guest.client.close()
            if left := guest.client._transport:  # noqa: SLF001 (nats-py leaves that of a failed attempt)
                left.close()  # type: ignore[no-untyped-call]

    async def refusal(self, job: CollectorJob, user: str, password: str) -> str:
        """Return why the server takes no connection with this password."""
        with pytest.raises((NatsError, TimeoutError)) as refused:
            async with self.guest(job, user, password=password):
                pass
        return str(refused.value)

    async def speak(self, job: CollectorJob, role: Role, messages: Mapping[str, Any]) -> None:
        """Answer as a role, now and whenever the operator asks. Bytes are sent as they are."""
        guest = await self._guests.enter_async_context(self.guest(job, role))
        data = {subject: each if isinstance(each, bytes) else pack(each) for subject, each in messages.items()}

        async def answer(_: Any = None) -> None:
            for subject, each in data.items():
                await guest.client.publish(subject, each)
            await guest.flush()

        await guest.client.subscribe(subjects_of(job).ask(Ask.HEARTBEATS), cb=answer)
        await answer()

    async def heard(self, job: CollectorJob, enough: Callable[[Heartbeats], bool]) -> Heartbeats:
        """Return the operator's heartbeats of a job once they are enough."""
        async with asyncio.timeout(30):
            while True:
                with suppress(NatsUnavailable):
                    if enough(found := await self.nats.heartbeats(job)):
                        return found
