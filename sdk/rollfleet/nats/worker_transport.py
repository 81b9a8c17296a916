"""A worker's end of a job over NATS: weights and control in, batches out.

The worker's own thread blocks in these calls; everything else happens on the link's thread.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace

from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.errors import NoRespondersError
from pydantic import ValidationError

from rollfleet.data.batch import Fragment
from rollfleet.errors import JobEnded
from rollfleet.nats.lease import WorkerLease
from rollfleet.nats.link import Link, insist, now_s
from rollfleet.nats.publisher import BatchPublisher
from rollfleet.nats.state import read_bytes, read_state
from rollfleet.nats.weights import NatsWeightsInbox
from rollfleet.schemes import Layout
from rollfleet.transports.worker_side import Sending
from rollfleet.wire.batch_chunks import Identity
from rollfleet_api.job import CollectorJob
from rollfleet_api.messages import (
    BatchMeta,
    Control,
    LearnerPhase,
    MessageInvalid,
    WorkerState,
    WorkerStatus,
    pack,
    unpack,
)

log = logging.getLogger(__name__)

HEARTBEAT_S = 1.0
LOOK_AROUND_S = 2.0
JOIN_TIMEOUT_S = 30.0
WAITING = (WorkerState.WAITING_FOR_WEIGHTS, WorkerState.WAITING_FOR_LEARNER, WorkerState.PAUSED)
DELETED_AFTER_S = 5.0  # a job whose streams are gone while the connection held has ended
LOST_AFTER_S = 60.0  # after a cut NATS may have lost them: whoever runs the job has so long to make them again


class NatsWorkerTransport:
    """See `WorkerTransport`. Joins a job as one of its workers.

    Args:
        link: A connection as a worker of the job. It is closed with the transport.
        worker: Index of the worker.

    Attributes:
        incarnation: Which life of this worker this is, from 0; nobody else has it.
    """

    def __init__(self, link: Link, worker: int) -> None:
        self._link, self._subjects, self._worker = link, link.subjects, worker
        self._changed = threading.Condition()
        self._control: Control | None = None
        self._status: WorkerStatus | None = None
        self._asked_s = 0.0  # when control was asked for last: a step that hangs shows as time since
        self._sequence = 0
        self._publisher = BatchPublisher(link, worker)
        self._inbox: NatsWeightsInbox | None = None
        self._over: JobEnded | None = None  # why there is nothing more to do
        self._ended = asyncio.Event()
        self._patience_s = DELETED_AFTER_S
        self._lease = link.call(self._join(), timeout_s=JOIN_TIMEOUT_S)
        self.incarnation = self._lease.incarnation
        if self.incarnation:
            link.begin(self._publisher.begin(self._lease.lease))
        link.on_reconnect(self._recover)
        self._tasks = [link.spawn(coroutine) for coroutine in (self._heartbeat(), self._look_around())]

    @property
    def control(self) -> Control | None:
        """The newest control message. A worker asks for it between any two steps of its environments."""
        self._asked_s = time.monotonic()
        return self._control

    @property
    def status(self) -> WorkerStatus | None:
        """What was reported last."""
        return self._status

    def follow_weights(self, layout: Layout) -> NatsWeightsInbox:
        """From now on, receive the weights of a policy that is laid out like this. Call it once."""
        self._inbox = NatsWeightsInbox(self._link, self._worker, layout, self._changed)
        self._link.call(self._inbox.start(), timeout_s=JOIN_TIMEOUT_S)
        return self._inbox

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait until something is so; it is asked again whenever control or weights have changed.

        Raises:
            JobEnded: The job was deleted, or a later life of this worker has its place.
        """
        with self._changed:
            while not condition():
                if self._over:
                    raise self._over
                self._changed.wait(1.0)

    def send(self, fragment: Fragment, meta: BatchMeta) -> Sending:
        """Publish a batch, after those that were sent before. The fragment must not change until it is stored."""
        identity = Identity(worker=self._worker, incarnation=self.incarnation, sequence=self._sequence)
        self._sequence += 1
        admitted: Future[None] = Future()
        stored = self._link.spawn(self._publish(fragment, meta, identity, admitted))

        def give_up_waiting(_: "Future[None]") -> None:
            if not admitted.done():  # it failed, which `stored` tells
                admitted.set_result(None)

        stored.add_done_callback(give_up_waiting)
        return Sending(admitted=admitted, stored=stored)

    def report(self, status: WorkerStatus) -> None:
        """What the heartbeat says from now on; sent at once."""
        self._asked_s = time.monotonic()
        self._status = status
        self._link.begin(self._beat())

    def close(self) -> None:
        """Leave. The last report is still sent."""
        for task in self._tasks:
            task.cancel()
        self._link.close()

    # --- on the link's thread ---

    async def _join(self) -> WorkerLease:
        link, subjects = self._link, self._subjects
        await link.client.subscribe(subjects.spec, cb=self._on_spec)
        await link.client.subscribe(subjects.control, cb=self._on_control)
        await link.client.subscribe(subjects.taken(self._worker), cb=self._on_taken)
        await insist(self._catch_up)
        return await WorkerLease.take(link, self._worker)

    async def _recover(self) -> None:
        """After a cut. NATS may be another one, with nothing of what was stored."""
        self._patience_s = LOST_AFTER_S
        await self._catch_up()
        try:
            kept = await self._lease.renew()
        except JobEnded as error:
            self._end(error)
            raise
        if not kept:
            self._publisher.lost(self._control.round if self._control else 0)

    async def _catch_up(self) -> None:
        if spec := await read_bytes(self._link, self._subjects.spec):
            self._set_spec(spec)
        try:
            control = await read_state(self._link, self._subjects.control, Control)
        except MessageInvalid as error:
            log.warning("the control message that is stored is passed over: %s", error)
            return
        if control:
            self._set_control(control)

    async def _on_spec(self, message: Msg) -> None:
        self._set_spec(message.data)

    def _set_spec(self, data: bytes) -> None:
        try:
            self._publisher.follow(CollectorJob.model_validate_json(data))
        except ValidationError as error:
            log.warning("the job as it was published is passed over: %s", error)

    async def _on_control(self, message: Msg) -> None:
        try:
            self._set_control(unpack(Control, message.data))
        except MessageInvalid as error:
            log.warning("a control message is passed over: %s", error)

    def _set_control(self, control: Control) -> None:
        newest = self._control
        if newest and (newest.session, newest.round, newest.version) > (
            control.session,
            control.round,
            control.version,
        ):
            return
        with self._changed:
            self._control = control
            self._changed.notify_all()
        self._publisher.complete = control.phase is LearnerPhase.COMPLETE
        self._publisher.look_again()

    async def _on_taken(self, _: Msg) -> None:
        self._publisher.look_again()

    async def _publish(self, fragment: Fragment, meta: BatchMeta, identity: Identity, admitted: "Future[None]") -> None:
        """Publish, as long as there is somebody to publish for."""
        task = asyncio.ensure_future(self._publisher.publish(fragment, meta, identity, admitted))
        ended = asyncio.ensure_future(self._ended.wait())
        try:
            await asyncio.wait({task, ended}, return_when=asyncio.FIRST_COMPLETED)
            if self._over and not task.done():
                raise self._over
            task.result()
        finally:
            task.cancel()
            ended.cancel()

    def _end(self, error: JobEnded) -> None:
        with self._changed:
            self._over = error
            self._changed.notify_all()
        self._ended.set()

    async def _heartbeat(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            await self._beat()

    async def _look_around(self) -> None:
        """See now and then whether there is still a job, this life's place in it, and what this worker waits for.

        What is published is not stored in the same moment: whoever subscribes just after the one, and reads just before
        the other, misses it.
        """
        gone_s = 0.0
        while not self._over:
            await asyncio.sleep(LOOK_AROUND_S)
            try:
                await self._lease.check()
                if self._status and self._status.state in WAITING:
                    await self._catch_up()
                    if self._inbox:
                        await self._inbox.catch_up()
            except NoRespondersError:  # no stream answers: the job is gone, or NATS is not ready yet
                gone_s += LOOK_AROUND_S
                if gone_s >= self._patience_s:
                    self._end(JobEnded(f"the job {self._subjects.key} is gone from NATS for {gone_s:g} s"))
            except (NatsError, TimeoutError, OSError) as error:
                log.debug("worker %d looks around: %r", self._worker, error)
            except JobEnded as error:
                self._end(error)
            else:
                gone_s, self._patience_s = 0.0, DELETED_AFTER_S

    async def _beat(self) -> None:
        if self._status:
            await self._link.tell(self._subjects.worker(self._worker), self._pulse())

    def _pulse(self) -> bytes:
        status = self._status
        assert status is not None
        in_step_s = time.monotonic() - self._asked_s if status.state is WorkerState.COLLECTING else 0.0
        return pack(replace(status, in_step_s=in_step_s, time_s=now_s()))
