"""The learner's side of a job whose workers are processes on this machine.

```
worker: rollout -> its shared memory of batches -> a message on its socket -> receive(): copied out, once
learner: weights -> shared memory of weights; control and `taken` -> a control block for each worker; a wake-up byte
```
All memory is anonymous: the system frees it with the processes, whichever of them is killed.
"""

import atexit
import logging
import time
import weakref
from collections.abc import Collection, Mapping
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import torch

from rollfleet.data.batch import to_batch
from rollfleet.errors import WireError, copied
from rollfleet.processes.launch import StartMethod
from rollfleet.processes.messages import BatchReady
from rollfleet.processes.supervisor import Supervisor
from rollfleet.processes.worker_handle import WorkerHandle
from rollfleet.schemes import Layout
from rollfleet.transports.learner_side import Arrival, Transport
from rollfleet.transports.roster import describe_long_step
from rollfleet.transports.workload import Workload
from rollfleet.weights.layout import State
from rollfleet.wire.buffer_pool import BufferPool
from rollfleet.wire.fragment_message import unpack_fragment
from rollfleet_api.messages import Answer, Call, Control, Evaluation, WorkerStatus

log = logging.getLogger(__name__)


class ProcessesTransport(Transport):
    """See `Transport` and `Elastic`. Starts the job's workers at once, and ends them.

    They end when the transport is closed or garbage-collected, and when this process ends, however it ends.

    Args:
        workload: The work of the workers.
        device: Device of the batches; None: the CPU.
        no_cuda_sync: Do not wait until batches are on the device.
        start_method: `spawn`: start new interpreters; the workload is pickled. `fork`: copy this process; nothing is
            pickled. A fork's torch has one thread, and forking a process that has threads or uses a GPU is unsafe.
        max_restarts_per_worker: How often a worker that dies or fails is restarted, as its next incarnation, before
            that is an error.
        quiet: Ignore warnings in the workers.
        close_timeout_s: Seconds that workers have to close their environments before signals end them.

    Raises:
        JobInvalid: The workload cannot be pickled.
    """

    def __init__(
        self,
        workload: Workload,
        *,
        device: torch.device | None = None,
        no_cuda_sync: bool = False,
        start_method: StartMethod = "spawn",
        max_restarts_per_worker: int = 0,
        quiet: bool = True,
        close_timeout_s: float = 3.0,
    ) -> None:
        self._device, self._no_cuda_sync, self._close_timeout_s = device, no_cuda_sync, close_timeout_s
        self._spec = workload.job.spec
        self._memory = BufferPool(2 * self._spec.workers + 2)
        self._corrupt: dict[int, int] = {}
        self._warned: set[int] = set()  # workers whose long step has been logged
        self._supervisor = Supervisor(workload, start_method, max_restarts=max_restarts_per_worker, quiet=quiet)
        self._close = weakref.finalize(self, self._supervisor.close, leave_grace_s=close_timeout_s)
        self._close.atexit = False  # atexit handlers run last-in first-out: this must run before multiprocessing's,
        atexit.register(self._close)  # which waits for its children
        try:
            if self._spec.evaluation:
                self._supervisor.add_evaluation(self._spec.evaluation.workers)
            self._supervisor.add(self._spec.workers)
            import tensordict  # noqa: F401  # takes seconds, during which the workers start
        except BaseException:
            self.close()
            raise

    @property
    def elastic(self) -> "ProcessesTransport":
        """See `Transport`."""
        return self

    @property
    def evaluations(self) -> tuple[Evaluation, ...]:
        """The evaluations so far, by version."""
        self._supervisor.listen(0)
        return self._supervisor.evaluations.all()

    def control(self, control: Control) -> None:
        """See `Transport`."""
        self._check()
        self._supervisor.control(control)

    def send_weights(
        self, version: int, layout: Layout, models: Mapping[str, State], *, workers: frozenset[int] | None = None
    ) -> None:
        """See `Transport`."""
        self._check()
        evaluator = self._spec.evaluation.worker_of(version) if self._spec.evaluation and workers is None else None
        self._supervisor.send_weights(version, layout, models, workers, evaluator)

    def receive(self, *, timeout_s: float) -> Arrival | None:
        """See `Transport`."""
        supervisor, until = self._supervisor, time.monotonic() + timeout_s
        supervisor.listen(0)
        while True:
            while supervisor.ready_batches:
                arrival = self._arrival(*supervisor.ready_batches[0])
                if supervisor.ready_batches:  # not if a signal's handler has closed it
                    supervisor.ready_batches.popleft()  # last: after an error, such as a full device, it comes again
                if arrival:
                    return arrival
            if supervisor.fault:
                raise copied(supervisor.fault)
            left_s = until - time.monotonic()
            if left_s <= 0:
                self._warn_about_long_steps()
                return None
            supervisor.listen(left_s)

    def take(self, arrival: Arrival) -> None:
        """See `Transport`."""
        self._supervisor.take(arrival.worker, arrival.incarnation, arrival.sequence)

    def members(self) -> frozenset[int]:
        """See `Transport`."""
        return self._supervisor.members

    def workers(self) -> Mapping[int, WorkerStatus]:
        """See `Transport`."""
        self._supervisor.listen(0)
        handles = {handle.index: handle for handle in self._supervisor.running()}
        return {
            index: replace(status, in_step_s=handles[index].in_step_s) if index in handles else status
            for index, status in dict(self._supervisor.statuses).items()
        }

    def call(self, worker: int, call: Call) -> "Future[Answer]":
        """See `Transport`."""
        self._check()
        return self._supervisor.call(worker, call)

    def corrupt(self) -> Mapping[int, int]:
        """See `Transport`."""
        return dict(self._corrupt)

    def add_workers(self, count: int) -> list[int]:
        """See `Elastic`."""
        self._check()
        return self._supervisor.add(count)

    def remove_workers(self, workers: Collection[int]) -> None:
        """See `Elastic`.

        Raises:
            JobInvalid: Some of them are not members.
        """
        self._check()
        self._supervisor.remove(workers)

    def close(self, *, timeout_s: float | None = None) -> None:
        """See `Transport`. Returns when the workers have ended. The default is `close_timeout_s`."""
        atexit.unregister(self._close)
        self._close.detach()
        self._supervisor.close(leave_grace_s=self._close_timeout_s if timeout_s is None else timeout_s)

    def _check(self) -> None:
        self._supervisor.listen(0)
        if self._supervisor.fault:
            raise copied(self._supervisor.fault)

    def _warn_about_long_steps(self) -> None:
        """Log the long step of each worker, once until the step ends."""
        after_s = self._spec.failure.suspect_after_seconds
        found = {index: describe_long_step(status, after_s) for index, status in self.workers().items()}
        problems = {index: problem for index, problem in found.items() if problem}
        for index in problems.keys() - self._warned:
            log.warning("worker %d %s", index, problems[index])
        self._warned = set(problems)

    def _arrival(self, handle: WorkerHandle, ready: BatchReady) -> Arrival | None:
        try:
            # Copied as a whole and at once: the worker writes the next batch into the same region.
            own = self._memory.take(ready.nbytes)
            own[:] = handle.region(ready)
            meta, fragment = unpack_fragment(own, checksum=False)
            batch: Any = to_batch(fragment, empty=self._memory.empty)
            if self._device is not None:
                batch = batch.to(self._device, non_blocking=self._no_cuda_sync)
        except WireError as error:
            self._corrupt[handle.index] = self._corrupt.get(handle.index, 0) + 1
            log.warning("dropped a batch of worker %d that could not be read: %s", handle.index, error)
            self._supervisor.take(handle.index, handle.incarnation, ready.sequence)
            return None
        return Arrival(
            worker=handle.index,
            incarnation=handle.incarnation,
            sequence=ready.sequence,
            meta=meta,
            episodes=fragment.episodes,
            batch=batch,
            nbytes=ready.nbytes,
        )
