"""A job on this machine: an embedded nats-server, worker processes that are restarted when they die, and a learner.

Ends when the learner does, when a worker cannot be helped, or when it is cancelled; nothing of it is left then.
"""

import asyncio
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from rollfleet.cli.display import Display
from rollfleet.cli.watch import JobWatch
from rollfleet.nats.embedded_server import NatsServer, start_nats_server
from rollfleet.nats.link import Link
from rollfleet.nats.state_backup import StateBackup
from rollfleet.nats.streams import deprovision, provision
from rollfleet.system.child_processes import Child, describe_exit, spawn
from rollfleet.system.cpus import available_cpus
from rollfleet_api.environment import THREADS, WORKER, Address
from rollfleet_api.job import CollectorJob
from rollfleet_api.permissions import Role
from rollfleet_api.streams import subjects_of

T = TypeVar("T")

EXIT_SUCCESS, EXIT_FAILURE = 0, 1

COMPLETE_GRACE_S = 5.0  # workers leave by themselves when the job is complete
STOP_GRACE_S = 2.0
FIRST_RESTART_WAIT_S, LONGEST_RESTART_WAIT_S = 0.1, 5.0
NATS_RESTARTS, NATS_LIVED_S = 10, 60.0  # so many in a row; who has lived for so long begins to count anew
HOPELESS = 2  # a worker's exit code when it would fail again in the same way

# Messages of about 1 MiB would be mapped and faulted in anew each time: let glibc keep such memory.
_ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(256 << 20)}


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalRun:
    """What to run.

    Attributes:
        job: The job; `spec.workers` processes are started.
        folder: Where the job's file lies: Python files beside it can be named as entrypoints.
        learner: A Python script that calls `rollfleet.connect()`, and its arguments; empty: batches are only counted.
        nats_url: A NATS server with JetStream; None: an embedded one.
        display: Told of everything that happens.
    """

    job: CollectorJob
    folder: Path
    learner: tuple[str, ...]
    nats_url: str | None
    display: Display


async def run(local: LocalRun) -> int:
    """Run a job to its end.

    Returns:
        0: the learner ended well. 1: it did not, or a worker gave up.

    Raises:
        RollfleetError: NATS could not be started or reached.
        asyncio.CancelledError: It was cancelled; everything is stopped.
    """
    store = Path(tempfile.mkdtemp(prefix="rollfleet-"))
    server: NatsServer | None = None
    try:
        if local.nats_url is None:
            server = await start_nats_server(subjects_of(local.job), store)
        return await _run_on(local, server)
    finally:
        try:
            if server:
                await _to_its_end(server.child.stop(STOP_GRACE_S))
        finally:
            shutil.rmtree(store, ignore_errors=True)


async def _run_on(local: LocalRun, server: NatsServer | None) -> int:
    address = Address(url=_url(local, server, None), job=local.job.key)
    link = await _in_thread(lambda: Link(address, role=None))
    try:
        await asyncio.wrap_future(link.spawn(provision(link, local.job)))
        watch, state_backup = JobWatch(link, local.job), StateBackup(link)
        link.on_reconnect(lambda: provision(link, local.job, kept=state_backup.messages()))
        children = _Children(local, server)
        with local.display.showing(local.job, watch):
            return await children.run()
    finally:
        await _to_its_end(asyncio.to_thread(_leave, link, server))


def _leave(link: Link, server: NatsServer | None) -> None:
    if server is None:
        with suppress(Exception):  # somebody else's server may be gone before us
            link.call(deprovision(link), timeout_s=STOP_GRACE_S)
    link.close(flush_timeout_s=1.0)


class _GaveUp(Exception):
    """A process without which the run cannot go on will not be started again."""


class _Children:
    """The processes of one run."""

    def __init__(self, local: LocalRun, server: NatsServer | None) -> None:
        self._local, self._server = local, server
        self._alive: set[Child] = set()

    async def run(self) -> int:
        job, display = self._local.job, self._local.display
        learner = asyncio.create_task(self._run_learner())
        workers = [asyncio.create_task(self._keep_worker(index)) for index in range(job.spec.workers)]
        needed = [asyncio.create_task(self._watch_nats()), *workers]
        failed = asyncio.create_task(_first_failure(needed))
        try:
            await asyncio.wait({learner, failed}, return_when=asyncio.FIRST_COMPLETED)
            if not learner.done():  # a learner is told of a worker that gave up by its last heartbeat
                display.error(str(failed.result()))
                with suppress(TimeoutError):
                    await asyncio.wait_for(asyncio.shield(learner), STOP_GRACE_S)
                return EXIT_FAILURE
            if learner.result():
                display.error(f"the learner ended: {describe_exit(learner.result())}")
                return EXIT_FAILURE
            await asyncio.wait(workers, timeout=COMPLETE_GRACE_S)
            return EXIT_SUCCESS
        finally:
            await _to_its_end(self._stop([learner, failed, *needed]))

    async def _stop(self, tasks: "list[asyncio.Task[Any]]") -> None:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)  # none of them starts anything any more
        await asyncio.gather(*(child.stop(STOP_GRACE_S) for child in self._alive))

    async def _watch_nats(self) -> None:
        if self._server is None:
            return
        restarts = 0
        while True:
            began_s = time.monotonic()
            code = await self._server.child.wait()
            words = self._server.child.last_line()
            self._local.display.error(f"nats-server ended: {describe_exit(code)}; its last words: {words}")
            restarts = 1 if time.monotonic() - began_s > NATS_LIVED_S else restarts + 1
            if restarts > NATS_RESTARTS:
                raise _GaveUp(f"nats-server is given up after {NATS_RESTARTS} restarts in a row")
            self._local.display.event("nats-server starts again")
            await self._server.start_again()

    async def _run_learner(self) -> int:
        command = [sys.executable, *(self._local.learner or ("-m", "rollfleet.cli.default_learner"))]
        return await self._wait(await self._start("learner", command, self._environ(Role.LEARNER)))

    async def _keep_worker(self, index: int) -> None:
        spec, display = self._local.job.spec, self._local.display
        environ = self._environ(Role.WORKER) | {WORKER: str(index)}
        wait_s = FIRST_RESTART_WAIT_S
        for restarts in range(spec.failure.max_restarts_per_worker + 1):
            if restarts:
                display.event(f"worker {index} starts again ({restarts} of {spec.failure.max_restarts_per_worker})")
            child = await self._start(f"worker {index}", [sys.executable, "-m", "rollfleet", "worker"], environ)
            code = await self._wait(child)
            if code == 0:
                return
            cause = f"worker {index} ended: {describe_exit(code)}; its last words: {child.last_line() or 'none'}"
            if code == HOPELESS:
                raise _GaveUp(cause)
            display.error(cause)
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, LONGEST_RESTART_WAIT_S)
        raise _GaveUp(f"worker {index} is given up after {restarts} restart{'s' if restarts != 1 else ''}")

    async def _start(self, name: str, command: list[str], environ: dict[str, str]) -> Child:
        show = self._local.display.output
        child = await spawn(name, command, environ=environ, on_line=lambda line: show(name, line))
        self._alive.add(child)
        return child

    async def _wait(self, child: Child) -> int:
        code = await child.wait()
        self._alive.discard(child)
        child.kill(signal.SIGKILL)  # what it started and left behind
        return code

    def _environ(self, role: Role) -> dict[str, str]:
        job = self._local.job
        address = Address(url=_url(self._local, self._server, role), job=job.key)
        environ = {**os.environ, **address.variables(), "PYTHONUNBUFFERED": "1"}
        environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(self._local.folder), environ.get("PYTHONPATH"))))
        return environ | _ALLOCATOR | (_worker_only(job, os.environ) if role is Role.WORKER else {})


def _worker_only(job: CollectorJob, environ: Mapping[str, str]) -> dict[str, str]:
    threads = str(max(1, available_cpus() // job.spec.workers))
    said = {THREADS: threads, "OMP_NUM_THREADS": environ.get("OMP_NUM_THREADS", threads)}
    if job.spec.policy.device == "cpu" and job.spec.env.device in (None, "cpu") and not job.spec.resources.gpu.count:
        said["CUDA_VISIBLE_DEVICES"] = ""  # not asked for: do not touch its memory
    return said


def _url(local: LocalRun, server: NatsServer | None, role: Role | None) -> str:
    if server:
        return server.url(role)
    assert local.nats_url is not None
    return local.nats_url


async def _first_failure(tasks: "list[asyncio.Task[None]]") -> BaseException:
    """Wait for the first task that fails; for ever, if none does."""
    pending = set(tasks)
    while pending:
        done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            if not task.cancelled() and (error := task.exception()):
                return error
    never: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
    return await never


async def _in_thread(function: Callable[[], T]) -> T:
    """Call something that blocks; unlike with `asyncio.to_thread`, nobody waits for the thread once cancelled."""
    result: Future[T] = Future()
    result.set_running_or_notify_cancel()

    def call() -> None:
        try:
            result.set_result(function())
        except BaseException as error:
            result.set_exception(error)

    threading.Thread(target=call, daemon=True).start()
    return await asyncio.wrap_future(result)


async def _to_its_end(cleaning: Coroutine[Any, Any, None]) -> None:
    """Wait for something that one cancellation must not cut short; it is raised afterwards."""
    task = asyncio.ensure_future(cleaning)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await task
        raise
