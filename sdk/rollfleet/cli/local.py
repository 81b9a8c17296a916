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
from rollfleet.cli.run_processes import RunProcesses
from rollfleet.cli.watch import JobWatch
from rollfleet.errors import JobInvalid
from rollfleet.nats.embedded_server import NatsServer, start_nats_server
from rollfleet.system.child_processes import spawn
from rollfleet.system.cpus import available_cpus
from rollfleet_api.address import CA, CREDENTIALS, SHOWS_FAILURES, THREADS, WORKER, Address
from rollfleet_api.diagnosis import STOPPED
from rollfleet_api.exit_codes import EXIT_COMPLETE, EXIT_CRASHED, EXIT_PERMANENT
from rollfleet_api.job import CollectorJob
from rollfleet_api.permissions import Role
from rollfleet_api.publication import subjects_of
from rollfleet_api.state.verdict import Stage, Verdict, verdict
from rollfleet_api.times import format_time

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
        RollfleetError: NATS could not be started or reached, or the job has no workers.
        asyncio.CancelledError: The run was cancelled; everything is stopped.
    """
    if not local.job.spec.workers:
        raise JobInvalid(
            f"{local.job.key} has no workers; `rollfleet.make_vec(..., workers=2)` steps environments here"
        )
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
    """The end of the run, as decided. Its text says why the run failed; empty: it did not."""

    def __init__(self, verdict: Verdict, text: str = "") -> None:
        super().__init__(text)
        self.verdict = verdict


class _Children:
    def __init__(self, local: LocalRun, server: NatsServer | None, watch: JobWatch) -> None:
        self._local, self._server, self._watch = local, server, watch
        self._processes = local.live.processes if local.live else RunProcesses(local.job)
        created = format_time(time.time())
        metadata = local.job.metadata.model_copy(update={"creation_timestamp": created})
        self._job = local.job.model_copy(update={"metadata": metadata})

    async def run(self) -> int:
        spec = self._local.job.spec
        workers = [asyncio.create_task(self._keep(Role.WORKER, index)) for index in range(spec.workers)]
        count = spec.size(Role.EVALUATION)
        evaluating = [asyncio.create_task(self._keep(Role.EVALUATION, index)) for index in range(count)]
        learner = asyncio.create_task(self._run_learner(workers, evaluating))
        tasks = [learner, *workers, *evaluating, asyncio.create_task(self._keep_nats())]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
            error = next(error for task in done if (error := task.exception()))
            ended = error.verdict if isinstance(error, _Ended) else Verdict(Stage.FAILED, "Error", str(error))
            if self._local.live:
                self._local.live.end(ended)
            if ended.stage is Stage.COMPLETE:
                return 0
            self._local.display.error(str(error))
            await asyncio.wait({learner}, timeout=STOP_GRACE_S)  # it may save what it has
            return EXIT_FAILURE
        except asyncio.CancelledError:
            if self._local.live:
                self._local.live.end(Verdict(Stage.LIVE, STOPPED, "the run was stopped by Ctrl-C or SIGTERM"))
            raise
        finally:
            for task in tasks:
                task.cancel()
            await finish(asyncio.gather(*tasks, return_exceptions=True))

    async def _keep_nats(self) -> None:
        restarts = 0
        while self._server:
            began_s, child = time.monotonic(), self._server.child
            self._processes.started(Role.NATS, 0, child)
            await child.wait()
            if self._local.live:
                self._local.live.look()  # it is back before the next one
            self._local.display.error(child.describe_end())
            restarts = 1 if time.monotonic() - began_s > NATS_STABLE_S else restarts + 1
            if restarts > NATS_RESTARTS:
                text = f"gave up on nats-server after {NATS_RESTARTS} restarts in a row"
                raise _Ended(Verdict(Stage.FAILED, "NatsUnavailable", text), text)
            self._local.display.event("nats-server restarts")
            await self._server.start_again()

    async def _run_learner(self, workers: "list[asyncio.Task[None]]", evaluating: "list[asyncio.Task[None]]") -> None:
        try:
            await self._keep(Role.LEARNER, 0)
        except _Ended:
            if any(beat.fatal for beat in self._watch.workers.values()):  # its process ends now, too, and is the cause
                await asyncio.wait(workers, timeout=STOP_GRACE_S, return_when=asyncio.FIRST_EXCEPTION)
            raise
        found = self._verdict()
        await asyncio.wait([*workers, *evaluating], timeout=COMPLETE_GRACE_S)
        raise _Ended(found)

    async def _keep(self, role: Role, index: int) -> None:
        """Start a process again after each failure, until it has done its work, or the job has failed by the verdict.

        The run goes on without an evaluation worker that gave up.
        """
        name = role.process(index)
        allowed = self._local.job.spec.failure.max_restarts_per_worker
        while (ended := await self._run(role, index))[0] != EXIT_COMPLETE:
            code, end = ended
            found, crashes = self._verdict(), self._processes.crashes(name)
            over = code > 0 if role is Role.LEARNER else code == EXIT_PERMANENT  # a restart would end in the same way
            if over and role is not Role.EVALUATION:
                raise _Ended(found, end)
            self._local.display.error(end)
            if found.stage is Stage.FAILED:
                raise _Ended(found, found.message)
            if role is Role.EVALUATION and (over or crashes > allowed):
                self._local.display.error(f"gave up on {name}")
                return
            await asyncio.sleep(min(FIRST_RESTART_WAIT_S * 2 ** min(crashes, 10), LONGEST_RESTART_WAIT_S))
            self._local.display.event(f"{name} restarts ({crashes} of {allowed})")

    def _verdict(self) -> Verdict:
        return verdict(self._job, self._processes.observed(), self._watch.heartbeats, time.time())

    async def _run(self, role: Role, index: int) -> tuple[int, str]:
        """Run a process to its end, and stop it if cancelled. A failed start is a crash.

        Returns its exit code, and its end in a sentence.
        """
        name, environ = role.process(index), self._environ(role)
        if role is Role.LEARNER:
            command = [sys.executable, *(self._local.learner or ("-m", "rollfleet.cli.default_learner"))]
        else:
            command = [sys.executable, "-m", "rollfleet", "worker", *(["--evaluation"] * (role is Role.EVALUATION))]
            environ |= {WORKER: str(index)}
        try:
            child = await spawn(
                name, command, environ=environ, on_line=lambda line: self._local.display.output(name, line)
            )
        except OSError as error:
            self._processes.not_started(role, index, name, str(error.strerror))
            return EXIT_CRASHED, f"{name} did not start: {error.strerror}"
        self._processes.started(role, index, child)
        try:
            code = await child.wait()
        except asyncio.CancelledError:
            await child.stop(STOP_GRACE_S)
            raise
        child.kill(signal.SIGKILL)  # its own child processes
        return code, child.describe_end()

    def _environ(self, role: Role) -> dict[str, str]:
        job = self._local.job
        user = Role.WORKER if role is Role.EVALUATION else role
        address = Address(url=_url(self._local, self._server, user), job=job.key)
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
