"""The worker's side of a job over NATS: weights and control in, batches out.

The worker's thread blocks in these calls; everything else happens on the link's thread.
"""

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace

from nats.aio.msg import Msg

from rollfleet.data.batch import Fragment
from rollfleet.errors import JobEnded
from rollfleet.nats.calls import CallReceiver
from rollfleet.nats.lease import WorkerLease
from rollfleet.nats.link import Link
from rollfleet.nats.polling import RETRY_WAIT_S, insist
from rollfleet.nats.presence import JobPresence
from rollfleet.nats.publisher import BatchPublisher
from rollfleet.nats.state import read_state
from rollfleet.nats.weights import NatsWeightsInbox
from rollfleet.schemes import Layout
from rollfleet.transports.worker_side import PendingBatch
from rollfleet.wire.chunks import Identity
from rollfleet_api.job import CollectorJob, EvaluationSpec
from rollfleet_api.messages import BatchMeta, Call, Control, Evaluation, WorkerState, WorkerStatus, pack

HEARTBEAT_S = 1.0
JOIN_TIMEOUT_S = 30.0
WAITING = (WorkerState.WAITING_FOR_WEIGHTS, WorkerState.WAITING_FOR_LEARNER, WorkerState.PAUSED)


class NatsWorkerTransport:
    """See `WorkerTransport` and `EvaluationTransport`. Joins a job as one of its workers.

    Args:
        link: A connection as a worker of the job. It is closed with the transport.
        worker: Index of the worker.
        evaluation: The job's evaluation, for one of its evaluation workers: it follows the versions that are its own,
            and its heartbeats are its newest result, for a learner that was away. It takes no lease: two of one index
            have the same results. None: a worker.

    Attributes:
        incarnation: Number of this incarnation of the worker, from 0; no other process has it. 0 for evaluation.
    """

    def __init__(self, link: Link, worker: int, evaluation: EvaluationSpec | None = None) -> None:
        self._link, self._subjects, self._worker, self._evaluation = link, link.subjects, worker, evaluation
        self._changed = threading.Condition()
        self._control: Control | None = None
        self._status: WorkerStatus | None = None
        self._asked_s = 0.0  # time of the last access to control: a hanging step shows as time since
        self._sequence = 0
        self._publisher = BatchPublisher(link, worker)
        self._inbox: NatsWeightsInbox | None = None
        self._job_ended: JobEnded | None = None  # the reason why the job has ended
        self._presence = JobPresence(link)
        self._result: bytes | None = None  # of the newest evaluation
        self._calls = CallReceiver(link, worker, self._notify)
        self.answer = self._calls.answer
        self._lease = link.call(self._join(), timeout_s=JOIN_TIMEOUT_S)
        self.incarnation = self._lease.incarnation if self._lease else 0
        if self._lease and self.incarnation:
            link.begin(self._publisher.begin(self._lease.lease))
        link.on_reconnect(self._recover)
        self._tasks = [link.spawn(coroutine) for coroutine in (self._heartbeat(), self._watch_job())]

    @property
    def control(self) -> Control | None:
        """The newest control message. A worker reads it between any two steps of its environments."""
        self._asked_s = time.monotonic()
        return self._control

    @property
    def call(self) -> Call | None:
        """See `WorkerTransport`."""
        return self._calls.call

    def follow_weights(self, layout: Layout) -> NatsWeightsInbox:
        """Receive the weights of a policy with this layout from now on. Call it once."""
        spec, worker = self._evaluation, self._worker
        self._inbox = (
            NatsWeightsInbox(self._link, worker, layout, self._changed)
            if spec is None
            else NatsWeightsInbox(
                self._link, None, layout, self._changed, wanted=lambda version: spec.worker_of(version) == worker
            )
        )
        self._link.call(self._inbox.start(), timeout_s=JOIN_TIMEOUT_S)
        return self._inbox

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait until the condition is true. Check it whenever control, weights or a batch change, and once a second.

        Raises:
            JobEnded: The job was deleted.
            WorkerReplaced: A later incarnation holds this worker's lease.
        """
        with self._changed:
            while not condition():
                if self._job_ended:
                    raise self._job_ended
                self._changed.wait(1.0)

    def send(self, fragment: Fragment, meta: BatchMeta) -> PendingBatch:
        """See `WorkerTransport`.

        Raises:
            JobEnded: See `wait_until`.
        """
        assert self._lease is not None, "an evaluation worker sends no batch"
        if self._job_ended:
            raise self._job_ended
        process = self._lease.lease.process
        identity = Identity(worker=self._worker, incarnation=self.incarnation, sequence=self._sequence, process=process)
        self._sequence += 1
        admitted: Future[None] = Future()
        stored = self._link.spawn(self._publisher.publish(fragment, meta, identity, admitted))

        def end_waiting(_: "Future[None]") -> None:
            if not admitted.done():  # it failed; `stored` holds the error
                admitted.set_result(None)

        stored.add_done_callback(end_waiting)
        for future in (admitted, stored):
            future.add_done_callback(lambda _: self._notify())
        return PendingBatch(admitted=admitted, stored=stored)

    def evaluated(self, evaluation: Evaluation) -> None:
        """Send a result, now and in each heartbeat."""
        self._result = pack(evaluation)
        self._link.begin(self._send_heartbeat())

    def report(self, status: WorkerStatus) -> None:
        """Set the content of the heartbeat, and send it at once."""
        self._asked_s = time.monotonic()
        self._status = status
        self._link.begin(self._send_heartbeat())

    def close(self) -> None:
        """Leave. The last report is still sent."""
        for task in self._tasks:
            task.cancel()
        self._link.close()

    # --- on the link's thread ---

    async def _join(self) -> WorkerLease | None:
        link, subjects = self._link, self._subjects
        await link.listen(subjects.spec, CollectorJob, self._publisher.follow)
        await link.listen(subjects.control, Control, self._set_control)
        await link.client.subscribe(subjects.taken(self._worker), cb=self._on_taken)
        if not self._evaluation:
            await self._calls.subscribe()
        return await insist(self._take_lease)

    async def _take_lease(self) -> WorkerLease | None:
        # Its owner stores a job last: before that, NATS may have lost the leases of earlier incarnations.
        while not await self._catch_up() and not self._evaluation:  # noqa: ASYNC110 (another process decides)
            await asyncio.sleep(RETRY_WAIT_S)
        return None if self._evaluation else await WorkerLease.take(self._link, self._worker)

    async def _recover(self) -> None:
        """Recover after a cut. NATS may be another server, or have lost messages that it had confirmed."""
        await self._catch_up()
        try:
            if self._lease:
                await self._lease.hold()
        except JobEnded as error:
            self._end(error)
            raise
        self._send_again()

    def _send_again(self) -> None:
        if self._control:
            self._publisher.send_again(self._control.round)

    async def _catch_up(self) -> bool:
        """Read the job and control. Returns False if the job is not stored."""
        job = await read_state(self._link, self._subjects.spec, CollectorJob)
        if job:
            self._publisher.follow(job)
        if control := await read_state(self._link, self._subjects.control, Control):
            self._set_control(control)
        return job is not None

    def _set_control(self, control: Control) -> None:
        if self._control and self._control.is_newer_than(control):
            return
        self._control = control
        self._notify()
        self._link.retry()

    async def _on_taken(self, _: Msg) -> None:
        self._link.retry()

    def _end(self, error: JobEnded) -> None:
        self._job_ended = error
        self._notify()

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()

    async def _heartbeat(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            await self._send_heartbeat()

    async def _watch_job(self) -> None:
        """End when the job was deleted, or when a later incarnation holds the lease."""
        try:
            await self._presence.watch(self._check_job)
        except JobEnded as error:
            self._end(error)

    async def _check_job(self) -> None:
        if self._lease and not await self._lease.hold():  # the one server with the state may have restarted without it
            self._send_again()
        if self._evaluation or (self._status and self._status.state in WAITING):
            await self._catch_up()
            if self._inbox:
                await self._inbox.catch_up()

    async def _send_heartbeat(self) -> None:
        if self._evaluation:
            if self._result is not None:
                await self._link.publish(self._subjects.evaluation(self._worker), self._result)
        elif status := self._status:
            in_step_s = time.monotonic() - self._asked_s if status.state is WorkerState.COLLECTING else 0.0
            follows = self._control.progress if self._control else (0, 0, 0)
            heartbeat = replace(status, in_step_s=in_step_s, follows=follows, time_s=time.time())
            await self._link.publish(self._subjects.worker(self._worker), pack(heartbeat))
