"""A job on one machine whose parts can be killed, cut off, and restarted."""

import json
import multiprocessing
import signal
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from itertools import cycle
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

from tests.api.job_data import job_data
from tests.shared_nats import SUBJECTS, TENANT, TENANTS_JOB, SharedNats

from rollfleet_api.permissions import Role
from rollfleet_api.validation import parse_job

RECOVERS_WITHIN_S = 120.0
SPEC: dict[str, Any] = {
    "workers": 2,
    "env": {"entrypoint": "traced_env:TracedEnv", "numEnvs": 2},
    "policy": {"mlp": {"hidden": [32]}},
    "weights": {"interval": 0, "maxLag": 1_000_000},
}
PIECE = 1 << 14  # bytes that the proxy forwards at once


class Proxy:
    """A proxy between clients and servers that imitates a faulty network.

    As a Service does, it connects each client to one of the servers that are up.

    Attributes:
        delay_s: Delay of each piece.
        bytes_per_s: Bandwidth in each direction of each connection; None: unlimited.
        connections: Number of connections so far.
    """

    def __init__(self, targets: Sequence[str]) -> None:
        self._targets = cycle((host, int(port)) for host, _, port in (each.rpartition(":") for each in targets))
        self._tries = len(targets)
        self._passing = threading.Event()  # a connection keeps its first event
        self._passing.set()
        self._pairs: set[tuple[socket.socket, socket.socket]] = set()
        self._lock = threading.Lock()
        self.delay_s = 0.0
        self.bytes_per_s: float | None = None
        self.connections = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.host_port = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        with self._lock:
            pairs, self._pairs = self._pairs, set()
        for each in (end for pair in pairs for end in pair):
            with suppress(OSError):
                each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def half_close(self) -> None:
        """Close the direction towards the clients of all connections; the other one stays open."""
        with self._lock:
            pairs = set(self._pairs)
        for client, _ in pairs:
            with suppress(OSError):
                client.shutdown(socket.SHUT_WR)

    def stall(self) -> None:
        """Forward nothing, without closing connections."""
        self._passing.clear()

    def stall_for_good(self) -> None:
        """Forward nothing on open connections; new connections work."""
        self._passing.clear()
        self._passing = threading.Event()
        self._passing.set()

    def heal(self) -> None:
        """Forward everything at once."""
        self.delay_s, self.bytes_per_s = 0.0, None
        self._passing.set()

    def close(self) -> None:
        self._listener.close()
        self.heal()
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = self._server()
            if server is None:
                client.close()
                continue
            for each in (client, server):
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                self._pairs.add((client, server))
            self.connections += 1
            for source, sink in ((client, server), (server, client)):
                threading.Thread(target=self._pass_on, args=(source, sink, (client, server)), daemon=True).start()

    def _server(self) -> socket.socket | None:
        for _ in range(self._tries):
            with suppress(OSError):
                server = socket.create_connection(next(self._targets), 2)
                server.settimeout(None)
                return server
        return None

    def _pass_on(self, source: socket.socket, sink: socket.socket, pair: tuple[socket.socket, socket.socket]) -> None:
        passing = self._passing
        try:
            while data := source.recv(PIECE):
                passing.wait()
                if self.delay_s:
                    time.sleep(self.delay_s)
                if self.bytes_per_s:
                    time.sleep(len(data) / self.bytes_per_s)
                sink.sendall(data)
        except OSError:
            pass
        with self._lock:
            self._pairs.discard(pair)
        for each in pair:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()


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
        killed: Ids of worker processes that were killed.
    """

    def __init__(self, folder: Path, *, max_payload: int = 1 << 20, **spec: Any) -> None:
        self._folder = folder
        self.job = parse_job(job_data({"name": SUBJECTS.job}, **spec))
        self._nats = SharedNats(folder, max_payload=max_payload)
        self._nats.own(self.job)
        self.proxies = {role: Proxy([self._nats.host_port]) for role in (Role.WORKER, Role.LEARNER)}
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["recorded", "traced_env", "rollfleet.policies.factory", "tensordict"])
        self.workers: dict[int, ForkServerProcess] = {}
        self.learner: ForkServerProcess | None = None
        self.killed: set[int] = set()
        self._all: list[ForkServerProcess] = []

    # --- processes ---

    def start(self) -> None:
        """Start all workers and the learner, and wait for the first batches."""
        for index in range(self.job.spec.workers):
            self.start_worker(index)
        self.start_learner()
        self.wait_for(lambda: len(self.events("handed over")) >= 3, "the first batches", RECOVERS_WITHIN_S)

    def start_worker(self, index: int) -> None:
        self.workers[index] = self._start("work", Role.WORKER, index)

    def start_learner(self) -> None:
        self.learner = self._start("learn", Role.LEARNER)

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

    def _start(self, program: str, role: Role, *arguments: object) -> ForkServerProcess:
        url = self._nats.url(role, self.proxies[role].host_port)
        name = "-".join(map(str, (program, *arguments)))
        return self._process(name, program, url, SUBJECTS.key, *arguments)

    def _process(self, name: str, program: str, url: str, job: str, *arguments: object) -> ForkServerProcess:
        target = getattr(import_module("recorded"), program)
        log = str(self._folder / f"{name}.log")
        process = self._context.Process(target=target, args=(log, url, job, *arguments), daemon=True)
        process.start()
        self._all.append(process)
        return process
