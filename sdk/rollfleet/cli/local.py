"""A job on this machine: an embedded nats-server, worker processes and a learner, restarted when they are killed.

A run ends when its learner exits, when a worker gives up, or when it is cancelled. No process and no file is left.
"""

import asyncio
import os
import signal
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rollfleet.cli.display import Display
from rollfleet.cli.error_lines import EXIT_FAILURE
from rollfleet.cli.publication import COMPLETE_GRACE_S, finish, published
from rollfleet.cli.watch import JobWatch
from rollfleet.nats.embedded_server import NatsServer, start_nats_server
from rollfleet.system.child_processes import Child, spawn
from rollfleet.system.cpus import available_cpus
from rollfleet_api.address import CA, CREDENTIALS, SHOWS_FAILURES, THREADS, WORKER, Address
from rollfleet_api.exit_codes import EXIT_COMPLETE, EXIT_CRASHED, EXIT_PERMANENT, NO_FAILURE
from rollfleet_api.job import CollectorJob
from rollfleet_api.permissions import Role
from rollfleet_api.publication import subjects_of
from rollfleet_api.text import reason_of

if TYPE_CHECKING:
    from rollfleet.cli.live_run import LiveRun


STOP_GRACE_S = 2.0
FIRST_RESTART_WAIT_S, LONGEST_RESTART_WAIT_S = 0.1, 5.0
NATS_RESTARTS, NATS_STABLE_S = 10, 60.0  # restarts in a row; a server that runs this long resets their count

# Let glibc keep the memory of 1 MiB messages: by default it maps and faults in each of them again.
_MALLOC_VARIABLES = {"MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(256 << 20)}


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalRun:
    """The settings of a run.

    Attributes:
        job: The job; `spec.workers` processes are started.
        folder: The folder of the job's file. The job can name Python files in it as entrypoints.
        learner: A Python script that calls `rollfleet.connect()`, and its arguments. Empty: batches are only counted.
        nats_url: The URL of a NATS server. None: start an embedded server.
        display: The output for progress, events and errors.
        live: Follows the run for its page. None: the run has no page.
    """

    job: CollectorJob
    folder: Path
    learner: tuple[str, ...]
    nats_url: str | None
    display: Display
    live: "LiveRun | None" = None


async def run(local: LocalRun) -> int:
    """Run a job to its end.

    Returns:
        0: the learner succeeded. 1: the learner failed, or a worker gave up.

    Raises:
        RollfleetError: NATS could not be started or reached.
        asyncio.CancelledError: The run was cancelled; everything is stopped.
    """
    if local.nats_url is not None:
        return await _run_on(local, None)
    with tempfile.TemporaryDirectory(prefix="rollfleet-", ignore_cleanup_errors=True) as store:
        server = await start_nats_server(subjects_of(local.job), Path(store))
        try:
            return await _run_on(local, server)
        finally:
            await finish(server.child.stop(STOP_GRACE_S))


async def _run_on(local: LocalRun, server: NatsServer | None) -> int:
    address = Address(url=_url(local, server, None), job=local.job.key)
    async with published(local.job, address, delete=server is None) as link:
        watch = local.live.watch if local.live else JobWatch(local.job)
        watch.listen(link)
        children = _Children(local, server, watch)
        with local.display.showing(watch, has_output=True):
            return await (local.live.until_end(children.run()) if local.live else children.run())


class _Ended(Exception):
    """The end of the run: why it failed, in one word (empty: its learner succeeded) and in a sentence."""

    def __init__(self, reason: str = "", text: str = "") -> None:
        super().__init__(text)
        self.reason = reason


class _Children:
    def __init__(self, local: LocalRun, server: NatsServer | None, watch: JobWatch) -> None:
        self._local, self._server, self._watch = local, server, watch

    async def run(self) -> int:
        spec = self._local.job.spec
        workers = [asyncio.create_task(self._keep_worker(index)) for index in range(spec.workers)]
        count = spec.evaluation.workers if spec.evaluation else 0
        evaluating = [asyncio.create_task(self._keep_evaluating(index)) for index in range(count)]
        learner = asyncio.create_task(self._run_learner(workers, evaluating))
        tasks = [learner, *workers, *evaluating, asyncio.create_task(self._keep_nats())]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
            error = next(error for task in done if (error := task.exception()))
            if isinstance(error, _Ended) and not error.reason:
                return 0
            self._local.display.error(str(error))
            if self._local.live:
                self._local.live.failed(error.reason if isinstance(error, _Ended) else "Error", str(error))
            await asyncio.wait({learner}, timeout=STOP_GRACE_S)  # it may save what it has
            return EXIT_FAILURE
        finally:
            for task in tasks:
                task.cancel()
            await finish(asyncio.gather(*tasks, return_exceptions=True))

    async def _keep_nats(self) -> None:
        restarts = 0
        while self._server:
            began_s, child = time.monotonic(), self._server.child
            self._report_start(child)
            await child.wait()
            self._report_end(child.name, child.describe_end())
            restarts = 1 if time.monotonic() - began_s > NATS_STABLE_S else restarts + 1
            if restarts > NATS_RESTARTS:
                raise _Ended("NatsUnavailable", f"gave up on nats-server after {NATS_RESTARTS} restarts in a row")
            self._local.display.event("nats-server restarts")
            await self._server.start_again()

    async def _run_learner(self, workers: "list[asyncio.Task[None]]", evaluating: "list[asyncio.Task[None]]") -> None:
        command = [sys.executable, *(self._local.learner or ("-m", "rollfleet.cli.default_learner"))]
        restarts = 0
        while (ended := await self._run("learner", command, self._environ(Role.LEARNER)))[0] < 0:  # by a signal
            restarts += 1
            self._report_end("learner", ended[1])
            await self._restart("learner", restarts)
        code, end = ended
        if code == 0:
            await asyncio.wait([*workers, *evaluating], timeout=COMPLETE_GRACE_S)
            raise _Ended
        if fatal := [beat for beat in self._watch.workers.values() if beat.fatal]:  # its process ends now, too
            await asyncio.wait(workers, timeout=STOP_GRACE_S, return_when=asyncio.FIRST_EXCEPTION)
            raise _Ended("WorkerFailed", f"worker {fatal[0].worker} failed: {reason_of(fatal[0].error)}")
        raise _Ended("LearnerFailed", end)

    async def _keep_evaluating(self, index: int) -> None:
        """Keep an evaluation worker; the run goes on without one that gave up."""
        try:
            await self._keep_worker(index, evaluation=True)
        except _Ended as error:
            self._report_end(f"evaluation worker {index}", str(error))

    async def _keep_worker(self, index: int, *, evaluation: bool = False) -> None:
        name = f"{'evaluation ' * evaluation}worker {index}"
        command = [sys.executable, "-m", "rollfleet", "worker", *(["--evaluation"] * evaluation)]
        environ = self._environ(Role.WORKER) | {WORKER: str(index)}
        restarts = 0
        while True:
            code, end = await self._run(name, command, environ)
            if code == EXIT_COMPLETE:
                self._report_end(name)
                return
            if code == EXIT_PERMANENT:
                raise _Ended("WorkerFailed", end)
            self._report_end(name, end)
            restarts += code not in NO_FAILURE
            await self._restart(name, restarts)

    async def _restart(self, name: str, restarts: int) -> None:
        """Wait before a process is started again. End the run after too many restarts."""
        allowed = self._local.job.spec.failure.max_restarts_per_worker
        if restarts > allowed:
            raise _Ended("TooManyRestarts", f"gave up on {name} after {allowed} restart{'s' if allowed != 1 else ''}")
        await asyncio.sleep(min(FIRST_RESTART_WAIT_S * 2 ** min(restarts, 10), LONGEST_RESTART_WAIT_S))
        self._local.display.event(f"{name} restarts ({restarts} of {allowed})")

    async def _run(self, name: str, command: list[str], environ: dict[str, str]) -> tuple[int, str]:
        """Run a process to its end, and stop it if cancelled. A failed start is a crash.

        Returns its exit code, and its end in a sentence.
        """
        try:
            child = await spawn(
                name, command, environ=environ, on_line=lambda line: self._local.display.output(name, line)
            )
        except OSError as error:
            return EXIT_CRASHED, f"{name} did not start: {error.strerror}"
        self._report_start(child)
        try:
            code = await child.wait()
        except asyncio.CancelledError:
            await child.stop(STOP_GRACE_S)
            raise
        child.kill(signal.SIGKILL)  # its own child processes
        return code, child.describe_end()

    def _report_start(self, child: Child) -> None:
        if self._local.live:
            self._local.live.started(child)

    def _report_end(self, name: str, error: str = "") -> None:
        if error:
            self._local.display.error(error)
        if self._local.live:
            self._local.live.ended(name, error)

    def _environ(self, role: Role) -> dict[str, str]:
        job = self._local.job
        address = Address(url=_url(self._local, self._server, role), job=job.key)
        others = (CREDENTIALS, CA) if self._server else ()  # of another server than the embedded one
        own_environ = {name: value for name, value in os.environ.items() if name not in others}
        environ = {**own_environ, **address.variables(), "PYTHONUNBUFFERED": "1"}
        environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(self._local.folder), environ.get("PYTHONPATH"))))
        own = {SHOWS_FAILURES: "1"} if role is Role.LEARNER else _worker_only(job, os.environ)
        return environ | _MALLOC_VARIABLES | own


def _worker_only(job: CollectorJob, environ: Mapping[str, str]) -> dict[str, str]:
    threads = str(max(1, available_cpus() // job.spec.workers))
    variables = {THREADS: environ.get(THREADS, threads), "OMP_NUM_THREADS": environ.get("OMP_NUM_THREADS", threads)}
    if job.spec.policy.device == "cpu" and job.spec.env.device in (None, "cpu") and not job.spec.resources.gpu.count:
        variables["CUDA_VISIBLE_DEVICES"] = ""  # the job asks for no GPU: use none of its memory
    return variables


def _url(local: LocalRun, server: NatsServer | None, role: Role | None) -> str:
    if server:
        return server.url(role)
    assert local.nats_url is not None
    return local.nats_url
