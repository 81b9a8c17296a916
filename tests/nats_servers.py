"""NATS servers for the job `default/test`, one alone or a cluster: a test may end each of them, and start it again."""

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from nats.errors import Error as NatsError
from tests.ports import free_ports

from rollfleet.errors import JetStreamRefused, Timeout
from rollfleet.nats.embedded_server import find_nats_server
from rollfleet.nats.link import Link
from rollfleet.nats.streams import provision
from rollfleet.system.child_processes import die_with
from rollfleet_api.address import Address
from rollfleet_api.job import CollectorJob
from rollfleet_api.permissions import Role, permissions
from rollfleet_api.subjects import Subjects

SUBJECTS = Subjects(namespace="default", job="test")
TENANTS_JOB = Subjects(namespace="default", job="tenant")
TENANT, ADMIN = "tenant", "admin"  # users besides the roles of the job; the tenant is a worker of its own job
START_TIMEOUT_S = 30.0


class NatsServers:
    """The servers. They give links as `Server` does.

    Args:
        folder: The folder of all files; those of server 2 are in `nats-2`.
        count: How many. More than one are a cluster.

    Attributes:
        host_ports: `127.0.0.1:<port>` of each server.
    """

    def __init__(self, folder: Path, count: int = 1, *, max_payload: int = 1 << 20) -> None:
        self._links = ExitStack()
        ports = free_ports(2 * count)
        self.host_ports = [f"127.0.0.1:{port}" for port in ports[:count]]
        self._routes = [f"nats://127.0.0.1:{port}" for port in ports[count:]]
        self._max_payload = max_payload
        self._folders = [folder / f"nats-{index}" for index in range(count)]
        for index, each in enumerate(self._folders):
            each.mkdir(exist_ok=True)
            (each / "nats.json").write_text(json.dumps(self._configuration(index)))
        self._processes = [self._start(index) for index in range(count)]
        self._wait_for_a_leader()

    def url(self, user: str | None, host_ports: Sequence[str] = ()) -> str:
        """Return the URL for a role, or for `TENANT`; None: for the owner of both jobs."""
        name = user or ADMIN
        return ",".join(f"nats://{name}:{name}@{each}" for each in host_ports or self.host_ports)

    def link(self, role: Role | None = None) -> Link:
        """Return a connection that is closed after the test."""
        link = Link(Address(url=self.url(role), job=SUBJECTS.key), role=role)
        self._links.callback(link.close)
        return link

    def provision(self, job: CollectorJob) -> None:
        link, until = self.link(), time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                return link.call(provision(link, job), timeout_s=10)
            except JetStreamRefused:  # the servers do not know each other's free space yet
                assert time.monotonic() < until, "the servers do not take the job"
                time.sleep(0.1)

    def leader_of(self, stream: str) -> int:
        link = self.link()
        until = time.monotonic() + START_TIMEOUT_S
        while True:
            answer = link.call(link.client.request(f"$JS.API.STREAM.INFO.{stream}", timeout=5))
            if leader := json.loads(answer.data).get("cluster", {}).get("leader"):
                return int(leader.removeprefix("nats-"))
            assert time.monotonic() < until, f"{stream} has no leader"

    def storage(self, index: int = 0) -> Path:
        return self._folders[index] / "jetstream"

    def end(self, index: int = 0, number: signal.Signals = signal.SIGKILL) -> None:
        """End a server with a signal, and wait."""
        self._processes[index].send_signal(number)
        self._processes[index].wait(START_TIMEOUT_S)

    def start_again(self, index: int = 0, *, empty: bool = False) -> None:
        """Start a server after `end`; `empty`: without its storage."""
        if empty:
            shutil.rmtree(self.storage(index), ignore_errors=True)
        self._processes[index] = self._start(index)

    def stop(self) -> None:
        self._links.close()
        for process in self._processes:
            process.kill()
            process.wait()

    def _start(self, index: int) -> "subprocess.Popen[bytes]":
        folder = self._folders[index]
        command = [str(find_nats_server()), "-c", str(folder / "nats.json")]
        with (folder / "log").open("a") as log:
            return subprocess.Popen(command, stderr=log, preexec_fn=partial(die_with, os.getpid()))

    def _configuration(self, index: int) -> dict[str, object]:
        users: list[dict[str, object]] = [{"user": ADMIN, "password": ADMIN}]
        allowed_to = {str(role): permissions(SUBJECTS, role) for role in Role}
        allowed_to[TENANT] = permissions(TENANTS_JOB, Role.WORKER)
        for name, allowed in allowed_to.items():
            may = {"publish": allowed.publish, "subscribe": allowed.subscribe}
            users.append({"user": name, "password": name, "permissions": may})
        storage = {"store_dir": str(self.storage(index))}
        configuration: dict[str, object] = {
            "server_name": f"nats-{index}",
            "listen": self.host_ports[index],
            "max_payload": self._max_payload,
            "jetstream": storage,
            "authorization": {"users": users},
        }
        if len(self._folders) > 1:
            listen = self._routes[index].removeprefix("nats://")
            # As in the chart: clients know the addresses that they were given.
            cluster = {"name": "all", "listen": listen, "routes": self._routes, "no_advertise": True}
            configuration["cluster"] = cluster
        return configuration

    def _wait_for_a_leader(self) -> None:
        link = self.link()
        until = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                answer = json.loads(link.call(link.client.request("$JS.API.INFO", timeout=1)).data)
                if "error" not in answer:
                    return
            except (NatsError, Timeout):
                pass  # they look for each other
            assert time.monotonic() < until, "the servers do not find each other"
            time.sleep(0.05)
