"""An evaluation worker's side of a job over NATS: the versions that are its own and control in, results out.

Results are no stream's: the newest one is repeated every second, for a learner that was away. An evaluation worker has
no lease: two of one index have the same results.
"""

import asyncio
import threading
from collections.abc import Callable

from rollfleet.errors import JobEnded
from rollfleet.nats.link import Link
from rollfleet.nats.polling import insist
from rollfleet.nats.presence import JobPresence
from rollfleet.nats.state import read_state
from rollfleet.nats.weights import NatsWeightsInbox
from rollfleet.nats.worker_transport import HEARTBEAT_S, JOIN_TIMEOUT_S
from rollfleet.schemes import Layout
from rollfleet_api.job import EvaluationSpec
from rollfleet_api.messages import Control, Evaluation, WorkerStatus, pack


class NatsEvaluationTransport:
    """See `EvaluationTransport`.

    Args:
        link: A connection as an evaluation worker of the job. It is closed with the transport.
        worker: The index of the evaluation worker.
        spec: The job's evaluation.

    Attributes:
        incarnation: 0: evaluation workers do not count theirs.
        status: The last report; it goes nowhere, as pods and processes show their state themselves. None: none yet.

    Example:
        >>> transport = NatsEvaluationTransport(link, 0, job.spec.evaluation)  # doctest: +SKIP
        >>> EvaluationWorker(transport, Workload.of(job), 0).run()  # doctest: +SKIP
    """

    def __init__(self, link: Link, worker: int, spec: EvaluationSpec) -> None:
        self._link, self._worker, self._spec = link, worker, spec
        self.incarnation = 0
        self.status: WorkerStatus | None = None
        self._changed = threading.Condition()
        self._control: Control | None = None
        self._inbox: NatsWeightsInbox | None = None
        self._newest: bytes | None = None  # result
        self._job_ended: JobEnded | None = None
        link.call(self._join(), timeout_s=JOIN_TIMEOUT_S)
        link.on_reconnect(self._catch_up)
        self._tasks = [link.spawn(coroutine) for coroutine in (self._repeat(), self._watch_job())]

    @property
    def control(self) -> Control | None:
        """See `EvaluationTransport`."""
        return self._control

    def follow_weights(self, layout: Layout) -> NatsWeightsInbox:
        """See `EvaluationTransport`."""
        self._inbox = NatsWeightsInbox(self._link, None, layout, self._changed, wanted=self._is_own)
        self._link.call(self._inbox.start(), timeout_s=JOIN_TIMEOUT_S)
        return self._inbox

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """See `EvaluationTransport`."""
        with self._changed:
            while not condition():
                if self._job_ended:
                    raise self._job_ended
                self._changed.wait(1.0)

    def evaluated(self, evaluation: Evaluation) -> None:
        """See `EvaluationTransport`."""
        self._newest = pack(evaluation)
        self._link.begin(self._send())

    def report(self, status: WorkerStatus) -> None:
        """See `EvaluationTransport`."""
        self.status = status

    def close(self) -> None:
        """Leave. The last result is still sent."""
        for task in self._tasks:
            task.cancel()
        self._link.close()

    # --- on the link's thread ---

    def _is_own(self, version: int) -> bool:
        return self._spec.worker_of(version) == self._worker

    async def _join(self) -> None:
        await self._link.listen(self._link.subjects.control, Control, self._set_control)
        await insist(self._catch_up)

    async def _catch_up(self) -> None:
        if control := await read_state(self._link, self._link.subjects.control, Control):
            self._set_control(control)
        if self._inbox:
            await self._inbox.catch_up()

    def _set_control(self, control: Control) -> None:
        if self._control and self._control.is_newer_than(control):
            return
        with self._changed:
            self._control = control
            self._changed.notify_all()

    async def _repeat(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            await self._send()

    async def _send(self) -> None:
        if self._newest is not None:
            await self._link.publish(self._link.subjects.evaluation(self._worker), self._newest)

    async def _watch_job(self) -> None:
        try:
            await JobPresence(self._link).watch(self._catch_up)
        except JobEnded as error:
            with self._changed:
                self._job_ended = error
                self._changed.notify_all()
