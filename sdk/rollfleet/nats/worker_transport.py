"""The worker's side of a job over NATS: weights and control in, batches out.

The worker's thread blocks in these calls; everything else happens on the link's thread.
"""

import asyncio
import secrets
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
from rollfleet.nats.job_source import FollowedJob
from rollfleet.nats.link import Link, unpack_or_skip
from rollfleet.nats.outbox import Outbox
from rollfleet.nats.weights import NatsWeightsInbox
from rollfleet.schemes import Layout
from rollfleet.transports.worker_side import PendingBatch
from rollfleet.wire.codec import LARGEST_BATCH_BYTES
from rollfleet.wire.fragment_message import pack_fragment
from rollfleet_api.job import CollectorJob, EvaluationSpec
from rollfleet_api.messages import Call, Control, Evaluation, LearnerPhase, WorkerState, WorkerStatus, pack
from rollfleet_api.subjects import Ask
from rollfleet_api.transfers import BatchMeta, Receipt

HEARTBEAT_S = 1.0
REPORT_S = 0.02  # between two heartbeats, at least: a worker of small batches changes its state very often
JOIN_TIMEOUT_S = 30.0


class NatsWorkerTransport:
    """See `WorkerTransport` and `EvaluationTransport`. Joins a job as one of its workers.

    It waits for a learner, which gives this incarnation its number.

    Args:
        link: A connection as a worker of the job. It is closed with the transport.
        worker: Index of the worker.
        job: The job as this process knows it.
        evaluates: Whether it is one of the job's evaluation workers: it follows the versions that are its own, and its
            heartbeats are its newest result, for a learner that was away. Two of one index have the same results.

    """

    def __init__(self, link: Link, worker: int, job: CollectorJob, *, evaluates: bool = False) -> None:
        self._link, self._worker = link, worker
        self._evaluation: EvaluationSpec | None = job.spec.evaluation if evaluates else None
        self._process = secrets.randbits(16)
        self._outbox = Outbox(link, worker, self._process)
        self._followed = FollowedJob(link, job, self._outbox.follow, self._end)
        self._numbered = evaluates
        self._changed = threading.Condition()
        self._control: Control | None = None
        self._status: WorkerStatus | None = None
        self._asked_s = 0.0  # time of the last access to control: a hanging step shows as time since
        self._inbox: NatsWeightsInbox | None = None
        self._job_ended: JobEnded | None = None  # the reason why the job has ended
        self._result: bytes | None = None  # of the newest evaluation
        self._news = asyncio.Event()  # set when the next heartbeat should not wait
        self._calls = CallReceiver(link, worker, self._process, self._notify)
        self.answer = self._calls.answer
        self._outbox.follow(job)
        link.call(self._join(), timeout_s=JOIN_TIMEOUT_S)
        link.on_reconnect(self._recover)
        self._beating = link.spawn(self._heartbeat())

    @property
    def incarnation(self) -> int:
        """Number of this incarnation of the worker, from 0; 0 as long as `control` is None, and for evaluation."""
        return self._outbox.incarnation

    @property
    def control(self) -> Control | None:
        """The newest control message; None: no learner is there. A worker reads it between steps of environments."""
        self._asked_s = time.monotonic()
        control = self._control
        return control if self._numbered or (control and control.phase is LearnerPhase.COMPLETE) else None

    @property
    def call(self) -> Call | None:
        """See `WorkerTransport`."""
        return self._calls.call

    def follow_weights(self, layout: Layout) -> NatsWeightsInbox:
        """Receive the weights of a policy with this layout from now on. Call it once."""
        self._inbox = NatsWeightsInbox(self._link, self._worker, layout, self._changed, self._evaluation)
        self._link.call(self._inbox.start(self._control), timeout_s=JOIN_TIMEOUT_S)
        return self._inbox

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait until the condition is true. Check it whenever control, weights or a batch change, and once a second.

        Raises:
            JobEnded: The job was deleted.
            WorkerReplaced: A later process is this worker.
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
        if self._job_ended:
            raise self._job_ended
        encoded = pack_fragment(fragment, meta, compression=self._followed.job.spec.delivery.compression)
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
        self._beating.cancel()
        self._link.close()

    # --- on the link's thread ---

    async def _join(self) -> None:
        link, subjects = self._link, self._link.subjects
        await self._followed.subscribe()
        await link.listen(subjects.control, Control, self._set_control)
        await link.on_ask(Ask.HEARTBEATS, self._send_heartbeat)
        if not self._evaluation:
            await self._calls.subscribe()
            await link.client.subscribe(subjects.taken(self._worker), cb=self._on_receipt)
        await link.ask(Ask.CONTROL)

    async def _recover(self) -> None:
        """Recover after a cut: it may have lost anything."""
        await self._link.ask(Ask.CONTROL)
        self._news.set()
        await self._outbox.offer_again()

    def _set_control(self, control: Control) -> None:
        before = self._control
        if before and before.order > control.order:
            return
        self._control = control
        if self._inbox:
            self._inbox.follow(control)
        if before is None or before.order < control.order:
            self._notify()
        if before is None or before.phase is not control.phase:
            self._news.set()
        if before and before.session < control.session:  # a new learner: it knows of none
            self._link.begin(self._outbox.offer_again())

    async def _on_receipt(self, message: Msg) -> None:
        receipt = unpack_or_skip(Receipt, message.data, message.subject)
        if receipt is None or (self._control and 0 < receipt.session < self._control.session):
            return  # of a learner that is gone
        if receipt.process != self._process:
            if self._numbered and receipt.incarnation is not None and receipt.incarnation >= self.incarnation:
                self._end(
                    WorkerReplaced(
                        f"worker {self._worker} was started again: that process is its incarnation "
                        f"{receipt.incarnation}, and this one, {self.incarnation}, ends"
                    )
                )
            return
        if receipt.incarnation is not None and not self._numbered:
            self._outbox.incarnation, self._numbered = receipt.incarnation, True
            self._notify()
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
            if time.monotonic() - offered_s >= HEARTBEAT_S:
                offered_s = time.monotonic()
                await self._outbox.offer()
            await asyncio.sleep(REPORT_S)

    async def _send_heartbeat(self) -> None:
        if self._evaluation:
            if self._result is not None:
                await self._link.publish(self._link.subjects.evaluation(self._worker), self._result)
        elif status := self._status:
            asked_s, now_s = self._asked_s, time.monotonic()  # in this order: another thread sets the first
            in_step_s = now_s - asked_s if status.state is WorkerState.COLLECTING else 0.0
            follows = self._control.progress if self._control and self._numbered else None
            heartbeat = replace(
                status,
                incarnation=self.incarnation,
                process=self._process,
                in_step_s=in_step_s,
                follows=follows,
                time_s=time.time(),
            )
            await self._link.publish(self._link.subjects.worker(self._worker), pack(heartbeat))
