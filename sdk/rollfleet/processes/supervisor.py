"""The worker processes of one learner: started, listened to, started again, ended. Without threads."""

import os
import selectors
import signal
import time
from collections import deque
from collections.abc import Collection
from functools import partial
from typing import Any

from rollfleet.data.ring import Ring
from rollfleet.data.write_quota import WriteQuota
from rollfleet.errors import JobEnded, JobInvalid, MessageCorrupt, WorkerFailed
from rollfleet.processes.control_block import Notice, WeightsLocation
from rollfleet.processes.launch import StartMethod, WorkerProcess, signal_group
from rollfleet.processes.messages import BatchReady, BatchStored
from rollfleet.processes.pickled_workload import pickle_workload
from rollfleet.processes.weights import SharedWeights
from rollfleet.processes.worker_handle import WorkerHandle
from rollfleet.system.child_processes import describe_exit
from rollfleet.system.cpus import available_cpus
from rollfleet.system.shared_memory import SharedMemory
from rollfleet.transports.workload import Workload
from rollfleet.weights.layout import Snapshot
from rollfleet_api.job import CollectorJobSpec, Mode
from rollfleet_api.messages import Control, Parameter, WorkerState, WorkerStatus

LEAVE_GRACE_S = 3.0  # to end the environments in order
TERMINATE_GRACE_S = 1.0
EXIT_S = 5.0  # between the end of a socket and that of its process


class Supervisor:
    """What stays of a transport when nobody holds it: all that must be let go of.

    Args:
        workload: What the workers do.
        method: How they are started.
        max_restarts: How often each worker may be started again.
        quiet: Whether their warnings are left out.
        ring: The learner's replay buffer, if they write into it themselves.

    Attributes:
        members: Indices of the workers that there should be.
        handles: The newest life of every worker that has not left.
        statuses: What each worker said of itself last.
        ready_batches: Batches that wait, in the order in which they were announced.
        fault: What went wrong; None: nothing did.
        quota: What they write into the replay buffer; None: their batches go to the learner.
        leave_grace_s: How long they have to end in order.
    """

    def __init__(
        self, workload: Workload, method: StartMethod, *, max_restarts: int, quiet: bool, ring: Ring | None = None
    ) -> None:
        spec = workload.job.spec
        self._workload, self._method, self._max_restarts = workload, method, max_restarts
        self._pid = os.getpid()
        self._shared_weights = SharedWeights()
        self._pickled_workload = _pickled_workload(workload) if method == "spawn" else None
        self._settings: dict[str, Any] = {
            "most_waiting": spec.delivery.max_batches_ahead,
            # The threads that torch has are not in a fork, which would wait for them.
            "threads": max(1, available_cpus() // spec.workers) if method == "spawn" else 1,
            "quiet": quiet,
            "weights": self._shared_weights.shared_memory.fileno(),
            "pickled_workload": self._pickled_workload.fileno() if self._pickled_workload else -1,
        }
        self._selector = selectors.DefaultSelector()
        self._ending: list[WorkerProcess] = []
        self._control: Control | None = None
        self._newest: WeightsLocation | None = None  # of what was meant for all
        self._started = 0
        self._closed = False
        self.members: set[int] = set()
        self.handles: dict[int, WorkerHandle] = {}
        self.statuses: dict[int, WorkerStatus] = {}
        self.ready_batches: deque[tuple[WorkerHandle, BatchReady | BatchStored]] = deque()
        self.fault: BaseException | None = None
        self.leave_grace_s = LEAVE_GRACE_S
        self.quota = None if ring is None else _quota(ring, spec)
        if self.quota is not None:
            memory, locks = self.quota.ring.descriptors
            self._settings |= {"ring": memory, "ring_locks": locks, "quota": self.quota.number}

    def add(self, count: int) -> list[int]:
        """Start workers; their indices."""
        if self._closed:
            raise JobEnded("the transport is closed")
        indices = list(range(self._started, self._started + count))
        self._started += count
        for index in indices:
            self.members.add(index)
            self._start(index, 0, Notice(control=self._control, weights=self._newest))
        return indices

    def remove(self, workers: Collection[int]) -> None:
        """Have these leave."""
        if unknown := set(workers) - self.members:
            raise JobInvalid(f"there are no workers {sorted(unknown)}; there are {sorted(self.members)}")
        for index in workers:
            self.members.discard(index)
            self.handles[index].leaving = True
            self.handles[index].post(leave=True)

    def control(self, control: Control) -> None:
        """Tell all, also those that come later."""
        self._control = control
        for handle in self.handles.values():
            handle.post(control=control)

    def lend(self, parameters: tuple[Parameter, ...], nbytes: int) -> Snapshot | None:
        """See `Lends`."""
        return None if self._closed else self._shared_weights.lend(parameters, nbytes, self._in_use())

    def weights(self, version: int, snapshot: Snapshot, workers: frozenset[int] | None) -> bool:
        """Put a version where these workers, or all of them, find it.

        False: it was copied there, and the snapshot itself is no longer needed.
        """
        lies_there = self._shared_weights.is_lent(snapshot)
        location = self._shared_weights.put(version, snapshot, self._in_use())
        if workers is None:
            self._newest = location
        for index, handle in self.handles.items():
            if workers is None or index in workers:
                handle.post(weights=location)
        return lies_there

    def taken(self, worker: int, incarnation: int) -> None:
        """One more batch of a worker is the learner's."""
        handle = self.handles.get(worker)
        if handle is not None and handle.incarnation == incarnation:
            handle.post(taken=handle.notice.taken + 1)

    def listen(self, timeout_s: float) -> None:
        """Hear what workers say; returns after the first that says something, at the latest after so long.

        Raises:
            JobEnded: This is a fork of the process whose workers these are.
        """
        if os.getpid() != self._pid:
            raise JobEnded("these workers belong to the process that this one is a fork of")
        if self._selector.get_map() is None:  # closed
            return
        for key, _ in self._selector.select(timeout_s):
            if key.fileobj in self._selector.get_map():  # else it went with another one of these
                key.data()
        self._ending = [process for process in self._ending if process.wait(0) is None]

    def close(self) -> None:
        """End all workers, give up all memory. Again is harmless; so is a copy in a forked process."""
        if self._closed or os.getpid() != self._pid:
            return
        self._closed = True
        for handle in list(self.handles.values()):  # a thread that fills a buffer may still listen
            handle.post(leave=True)
            handle.hang_up()
        self._end()
        self.ready_batches.clear()
        self._selector.close()
        self._shared_weights.close()
        if self._pickled_workload:
            self._pickled_workload.close()
        if self.quota:
            self.quota.close()

    # --- inside ---

    def _in_use(self) -> list[WeightsLocation]:
        """What a worker may look for, now or when it is started."""
        told = (handle.notice.weights for handle in self.handles.values())
        return [location for location in (*told, self._newest) if location]

    def _start(self, index: int, incarnation: int, notice: Notice) -> None:
        handle = WorkerHandle(self._method, index, incarnation, notice, self._settings, self._workload)
        self.handles[index] = handle
        self._selector.register(handle.line, selectors.EVENT_READ, partial(self._hear, handle))
        self._selector.register(handle.errors, selectors.EVENT_READ, partial(self._read_errors, handle))

    def _hear(self, handle: WorkerHandle) -> None:
        try:
            for told in handle.hear():
                if told is None:
                    self._gone(handle)
                elif isinstance(told, BatchReady | BatchStored):
                    self.ready_batches.append((handle, told))
                else:
                    self.statuses[handle.index] = told
                    self._look_for_failure(handle, told)
        except MessageCorrupt as error:
            self._fail(error)

    def _read_errors(self, handle: WorkerHandle) -> None:
        if not handle.read_errors():
            self._selector.unregister(handle.errors)

    def _gone(self, handle: WorkerHandle) -> None:
        """Its socket has ended: it left, or it died."""
        if not handle.ended_well:
            signal_group(handle.process, signal.SIGKILL)  # what it has started and left behind
        code = handle.process.wait(0 if handle.ended_well else EXIT_S)
        if code is None:
            self._ending.append(handle.process)
        handle.read_errors()
        for file in (handle.line, handle.errors):
            if file in self._selector.get_map():
                self._selector.unregister(file)
        handle.close()
        del self.handles[handle.index]
        failed = not handle.ended_well or (handle.status is not None and handle.status.state is WorkerState.FAILED)
        if handle.leaving:
            self.statuses.pop(handle.index, None)
        if handle.leaving or self._closed or not failed:
            return
        if self._may_start_again(handle):
            self._start(
                handle.index, handle.incarnation + 1, Notice(control=self._control, weights=handle.notice.weights)
            )
        elif not handle.ended_well:
            said = handle.last_words()
            ended = describe_exit(code) if code is not None else "it closed its connection"
            self._fail(WorkerFailed(handle.index, f"{ended}; it wrote last:\n{said}" if said else ended))

    def _look_for_failure(self, handle: WorkerHandle, status: WorkerStatus) -> None:
        if status.state is WorkerState.FAILED and not handle.leaving and not self._may_start_again(handle):
            self._fail(WorkerFailed(handle.index, status.error or "no reason given"))

    def _may_start_again(self, handle: WorkerHandle) -> bool:
        return handle.incarnation < self._max_restarts and not (handle.status is not None and handle.status.fatal)

    def _fail(self, error: BaseException) -> None:
        self.fault = self.fault or error

    def _end(self) -> None:
        """Until all have ended: in order, by SIGTERM, by SIGKILL."""
        until = time.monotonic() + self.leave_grace_s
        while any(handle.status for handle in list(self.handles.values())) and (left_s := until - time.monotonic()) > 0:
            self.listen(left_s)
        left = self._ending + [handle.process for handle in list(self.handles.values())]
        left = [process for process in left if process.wait(0) is None]
        if not self.handles:
            left = [process for process in left if process.wait(max(0.0, until - time.monotonic())) is None]
        for number, grace_s in ((signal.SIGTERM, TERMINATE_GRACE_S), (signal.SIGKILL, EXIT_S)):
            until = time.monotonic() + grace_s
            for process in left:
                signal_group(process, number)
            left = [process for process in left if process.wait(max(0.0, until - time.monotonic())) is None]
        for handle in list(self.handles.values()):
            handle.read_errors()
            handle.close()
        self.handles.clear()
        self._ending.clear()


def _quota(ring: Ring, spec: CollectorJobSpec) -> WriteQuota:
    """In mode Sync rounds end when the learner opens none; in mode Async the workers must know themselves."""
    return WriteQuota.open(ring, limit=0 if spec.mode is Mode.SYNC else spec.collect.total_frames)


def _pickled_workload(workload: Workload) -> SharedMemory:
    data = pickle_workload(workload)
    shared_memory = SharedMemory.create()
    shared_memory.grow(len(data))
    os.pwrite(shared_memory.fileno(), data, 0)
    return shared_memory
