"""A NATS server for the job `default/test` and a hostile worker of another: a test may end it, and start it again."""

import json
import os
import signal
import subprocess
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from tests.ports import free_ports

from rollfleet.nats.embedded_server import find_nats_server
from rollfleet.nats.job_source import JobOwner
from rollfleet.nats.link import Link
from rollfleet.system.child_processes import die_with
from rollfleet_api.address import Address
from rollfleet_api.job import CollectorJob
from rollfleet_api.nats_server import OWNER, USERS, nats_configuration
from rollfleet_api.permissions import Role, permissions
from rollfleet_api.subjects import Subjects

SUBJECTS = Subjects(namespace="default", job="test")
TENANTS_JOB = Subjects(namespace="default", job="tenant")
TENANT = "tenant"  # a user besides those of the job: a worker of its own job
START_TIMEOUT_S = 30.0


class SharedNats:
    """The server. It gives links as `Server` does.

    Attributes:
        host_port: `127.0.0.1:<port>`.
    """

    def __init__(self, folder: Path, *, max_payload: int = 1 << 20) -> None:
        self._links, self._folder = ExitStack(), folder / "nats"
        self.host_port = f"127.0.0.1:{free_ports(1)[0]}"
        self._folder.mkdir()
        (self._folder / "nats.json").write_text(json.dumps(self._configuration(max_payload)))
        self._process = self._start()

    def url(self, user: str | None, host_port: str = "") -> str:
        """Return the URL for a role, or for `TENANT`; None: for the owner of both jobs."""
        name = user or OWNER
        return f"nats://{name}:{name}@{host_port or self.host_port}"

    def link(self, role: Role | None = None) -> Link:
        """Return a connection that is closed after the test."""
        link = Link(Address(url=self.url(role), job=SUBJECTS.key), role=role)
        self._links.callback(link.close)
        return link

    def own(self, job: CollectorJob) -> None:
        link = self.link()
        link.call(JobOwner(link, job).start(), timeout_s=10)

    def end(self, number: signal.Signals = signal.SIGKILL) -> None:
        """End the server with a signal, and wait."""
        self._process.send_signal(number)
        self._process.wait(START_TIMEOUT_S)

    def start_again(self) -> None:
        """Start it after `end`: on the same port, and without its state, which was in memory."""
        self._process = self._start()

    def stop(self) -> None:
        self._links.close()
        self._process.kill()
        self._process.wait()

    def _start(self) -> "subprocess.Popen[bytes]":
        command = [str(find_nats_server()), "-c", str(self._folder / "nats.json")]
        with (self._folder / "log").open("a") as log:
            return subprocess.Popen(command, stderr=log, preexec_fn=partial(die_with, os.getpid()))

    def _configuration(self, max_payload: int) -> dict[str, object]:
        configuration = nats_configuration(SUBJECTS, {user: user for user in USERS})
        allowed = permissions(TENANTS_JOB, Role.WORKER)
        may = {"publish": allowed.publish, "subscribe": allowed.subscribe}
        configuration["authorization"]["users"].append({"user": TENANT, "password": TENANT, "permissions": may})
        return configuration | {"listen": self.host_port, "max_payload": max_payload}
