"""The worker processes of one learner, of both roles: started, heard, restarted, ended. Threads may share it."""

import logging
import os
import selectors
import signal
import threading
import time
from collections import deque
from collections.abc import Collection, Mapping
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from rollfleet.errors import JobEnded, JobInvalid, MessageCorrupt, WorkerFailed
from rollfleet.processes.control_block import Instructions, WeightsLocation
from rollfleet.processes.launch import StartMethod
from rollfleet.processes.messages import BatchReady
from rollfleet.processes.pickled_workload import pickle_workload
from rollfleet.processes.weights import SharedWeights
from rollfleet.processes.worker_handle import Seat, WorkerHandle
from rollfleet.schemes import Layout
from rollfleet.system.child_processes import describe_exit, signal_group, terminate
from rollfleet.system.cpus import available_cpus
from rollfleet.system.shared_memory import SharedMemory
from rollfleet.transports.evaluation_log import EvaluationLog
from rollfleet.transports.workload import Workload
from rollfleet.weights.layout import State
from rollfleet_api.messages import Answer, Call, Control, Evaluation, WorkerState, WorkerStatus
from rollfleet_api.permissions import Role

log = logging.getLogger(__name__)

TERMINATE_GRACE_S = 1.0
RESTARTS_OF_EVALUATION = 10  # of one evaluation worker; then it evaluates no more
CLOSE_S = 1.0  # for a failed worker to close its environments before its successor starts; the learner waits
EXIT_S = 5.0  # between the end of a connection and the end of its process


class Supervisor:
    """Owns the worker processes, and all memory that they share with the learner.

    Each may be restarted `max_restarts` times, an evaluation worker `RESTARTS_OF_EVALUATION` times, whose faults are
    logged, and never reach the learner's loop.

    A transport's finalizer closes it, so it must not refer to the transport.

    Attributes:
        members: Indices of the workers that were started and not removed; another object after each change.
        handles: The newest incarnation of each worker, of both roles, that has not ended.
        statuses: The last status that each worker reported, by index; not of evaluation workers.
        evaluations: The results of evaluation workers.
        ready_batches: Batches that wait for the learner, in the order of their messages.
        fault: The first error of a worker that is not restarted; None: none.
    """

    def __init__(self, workload: Workload, method: StartMethod, *, max_restarts: int, quiet: bool) -> None:
        spec = workload.job.spec
        self._workload, self._method, self._max_restarts = workload, method, max_restarts
        self._pid = os.getpid()
        self._shared_weights = SharedWeights()
        self._pickled_workload = _pickled_workload(workload) if method == "spawn" else None
        self._settings: dict[str, Any] = {
            "max_batches_ahead": spec.delivery.max_batches_ahead,
            # A fork has none of torch's threads, and would wait for them.
            "threads": max(1, available_cpus() // spec.workers) if method == "spawn" else 1,
            "quiet": quiet,
            "weights": self._shared_weights.shared_memory.fileno(),
            "pickled_workload": self._pickled_workload.fileno() if self._pickled_workload else -1,
        }
        self._selector = selectors.DefaultSelector()
        self._changing = threading.RLock()  # held in all calls, but not while `listen` waits for messages
        self._ending: list[WorkerHandle] = []  # closed: their environments may still be closing
        self._control: Control | None = None
        self._newest: WeightsLocation | None = None  # of the versions that were meant for all workers
        self._calls: dict[int, Future[Answer]] = {}  # that wait for an answer, by their numbers
        self._started = 0
        self._closed = False
        self.members = frozenset[int]()
        self.handles: dict[Seat, WorkerHandle] = {}
        self.statuses: dict[int, WorkerStatus] = {}
        self.evaluations = EvaluationLog()
        self.ready_batches: deque[tuple[WorkerHandle, BatchReady]] = deque()
        self.fault: BaseException | None = None

    def add(self, count: int) -> list[int]:
        """Start this many workers. Returns their indices.

        Raises:
            JobEnded: The transport is closed.
        """
        with self._changing:
            if self._closed:
                raise JobEnded("the transport is closed")
            indices = list(range(self._started, self._started + count))
            self._started += count
            for index in indices:
                self._start(Seat(Role.WORKER, index), 0, Instructions(control=self._control, weights=self._newest))
                self.members |= {index}
            return indices

    def add_evaluation(self, count: int) -> None:
        """Start this many evaluation workers."""
        with self._changing:
            for index in range(count):
                self._start(Seat(Role.EVALUATION, index), 0, Instructions(control=self._control))

    def remove(self, workers: Collection[int]) -> None:
        """Make these workers leave.

        Raises:
            JobInvalid: Some of them are not members.
        """
        with self._changing:
            if unknown := set(workers) - self.members:
                raise JobInvalid(f"there are no workers {sorted(unknown)}; there are {sorted(self.members)}")
            self.members -= {*workers}
            for index in workers:
                self.handles[Seat(Role.WORKER, index)].instruct(leave=True)

    def running(self) -> list[WorkerHandle]:
        """Return the workers that have not ended, without evaluation workers. On any thread."""
        return [handle for handle in list(self.handles.values()) if handle.seat.role is Role.WORKER]

    def control(self, control: Control) -> None:
        """Send control to all workers, including those that start later."""
        with self._changing:
            self._control = control
            for handle in list(self.handles.values()):  # a signal's handler may end them meanwhile
                handle.instruct(control=control)

    def send_weights(
        self,
        version: int,
        layout: Layout,
        models: Mapping[str, State],
        workers: frozenset[int] | None,
        evaluator: int | None = None,
    ) -> None:
        """Put a version into shared memory for these workers (None: for all), and for one evaluation worker."""
        with self._changing:
            instructed = [handle.instructions.weights for handle in list(self.handles.values())]
            in_use = {location.data_at for location in (*instructed, self._newest) if location}
            location = self._shared_weights.put(version, layout, models, in_use)
            if workers is None:
                self._newest = location
            for handle in list(self.handles.values()):
                if handle.seat.role is Role.EVALUATION:
                    wanted = handle.index == evaluator
                else:
                    wanted = workers is None or handle.index in workers
                if wanted:
                    handle.instruct(weights=location)

    def take(self, worker: int, incarnation: int, sequence: int) -> None:
        """Count a worker's batches up to this one as taken."""
        with self._changing:
            handle = self.handles.get(Seat(Role.WORKER, worker))
            if handle is not None and handle.incarnation == incarnation:
                handle.instruct(taken=max(handle.instructions.taken, sequence + 1))

    def call(self, worker: int, call: Call) -> "Future[Answer]":
        """See `Transport`."""
        answered = Future[Answer]()

        def end(_: "Future[Answer]") -> None:
            with self._changing:
                self._calls.pop(call.number, None)
                self._instruct(worker, None)

        with self._changing:
            self._calls[call.number] = answered
            self._instruct(worker, call)
        answered.add_done_callback(end)
        return answered

    def listen(self, timeout_s: float) -> None:
        """Read messages of workers. Returns after the first ones, at the latest after `timeout_s`.

        Raises:
            JobEnded: This process is a fork of the process that owns the workers.
        """
        if os.getpid() != self._pid:
            raise JobEnded("these workers belong to the process that this one is a fork of")
        if self._selector.get_map() is None or not self._selector.select(timeout_s):  # closed, or nothing came
            return
        with self._changing:  # the other thread may have read what came
            if self._selector.get_map() is None:
                return
            for key, _ in self._selector.select(0):
                key.data()
            self._ending = [handle for handle in self._ending if handle.process.wait(0) is None]

    def close(self, *, leave_grace_s: float) -> None:
        """End all workers and release all memory. Closing twice is harmless, and so is closing in a forked process.

        After `leave_grace_s`, in which workers may close their environments, signals end them.
        """
        if self._closed or os.getpid() != self._pid:
            return
        try:
            with self._changing:
                self._closed = True
                for handle in list(self.handles.values()):
                    handle.instruct(leave=True)
                    handle.hang_up()
            self._end(leave_grace_s)
        except BaseException:  # Ctrl-C: they get no more time
            self._end(0.0)
            raise
        finally:
            self.ready_batches.clear()
            self._selector.close()
            self._shared_weights.close()
            if self._pickled_workload:
                self._pickled_workload.close()

    # --- inside ---

    def _start(self, seat: Seat, incarnation: int, instructions: Instructions) -> None:
        handle = WorkerHandle(self._method, seat, incarnation, instructions, self._settings, self._workload)
        self.handles[seat] = handle
        self._selector.register(handle.connection, selectors.EVENT_READ, partial(self._receive, handle))

    def _receive(self, handle: WorkerHandle) -> None:
        try:
            for message in handle.receive():
                if message is None:
                    self._on_hang_up(handle)
                elif isinstance(message, BatchReady):
                    self.ready_batches.append((handle, message))
                elif isinstance(message, Evaluation):
                    self.evaluations.add(message)
                elif isinstance(message, Answer):
                    if answered := self._calls.get(message.number):
                        with suppress(InvalidStateError):  # another thread has given up meanwhile
                            answered.set_result(message)
                else:
                    if handle.seat.role is Role.WORKER:
                        self.statuses[handle.index] = message
                    self._check_failure(handle, message)
        except MessageCorrupt as error:
            self._fail(handle, error)

    def _instruct(self, worker: int, call: Call | None) -> None:
        if handle := self.handles.get(Seat(Role.WORKER, worker)):
            handle.instruct(call=call)

    def _on_hang_up(self, handle: WorkerHandle) -> None:
        """Clean up after a worker that left or died: its connection is closed. Restart it if it failed."""
        if not handle.ended_well:
            signal_group(handle.process, signal.SIGKILL)  # also the processes that it left behind
        failed = not handle.ended_well or (handle.status is not None and handle.status.state is WorkerState.FAILED)
        again = failed and not handle.instructions.leave and self._may_restart(handle)
        # Its successor makes the same environments, so it may close them before.
        code = handle.process.wait(EXIT_S if not handle.ended_well else CLOSE_S if again else 0)
        if code is None:
            self._ending.append(handle)
        crash = handle.crash()
        self._selector.unregister(handle.connection)
        handle.close()
        del self.handles[handle.seat]
        if handle.instructions.leave and not self._closed:
            self.statuses.pop(handle.index, None)
        if handle.instructions.leave or not failed:
            return
        if again:
            call = handle.instructions.call  # its successor might die of it as well
            instructions = replace(handle.instructions, control=self._control, taken=0, call=None)
            try:
                self._start(handle.seat, handle.incarnation + 1, instructions)
            except OSError as error:  # no memory, processes or descriptors are left
                self._fail(handle, WorkerFailed(handle.index, f"it cannot be started again: {error}"))
            if call and (answered := self._calls.get(call.number)):
                ended = f"worker {handle.index} was started again before it answered; call again, unless that ended it"
                with suppress(InvalidStateError):
                    answered.set_result(Answer(number=call.number, error=ended))
        elif not handle.ended_well:
            ended = describe_exit(code) if code is not None else "it closed its connection"
            self._fail(handle, WorkerFailed(handle.index, f"{ended}\n{crash}" if crash else ended))

    def _check_failure(self, handle: WorkerHandle, status: WorkerStatus) -> None:
        if status.state is WorkerState.FAILED and not handle.instructions.leave and not self._may_restart(handle):
            self._fail(handle, WorkerFailed(handle.index, status.error or "no reason given"))

    def _may_restart(self, handle: WorkerHandle) -> bool:
        most = RESTARTS_OF_EVALUATION if handle.seat.role is Role.EVALUATION else self._max_restarts
        return handle.incarnation < most and not (handle.status is not None and handle.status.fatal)

    def _fail(self, handle: WorkerHandle, error: BaseException) -> None:
        if handle.seat.role is Role.EVALUATION:
            log.warning("an evaluation worker gave up: %s", error)
        else:
            self.fault = self.fault or error

    def _end(self, leave_grace_s: float) -> None:
        """Wait until all workers have ended: in order, then by SIGTERM, then by SIGKILL."""
        until = time.monotonic() + leave_grace_s
        while any(handle.status for handle in list(self.handles.values())) and (left_s := until - time.monotonic()) > 0:
            self.listen(left_s)
        late = [handle for handle in self._ending if handle.process.wait(max(0.0, until - time.monotonic())) is None]
        late += list(self.handles.values())
        with_environments = [handle.seat for handle in late if handle.status]  # the others have none yet
        if with_environments:
            log.warning(
                "%s: environments not closed within %g s, and killed; more time: Processes(close_timeout_s=...)",
                ", ".join(sorted(seat.role.process(seat.index) for seat in with_environments)),
                leave_grace_s,
            )
        running = [handle.process for handle in late]
        terminate(running, grace_s=TERMINATE_GRACE_S, kill_s=EXIT_S)
        for handle in list(self.handles.values()):
            handle.close()
        self.handles.clear()
        self._ending.clear()


def _pickled_workload(workload: Workload) -> SharedMemory:
    data = pickle_workload(workload)
    shared_memory = SharedMemory.create()
    shared_memory.grow(len(data))
    shared_memory.map(0, len(data)).data[: len(data)] = data  # one system call writes 2 GiB at most
    return shared_memory
