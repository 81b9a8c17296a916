"""The worker's side of a job over NATS: weights and control in, batches out.

The worker's thread blocks in these calls; everything else happens on the link's thread.
"""

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace

from nats.aio.msg import Msg

from rollfleet.data.batch import Fragment
from rollfleet.errors import JobEnded, JobInvalid, WorkerReplaced
from rollfleet.nats.calls import CallReceiver
from rollfleet.nats.lease import HeldLease, Overtaken
from rollfleet.nats.link import Link, unpack_or_skip
from rollfleet.nats.outbox import Outbox
from rollfleet.nats.polling import RETRY_WAIT_S, insist
from rollfleet.nats.presence import JobPresence
from rollfleet.nats.state import read_state
from rollfleet.nats.weights import NatsWeightsInbox
from rollfleet.rollout.trajectory_ids import MAX_INCARNATIONS
from rollfleet.schemes import Layout
from rollfleet.transports.worker_side import PendingBatch
from rollfleet.wire.codec import LARGEST_BATCH_BYTES
from rollfleet.wire.fragment_message import pack_fragment
from rollfleet_api.job import CollectorJob, EvaluationSpec
from rollfleet_api.messages import BatchMeta, Call, Control, Evaluation, Receipt, WorkerState, WorkerStatus, pack

HEARTBEAT_S = 1.0
REPORT_S = 0.02  # between two heartbeats, at least: a worker of small batches changes its state very often
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
        self._outbox: Outbox | None = None  # None: it evaluates
        self._job: CollectorJob | None = None
        self._inbox: NatsWeightsInbox | None = None
        self._job_ended: JobEnded | None = None  # the reason why the job has ended
        self._presence = JobPresence(link)
        self._result: bytes | None = None  # of the newest evaluation
        self._news = asyncio.Event()  # set when the next heartbeat should not wait
        self._calls = CallReceiver(link, worker, self._notify)
        self.answer = self._calls.answer
        self._lease: HeldLease | None = None
        link.call(self._join(), timeout_s=JOIN_TIMEOUT_S)
        self.incarnation = self._lease.number if self._lease else 0
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
        self._inbox = NatsWeightsInbox(self._link, self._worker, layout, self._changed, self._evaluation)
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
            JobInvalid: The batch is too large.
        """
        assert self._outbox is not None, "an evaluation worker sends no batch"
        assert self._job is not None
        if self._job_ended:
            raise self._job_ended
        encoded = pack_fragment(fragment, meta, compression=self._job.spec.delivery.compression)
        if (nbytes := encoded.nbytes + encoded.saved_bytes) > LARGEST_BATCH_BYTES:
            raise JobInvalid(
                f"a batch has {nbytes:,} bytes, and the most is {LARGEST_BATCH_BYTES:,}: lower `collect.framesPerBatch`"
            )
        pending = PendingBatch(admitted=Future(), delivered=Future())
        for future in (pending.admitted, pending.delivered):
            future.add_done_callback(lambda _: self._notify())
        self._link.begin(self._outbox.add(encoded, pending))
        return pending

    def evaluated(self, evaluation: Evaluation) -> None:
        """Send a result, now and in each heartbeat."""
        self._result = pack(evaluation)
        self._link.soon(self._news.set)

    def report(self, status: WorkerStatus) -> None:
        """Set the content of the heartbeat. Send it soon, unless the worker only begins its next batch."""
        self._asked_s = time.monotonic()
        before, self._status = self._status, status
        news = before is None or (before.batches, before.version) != (status.batches, status.version)
        if news or status.state is not WorkerState.COLLECTING:
            self._link.soon(self._news.set)

    def close(self) -> None:
        """Leave. The last report is still sent."""
        if not self._link.closed:
            self._link.begin(self._send_heartbeat())
        for task in self._tasks:
            task.cancel()
        self._link.close()

    # --- on the link's thread ---

    async def _join(self) -> None:
        link, subjects = self._link, self._subjects
        await link.listen(subjects.spec, CollectorJob, self._follow)
        await link.listen(subjects.control, Control, self._set_control)
        if not self._evaluation:
            await self._calls.subscribe()
        # Its owner stores a job last: before that, NATS may have lost the leases of earlier incarnations.
        while not await insist(self._catch_up) and not self._evaluation:  # noqa: ASYNC110 (another process decides)
            await asyncio.sleep(RETRY_WAIT_S)
        if self._evaluation is None:
            await insist(self._take_lease)

    async def _take_lease(self) -> None:
        lease = await HeldLease.take(self._link, self._subjects.lease(self._worker), most=MAX_INCARNATIONS)
        self._lease, self._outbox = lease, Outbox(self._link, self._worker, lease.lease)
        if self._job:
            self._outbox.follow(self._job)
        await self._link.client.subscribe(self._subjects.taken(self._worker), cb=self._on_receipt)

    async def _recover(self) -> None:
        """Recover after a cut. NATS may be another server, or have lost messages that it had confirmed."""
        await self._catch_up()
        try:
            await self._hold()
        except JobEnded as error:
            self._end(error)
            raise
        if self._outbox:
            await self._outbox.offer()

    async def _hold(self) -> None:
        try:
            if self._lease:
                await self._lease.hold()
        except Overtaken as by:
            raise WorkerReplaced(
                f"worker {self._worker} was started again: incarnation {by.number} holds its lease, and this one, "
                f"{self.incarnation}, ends"
            ) from by

    async def _catch_up(self) -> bool:
        """Read the job and control. Returns False if the job is not stored."""
        job = await read_state(self._link, self._subjects.spec, CollectorJob)
        if job:
            self._follow(job)
        if control := await read_state(self._link, self._subjects.control, Control):
            self._set_control(control)
        return job is not None

    def _follow(self, job: CollectorJob) -> None:
        self._job = job
        if self._outbox:
            self._outbox.follow(job)

    def _set_control(self, control: Control) -> None:
        if self._control and self._control.is_newer_than(control):
            return
        before, self._control = self._control, control
        self._notify()
        if self._outbox and before and before.session < control.session:  # a new learner: it knows of none
            self._link.begin(self._outbox.offer())

    async def _on_receipt(self, message: Msg) -> None:
        if self._outbox and (receipt := unpack_or_skip(Receipt, message.data, message.subject)):
            await self._outbox.answer(receipt)

    def _end(self, error: JobEnded) -> None:
        self._job_ended = error
        self._notify()

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()

    async def _heartbeat(self) -> None:
        offered_s = 0.0
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(HEARTBEAT_S):  # `wait_for` of Python 3.11 may swallow the cancellation
                    await self._news.wait()
            self._news.clear()
            await self._send_heartbeat()
            if self._outbox and time.monotonic() - offered_s >= HEARTBEAT_S:
                offered_s = time.monotonic()
                await self._outbox.offer()
            await asyncio.sleep(REPORT_S)

    async def _watch_job(self) -> None:
        """End when the job was deleted, or when a later incarnation holds the lease."""
        try:
            await self._presence.watch(self._check_job, lambda: self._job.spec.workers if self._job else 1)
        except JobEnded as error:
            self._end(error)

    async def _check_job(self) -> None:
        await self._hold()  # the one server with the state may have restarted without it
        if self._evaluation or (self._status and self._status.state in WAITING):
            await self._catch_up()
            if self._inbox:
                await self._inbox.catch_up(self._control)

    async def _send_heartbeat(self) -> None:
        if self._evaluation:
            if self._result is not None:
                await self._link.publish(self._subjects.evaluation(self._worker), self._result)
        elif status := self._status:
            asked_s, now_s = self._asked_s, time.monotonic()  # in this order: another thread sets the first
            in_step_s = now_s - asked_s if status.state is WorkerState.COLLECTING else 0.0
            follows = self._control.progress if self._control else (0, 0, 0)
            heartbeat = replace(status, in_step_s=in_step_s, follows=follows, time_s=time.time())
            await self._link.publish(self._subjects.worker(self._worker), pack(heartbeat))
