"""The learner's end of a job whose workers are processes of this machine.

```
worker: rollout -> its shared memory of batches -> a message on its socket -> receive(): copied out, once
learner: weights -> shared memory of weights; control, room -> a board for each worker; a ring on its socket
```
All memory is anonymous: it ends with the processes, whoever is killed.
"""

import atexit
import logging
import time
import weakref
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import torch

from rollfleet.data.batch import to_batch
from rollfleet.data.ring import Ring
from rollfleet.data.write_quota import WriteQuota
from rollfleet.errors import JobInvalid, WireError
from rollfleet.processes.launch import START_METHODS
from rollfleet.processes.messages import BatchReady, BatchStored
from rollfleet.processes.supervisor import Supervisor
from rollfleet.processes.worker_handle import WorkerHandle
from rollfleet.transports.learner_side import Arrival, Resumed
from rollfleet.transports.roster import stuck
from rollfleet.transports.workload import Workload
from rollfleet.weights.layout import Snapshot
from rollfleet.wire.buffer_pool import BufferPool
from rollfleet.wire.fragment_message import unpack_fragment
from rollfleet_api.messages import Control, LearnerStatus, Parameter, WorkerStatus

log = logging.getLogger(__name__)


class ProcessesTransport:
    """See `Transport`, `Lends`, `Elastic` and `Patient`. Starts the job's workers, all at once, and ends them.

    They end with it: when it is closed, when nobody holds it any more, and when this process ends, however it does.

    Args:
        workload: What they do.
        device: Where batches are put; None: on the CPU.
        no_cuda_sync: Do not wait until they are there.
        start_method: `spawn`: in a new interpreter; the workload is pickled. `fork`: in a copy of this process; nothing
            is pickled, but torch has one thread there, and to fork a process that has threads or uses a GPU is unsafe.
        max_restarts_per_worker: How often a worker that dies or fails is started again, as its next incarnation,
            before that is an error.
        quiet: Leave out the workers' warnings.
        ring: A replay buffer: workers write their frames into it, and no batch comes here.

    Raises:
        JobInvalid: The workload cannot be pickled, or there is no such way to start.
    """

    def __init__(
        self,
        workload: Workload,
        *,
        device: torch.device | None = None,
        no_cuda_sync: bool = False,
        start_method: str = "spawn",
        max_restarts_per_worker: int = 0,
        quiet: bool = True,
        ring: Ring | None = None,
    ) -> None:
        self._device, self._no_cuda_sync = device, no_cuda_sync
        self._memory = BufferPool(2 * workload.job.spec.workers + 2)
        self._spent: list[Snapshot] = []
        self._handed_over: set[tuple[int, int, int]] = set()  # and not taken yet
        self._corrupt = 0
        self._suspect_after_s = workload.job.spec.failure.suspect_after_seconds
        self._told: set[int] = set()  # the workers that are stuck, and were said to be
        method = next((known for known in START_METHODS if known == start_method), None)
        if method is None:
            raise JobInvalid(f"start_method is one of {', '.join(map(repr, START_METHODS))}, not {start_method!r}")
        self._supervisor = Supervisor(workload, method, max_restarts=max_restarts_per_worker, quiet=quiet, ring=ring)
        self._close = weakref.finalize(self, self._supervisor.close)
        self._close.atexit = False  # multiprocessing's own, which waits for its children, may come before those
        atexit.register(self._close)
        try:
            self._supervisor.add(workload.job.spec.workers)
            import tensordict  # noqa: F401  # takes seconds, in which the workers start
        except BaseException:
            self.close()
            raise

    @property
    def quota(self) -> WriteQuota | None:
        """See `Stores`."""
        return self._supervisor.quota

    @property
    def resumed(self) -> Resumed:
        """See `Transport`. These workers have no past."""
        return Resumed(session=1, version=0, round=0)

    def control(self, control: Control) -> None:
        """See `Transport`."""
        self._check()
        self._supervisor.control(control)

    def lend(self, parameters: tuple[Parameter, ...], nbytes: int) -> Snapshot | None:
        """See `Lends`."""
        return self._supervisor.lend(parameters, nbytes)

    def send_weights(self, version: int, snapshot: Snapshot, *, workers: frozenset[int] | None = None) -> None:
        """See `Transport`. A snapshot that was not lent is spent at once."""
        self._check()
        if not self._supervisor.weights(version, snapshot, workers):
            self._spent.append(snapshot)

    def spent(self) -> list[Snapshot]:
        """See `Transport`."""
        spent, self._spent = self._spent, []
        return spent

    def receive(self, *, timeout_s: float) -> Arrival | None:
        """See `Transport`."""
        supervisor, until = self._supervisor, time.monotonic() + timeout_s
        supervisor.listen(0)
        while True:
            while supervisor.ready_batches:
                arrival = self._arrival(*supervisor.ready_batches.popleft())
                if arrival:
                    self._handed_over.add((arrival.worker, arrival.incarnation, arrival.sequence))
                    return arrival
            if supervisor.fault:
                raise supervisor.fault
            left_s = until - time.monotonic()
            if left_s <= 0:
                self._tell_who_is_stuck()
                return None
            supervisor.listen(left_s)

    def take(self, arrival: Arrival) -> None:
        """See `Transport`."""
        identity = (arrival.worker, arrival.incarnation, arrival.sequence)
        if identity in self._handed_over:
            self._handed_over.discard(identity)
            self._supervisor.taken(arrival.worker, arrival.incarnation)

    def members(self) -> frozenset[int]:
        """See `Transport`."""
        return frozenset(self._supervisor.members)

    def workers(self) -> Mapping[int, WorkerStatus]:
        """See `Transport`."""
        self._supervisor.listen(0)
        handles = self._supervisor.handles
        return {
            index: replace(status, in_step_s=handles[index].in_step_s) if index in handles else status
            for index, status in self._supervisor.statuses.items()
        }

    def report(self, status: LearnerStatus) -> None:
        """See `Transport`. Nobody else listens here."""

    def corrupt(self) -> int:
        """See `Transport`."""
        return self._corrupt

    def add_workers(self, count: int) -> list[int]:
        """See `Elastic`."""
        self._check()
        return self._supervisor.add(count)

    def remove_workers(self, workers: Collection[int]) -> None:
        """See `Elastic`.

        Raises:
            JobInvalid: Some of them are no members.
        """
        self._check()
        self._supervisor.remove(workers)

    def wait_at_close(self, timeout_s: float) -> None:
        """See `Patient`."""
        self._supervisor.leave_grace_s = timeout_s

    def close(self) -> None:
        """See `Transport`. Returns when the workers have ended."""
        atexit.unregister(self._close)
        self._close()

    def _check(self) -> None:
        self._supervisor.listen(0)
        if self._supervisor.fault:
            raise self._supervisor.fault

    def _tell_who_is_stuck(self) -> None:
        """Once for each worker, until it is well again."""
        after_s = self._suspect_after_s
        troubles = {index: trouble for index, status in self.workers().items() if (trouble := stuck(status, after_s))}
        for index in troubles.keys() - self._told:
            log.warning("worker %d %s", index, troubles[index])
        self._told = set(troubles)

    def _arrival(self, handle: WorkerHandle, ready: BatchReady | BatchStored) -> Arrival | None:
        if isinstance(ready, BatchStored):
            return _receipt(handle, ready)
        try:
            # Copied as a whole and at once: the worker writes the next batch where this one lies.
            own = self._memory.take(ready.nbytes)
            own[:] = handle.region(ready)
            meta, fragment = unpack_fragment(own, checksum=False)
            batch: Any = to_batch(fragment, empty_like=self._memory.empty_like)
            if self._device is not None:
                batch = batch.to(self._device, non_blocking=self._no_cuda_sync)
        except WireError as error:
            self._corrupt += 1
            log.warning("a batch of worker %d could not be read and is dropped: %s", handle.index, error)
            self._supervisor.taken(handle.index, handle.incarnation)
            return None
        return Arrival(
            worker=handle.index,
            incarnation=handle.incarnation,
            sequence=ready.sequence,
            meta=meta,
            batch=batch,
            episode_returns=fragment.episode_returns,
            episode_lengths=fragment.episode_lengths,
            nbytes=ready.nbytes,
        )


def _receipt(handle: WorkerHandle, stored: BatchStored) -> Arrival:
    """Of a batch that is in the replay buffer, or was too old for it."""
    from tensordict import TensorDict

    return Arrival(
        worker=handle.index,
        incarnation=handle.incarnation,
        sequence=stored.sequence,
        meta=stored.meta,
        batch=TensorDict({}, batch_size=[0, 0]),
        episode_returns=torch.tensor(stored.episode_returns, dtype=torch.float64),
        episode_lengths=torch.tensor(stored.episode_lengths, dtype=torch.int64),
        nbytes=0,
        stored=stored.kept,
    )
