"""The learner's side of a job over NATS: batches in, weights and control out.

```
chunks, offers -> BatchReceiver: Intake (make whole), decode on its own thread -> receive()
take() -> a receipt to the worker, which keeps the batch until then
send_weights(), control() -> LearnerSender (in order, the newest only)
```

A learner of several ranks has one transport in each. Only rank 0 sends weights and control.
"""

import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import replace

import torch
from nats.aio.msg import Msg

from rollfleet.errors import LearnerReplaced
from rollfleet.nats.calls import CallSender
from rollfleet.nats.heartbeats import LearnerHeartbeats
from rollfleet.nats.lease import HeldLease, Overtaken
from rollfleet.nats.link import Link, unpack_or_skip
from rollfleet.nats.polling import insist
from rollfleet.nats.presence import JobPresence
from rollfleet.nats.receiver import BatchReceiver
from rollfleet.nats.sender import LearnerSender
from rollfleet.nats.state import read_bytes, read_state
from rollfleet.nats.weights import is_of, version_in
from rollfleet.schemes import Layout
from rollfleet.transports.learner_side import Arrival, Elastic, Resumed
from rollfleet.weights.layout import State
from rollfleet.wire.buffer_pool import BufferPool
from rollfleet.wire.chunks import Identity, Received
from rollfleet_api.job import CollectorJob
from rollfleet_api.messages import (
    Control,
    Evaluation,
    LearnerPhase,
    LearnerStatus,
    Lease,
    WorkerState,
    WorkerStatus,
)
from rollfleet_api.ranks import ALONE, Rank
from rollfleet_api.versions import MAX_SESSIONS, count_of, session_of

log = logging.getLogger(__name__)

TAKE_OVER_TIMEOUT_S = 15.0
FLUSH_TIMEOUT_S = 2.0
IDLE_VERSIONS = 2  # whose memory is kept for the next ones
END_TIMEOUT_S = 30.0  # for the message that the job is complete: no other process would send it


class NatsTransport:
    """Takes a job over: workers send it the batches that they keep.

    Args:
        link: A connection as the job's learner. It is closed with the transport.
        device: The device of batches; None: the CPU memory in which they were received.
        no_cuda_sync: Do not wait for the copy to the device.
        rank: The rank of this process. It replaces a process of the same rank, and every process of a learner with
            another number of ranks.
        elastic: Adds and removes workers; None: the operator, or any other program, starts them.

    Attributes:
        job, rank, resumed, elastic, call: See `Transport`.
    """

    def __init__(
        self,
        link: Link,
        job: CollectorJob,
        *,
        device: torch.device | None = None,
        no_cuda_sync: bool = False,
        rank: Rank = ALONE,
        elastic: Elastic | None = None,
    ) -> None:
        self.job, self.rank, self.elastic = job, rank, elastic
        self._link, self._subjects = link, link.subjects
        self._found: Received | None = None  # the first chunk of the job's weights, until this learner sends some
        self._receiver = BatchReceiver(link, job=job, rank=rank, device=device, no_cuda_sync=no_cuda_sync)
        self._heartbeats = LearnerHeartbeats(link, job, rank)
        self._calls = CallSender(link)
        self.call = self._calls.call
        try:
            self.resumed = link.call(self._take_over(), timeout_s=TAKE_OVER_TIMEOUT_S)
        except BaseException:
            self._receiver.close()
            raise
        self._sender = LearnerSender(link, self.resumed.session)
        self._memory = BufferPool(IDLE_VERSIONS)
        running = [self._sender.run(), self._heartbeats.run(), JobPresence(link).watch(self._look)]
        link.on_reconnect(self._recover)
        self._tasks = [link.spawn(coroutine) for coroutine in running]
        for task in self._tasks:
            task.add_done_callback(self._on_ended)

    def control(self, control: Control) -> None:
        """See `Transport`."""
        self._receiver.check()
        if control.phase is LearnerPhase.COMPLETE:
            self._link.begin(self._heartbeats.send())  # the next learner reads the number of frames from it
        self._sender.control(control)

    def send_weights(
        self, version: int, layout: Layout, models: Mapping[str, State], *, workers: frozenset[int] | None = None
    ) -> None:
        """See `Transport`."""
        self._receiver.check()
        snapshot = layout.snapshot(models, torch.from_numpy(self._memory.take(layout.total_bytes)))
        if workers is None:
            found, self._found = self._found, None
            if found and not is_of(found, snapshot):
                log.warning(
                    "%s: version %d, the first of this learner, has other weights than version %d, the last of the "
                    "learner before it: everything that one learned since its last checkpoint is lost",
                    self.job.key,
                    count_of(version),
                    count_of(version_in(found)),
                )
        self._sender.weights(version, snapshot, workers)

    def receive(self, *, timeout_s: float) -> Arrival | None:
        """See `Transport`."""
        return self._receiver.receive(timeout_s)

    def take(self, arrival: Arrival) -> None:
        """See `Transport`."""
        identity = Identity(
            worker=arrival.worker,
            incarnation=arrival.incarnation,
            sequence=arrival.sequence,
            process=arrival.process,
        )
        self._receiver.take(identity)

    @property
    def leader_control(self) -> Control | None:
        """See `Transport`."""
        return self._heartbeats.leader_control

    def members(self) -> frozenset[int]:
        """See `Transport`."""
        return self._heartbeats.roster.members()

    def workers(self) -> Mapping[int, WorkerStatus]:
        """See `Transport`."""
        return self._heartbeats.roster.statuses()

    def report(self, status: Callable[[], LearnerStatus]) -> None:
        """See `Transport`."""
        self._heartbeats.status = status

    @property
    def evaluations(self) -> tuple[Evaluation, ...]:
        """The evaluations since this learner connected, by version; on rank 0."""
        return self._heartbeats.evaluations.all()

    def corrupt(self) -> Mapping[int, int]:
        """See `Transport`."""
        return dict(self._receiver.corrupt)

    def close(self, *, timeout_s: float | None = None) -> None:
        """See `Transport`. Control that was given before is still sent."""
        if self._link.closed:
            return
        ends_job = (newest := self._sender.newest) is not None and newest.phase is LearnerPhase.COMPLETE
        if not self._sender.flush(timeout_s=END_TIMEOUT_S if ends_job else FLUSH_TIMEOUT_S):
            log.warning("%s: the learner's last messages did not reach NATS", self.job.key)
        self._link.begin(self._heartbeats.send())
        for task in self._tasks:
            task.cancel()
        self._receiver.close()
        self._link.close()

    # --- on the link's thread ---

    async def _take_over(self) -> Resumed:
        link, subjects, beats = self._link, self._subjects, self._heartbeats
        await insist(self._take_lease)  # first: a replaced learner stops before its state is read
        await link.listen(subjects.spec, CollectorJob, lambda job: link.begin(self._follow(job)))
        await self._receiver.follow(self.job)
        await beats.subscribe()
        await self._calls.subscribe()
        resumed = await insist(self._read_resumed)  # a cut connection loses requests
        if self.rank.leads and resumed.session > self._lease.number:  # NATS came back without the newest leases
            await insist(lambda: self._take_lease(least=resumed.session))
        await link.client.subscribe(subjects.learner_leases, cb=self._on_lease)  # now that none of its own comes
        return replace(resumed, session=self._lease.number) if self.rank.leads else resumed

    async def _take_lease(self, *, least: int = 1) -> None:
        subject = self._subjects.learner_lease(self.rank.name)
        self._lease = await HeldLease.take(self._link, subject, least=least, most=MAX_SESSIONS)

    async def _read_resumed(self) -> Resumed:
        link, subjects, beats = self._link, self._subjects, self._heartbeats
        await self._read_spec()  # it may have changed since this learner read it
        for worker in range(self.job.spec.workers):
            if status := await read_state(link, subjects.worker(worker), WorkerStatus):
                beats.roster.hear(status)
        control = await read_state(link, subjects.control, Control)
        learner = await read_state(link, subjects.learner, LearnerStatus)
        if control and not self.rank.leads:
            beats.hear_leader(control)
        # NATS may be back with an older state than its workers have seen.
        session, round_, target = self._followed()
        target = max(target, control.version if control else 0)
        self._found = await read_bytes(link, subjects.weights_of(None, target, 0))
        session = max([session, session_of(target), *(each.session for each in (control, learner) if each)])
        return Resumed(
            session=self.rank.leads + session,
            version=max(count_of(target), learner.version if learner else 0),
            target=target,
            round=max(round_, control.round if control else 0),
            # Of several ranks it names the frames of all.
            frames=learner.frames if learner and self.rank == ALONE else 0,
            batches=learner.batches if learner and self.rank == ALONE else 0,
        )

    def _followed(self) -> tuple[int, int, int]:
        """Return the newest progress of a control message that a worker follows."""
        statuses = self._heartbeats.roster.statuses().values()
        gone = (WorkerState.LEFT, WorkerState.COMPLETE)  # perhaps of an earlier job of this name
        return max((each.follows for each in statuses if each.state not in gone), default=(0, 0, 0))

    async def _recover(self) -> None:
        await self._look()
        self._heartbeats.forget_missed()

    async def _on_lease(self, message: Msg) -> None:
        """See whether a process of this rank has connected, or one of a learner with another number of ranks."""
        lease = unpack_or_skip(Lease, message.data, message.subject)
        own = message.subject == self._subjects.learner_lease(self.rank.name)
        ours = message.subject.endswith(f"-of-{self.rank.ranks}") and not own
        if lease and not ours and (not own or lease.incarnation > self._lease.number):
            self._receiver.fail(self._replaced())

    async def _look(self) -> None:
        """See that NATS still has this learner's messages. Read those that may have been missed: control, and the job.

        Raises:
            LearnerReplaced: Another learner has the job.
        """
        self._receiver.check()  # a learner that was replaced stores nothing again
        control = await read_state(self._link, self._subjects.control, Control)
        try:
            await self._lease.hold()
        except Overtaken as overtaken:
            raise self._replaced() from overtaken
        if self.rank.leads and control and control.session > self.resumed.session:
            raise self._replaced()
        newest = self._sender.newest
        if self.rank.leads and self._followed() > (newest.progress if newest else (self.resumed.session, 0, 0)):
            raise LearnerReplaced(
                f"NATS came back without the last learner of {self.job.key}, which its workers follow: start it again"
            )
        await self._sender.restore()
        if not self.rank.leads and control:
            self._heartbeats.hear_leader(control)
        await self._read_spec()

    async def _read_spec(self) -> None:
        if job := await read_state(self._link, self._subjects.spec, CollectorJob):
            await self._follow(job)

    async def _follow(self, job: CollectorJob) -> None:
        self.job = job
        self._heartbeats.follow(job)
        await self._receiver.follow(job)

    def _on_ended(self, task: "Future[None]") -> None:
        error = None if task.cancelled() else task.exception()
        while isinstance(error, BaseExceptionGroup):  # of a task group: the first is the cause
            error = error.exceptions[0]
        if error:
            self._receiver.fail(error)

    def _replaced(self) -> LearnerReplaced:
        how = "" if self.rank == ALONE else f" as {self.rank}, or with another number of ranks,"
        return LearnerReplaced(f"another learner connected to {self.job.key}{how} and took it over")
