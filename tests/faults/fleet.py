"""A job on one machine whose parts can be killed, cut off, and restarted."""

import json
import multiprocessing
import signal
import time
from collections.abc import Callable
from importlib import import_module
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

from tests.api.job_data import job_data
from tests.faults.proxy import Proxy
from tests.sdk.envs.hosts import Host, write_certificate
from tests.shared_nats import SUBJECTS, TENANT, TENANTS_JOB, SharedNats

from rollfleet_api import env_servers
from rollfleet_api.job import CollectorJob
from rollfleet_api.permissions import Role
from rollfleet_api.validation import parse_job

CERTIFICATE = "environments.pem"
RECOVERS_WITHIN_S = 120.0
SPEC: dict[str, Any] = {
    "workers": 2,
    "env": {"entrypoint": "traced_env:TracedEnv", "numEnvs": 2},
    "policy": {"mlp": {"hidden": [32]}},
    "weights": {"interval": 0, "maxLag": 1_000_000},
}


class Fleet:
    """A job of real processes over real NATS servers, each side through its own proxy.

    Args:
        folder: The folder of all files.
        max_payload: The servers' `max_payload`.
        spec: The job's spec, in camelCase.

    Attributes:
        proxies: The proxies by role.
        workers: The worker processes by index.
        learner: The learner process.
        killed: Ids of worker processes that were killed, or replaced while they lived.
        env_server: The environments of all workers, if the spec has `env.servers`.
    """

    def __init__(self, folder: Path, *, max_payload: int = 1 << 20, **spec: Any) -> None:
        self._folder = folder
        self.job = parse_job(job_data({"name": SUBJECTS.job, "uid": "this-one"}, **spec))
        self._nats = SharedNats(folder, max_payload=max_payload)
        self._nats.own(self.job)
        self.proxies = {role: Proxy([self._nats.host_port]) for role in (Role.WORKER, Role.LEARNER)}
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["recorded", "traced_env", "rollfleet.policies.factory", "tensordict"])
        self.workers: dict[int, ForkServerProcess] = {}
        self.learner: ForkServerProcess | None = None
        self.killed: set[int] = set()
        self.env_server: Host | None = None
        if self.job.spec.env.servers:
            write_certificate(folder / CERTIFICATE)
            self.start_env_server()
        self._all: list[ForkServerProcess] = []

    # --- processes ---

    def start(self) -> None:
        """Start all workers and the learner, and wait for the first batches."""
        for index in range(self.job.spec.workers):
            self.start_worker(index)
        self.start_learner()
        self.wait_for(lambda: len(self.events("handed over")) >= 3, "the first batches", RECOVERS_WITHIN_S)

    def start_worker(self, index: int) -> None:
        variables = {}
        if self.env_server:
            variables = {
                env_servers.SERVERS: self.env_server.address,
                env_servers.CERTIFICATE: str(self._folder / CERTIFICATE),
            }
        self.workers[index] = self._start("work", Role.WORKER, index, variables=variables)

    def start_learner(self) -> None:
        self.learner = self._start("learn", Role.LEARNER)

    def start_env_server(self) -> None:
        """Start the environment server, again at its port."""
        port = self.env_server.port if self.env_server else 0
        self.env_server = Host(self._folder / CERTIFICATE, port, path=Path(__file__).parent / "programs")

    def start_namesake(self) -> ForkServerProcess:
        """Start the learner of a job of the same name that was deleted: it has the credentials."""
        url = self._nats.url(Role.LEARNER, self.proxies[Role.LEARNER].host_port)
        earlier = self.job.model_copy(update={"metadata": self.job.metadata.model_copy(update={"uid": "earlier"})})
        return self._process("namesake", "haunt", url, earlier)

    def start_attack(self) -> ForkServerProcess:
        """Start a client that attacks NATS with the credentials of another job's worker."""
        return self._process("attack", "attack", self._nats.url(TENANT), TENANTS_JOB.key)

    def end_workers(self) -> None:
        """Terminate all workers, which end in order."""
        for process in self.workers.values():
            process.terminate()
        for process in self.workers.values():
            process.join(30)
            assert process.exitcode == 143, self.words()

    def end_nats(self, number: signal.Signals = signal.SIGKILL) -> None:
        self._nats.end(number=number)

    def start_nats(self) -> None:
        """Start NATS again: all that it had is gone."""
        self._nats.start_again()

    def close(self) -> None:
        for process in self._all:
            process.kill()
            process.join(10)
            process.close()
        for proxy in self.proxies.values():
            proxy.close()
        if self.env_server:
            self.env_server.close()
        self._nats.stop()

    # --- the processes' logs ---

    def events(self, kind: str) -> list[dict[str, Any]]:
        events = []
        for log in sorted(self._folder.glob("*.log")):
            logged = [json.loads(line) for line in log.read_text().splitlines() if line.endswith("}")]
            events += [line for line in logged if line["event"] == kind]
        return sorted(events, key=lambda each: each["s"])

    def words(self) -> str:
        """Describe all processes with their last output."""
        lines = [f"{each.name} (pid {each.pid}): {each.exitcode}" for each in self._all]
        for file in sorted(self._folder.glob("*.log*")):
            lines += [f"--- {file.name}", *(line[:300] for line in file.read_text().splitlines()[-8:])]
        return "\n".join(lines)

    def wait_for_every_worker(self, count: int, since_s: float, timeout_s: float = RECOVERS_WITHIN_S) -> None:
        """Wait until the learner has been handed `count` batches since then, and some of every worker."""

        def handed_over() -> bool:
            since = [each for each in self.events("handed over") if each["s"] > since_s]
            seen = {fragment["identity"].split(".")[0] for each in since for fragment in each["fragments"]}
            alive = {process.pid for process in self.workers.values()}  # batches may be of an earlier incarnation
            collected = {each["pid"] for each in self.events("collected")}
            return len(since) >= count and len(seen) == self.job.spec.workers and alive <= collected

        self.wait_for(handed_over, "batches of every worker", timeout_s)

    def wait_for(self, condition: Callable[[], bool], what: str, timeout_s: float = 60.0) -> None:
        until = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < until, f"{what}: not within {timeout_s:g} s\n{self.words()}"
            crashed = [each.name for each in self._all if each.exitcode in (1, 2)]
            assert not crashed, f"{crashed} crashed\n{self.words()}"
            time.sleep(0.02)

    def _start(self, program: str, role: Role, *arguments: object, **more: object) -> ForkServerProcess:
        url = self._nats.url(role, self.proxies[role].host_port)
        name = "-".join(map(str, (program, *arguments)))
        return self._process(name, program, url, SUBJECTS.key, *arguments, **more)

    def _process(
        self, name: str, program: str, url: str, job: str | CollectorJob, *arguments: object, **more: object
    ) -> ForkServerProcess:
        target = getattr(import_module("recorded"), program)
        log = str(self._folder / f"{name}.log")
        process = self._context.Process(target=target, args=(log, url, job, *arguments), kwargs=more, daemon=True)
        process.start()
        self._all.append(process)
        return process
