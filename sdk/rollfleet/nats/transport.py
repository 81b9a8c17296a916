"""The learner's end of a job over NATS: batches in, weights and control out.

```
work queue -> Puller -> BatchReceiver (put together, decode on a thread) -> receive()
take() -> acknowledge every chunk, tell the worker that there is room
send_weights(), control() -> LearnerSender (in order, the newest only)
```

Where the learner has several ranks, each has one of these; only that of rank 0 sends weights and control.
"""

import asyncio
import logging
import time
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import replace
from typing import TypeVar

import torch
import xxhash
from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.errors import NoRespondersError
from pydantic import ValidationError

from rollfleet.errors import JetStreamRefused, JobEnded, LearnerReplaced, RollfleetError
from rollfleet.nats.consumer import Gone, LearnerConsumer
from rollfleet.nats.link import RETRY_WAIT_S, Link, insist, now_s
from rollfleet.nats.peer_ranks import LeaderView, PeerRanks
from rollfleet.nats.puller import Puller
from rollfleet.nats.receiver import BatchReceiver
from rollfleet.nats.sender import LearnerSender
from rollfleet.nats.state import read_bytes, read_state
from rollfleet.transports.learner_side import Arrival, Elsewhere, Resumed
from rollfleet.transports.roster import Roster
from rollfleet.weights.layout import Snapshot
from rollfleet.wire.batch_chunks import Identity
from rollfleet_api.job import CollectorJob
from rollfleet_api.messages import (
    Control,
    LearnerPhase,
    LearnerStatus,
    Manifest,
    MessageInvalid,
    RankStatus,
    WorkerStatus,
    pack,
    unpack,
)
from rollfleet_api.ranks import ALONE, Rank

log = logging.getLogger(__name__)

HEARTBEAT_S = 1.0
LOOK_AROUND_S = 2.0
TAKE_OVER_TIMEOUT_S = 15.0
FLUSH_TIMEOUT_S = 2.0
END_TIMEOUT_S = 30.0  # that a job is complete, nobody would say again
LOST_AFTER_S = 60.0  # after a cut NATS may have lost the job: whoever runs it has so long to make it again

M = TypeVar("M")


class NatsTransport:
    """Takes a job over: makes the learner's consumer anew, so that whatever nobody acknowledged comes again.

    Args:
        link: A connection as the job's learner. It is closed with the transport.
        job: The job.
        device: Where batches are put; None: they stay in the memory that they were received in.
        no_cuda_sync: Do not wait until they are there.
        rank: Which of the learner's processes this is. One of the same rank is replaced, and all those of a learner
            that has another number of ranks.
    """

    def __init__(
        self,
        link: Link,
        job: CollectorJob,
        *,
        device: torch.device | None = None,
        no_cuda_sync: bool = False,
        rank: Rank = ALONE,
    ) -> None:
        self._link, self._job, self._subjects, self._rank = link, job, link.subjects, rank
        self._consumer = LearnerConsumer(link, rank, job.spec.workers)
        self._making = asyncio.Lock()  # the consumer
        self._peers = PeerRanks(rank)
        self._leader = LeaderView(link, rank, self._consumer.owner)
        self._status: LearnerStatus | None = None
        self._found: Manifest | None = None  # of the newest weights, as long as nothing was sent from here
        self._roster = Roster(job.spec.workers, suspect_after_s=job.spec.failure.suspect_after_seconds)
        self._told: set[int] = set()  # the workers that are in trouble, and were said to be
        self._receiver = BatchReceiver(
            link, job=job, device=device, no_cuda_sync=no_cuda_sync, on_room=lambda: self._puller.wake()
        )
        self._puller = Puller(
            link.client,
            stream=self._subjects.batches_stream,
            consumer=rank.consumer,
            on_message=self._receiver.add,
            on_gone=self._on_gone,
            paused=self._receiver.full,
        )
        self._resumed = link.call(self._take_over(), timeout_s=TAKE_OVER_TIMEOUT_S)
        self._sender = LearnerSender(link, self._resumed.session)
        link.on_reconnect(self._reclaim)
        own = (self._heartbeat(), self._look_around())
        running = (self._puller.run(), self._sender.run(), self._receiver.keep(), *own)
        self._tasks = [link.spawn(coroutine) for coroutine in running]
        for task in self._tasks:
            task.add_done_callback(self._on_ended)

    @property
    def resumed(self) -> Resumed:
        """See `Transport`."""
        return self._resumed

    def control(self, control: Control) -> None:
        """See `Transport`."""
        self._receiver.check()
        if control.phase is LearnerPhase.COMPLETE:
            self._link.begin(self._beat())  # whoever comes next is to know how many frames there were
        self._sender.control(control)

    def send_weights(self, version: int, snapshot: Snapshot, *, workers: frozenset[int] | None = None) -> None:
        """See `Transport`."""
        self._receiver.check()
        if workers is None:
            self._compare(version, snapshot)
        self._sender.weights(version, snapshot, workers)

    def spent(self) -> list[Snapshot]:
        """See `Transport`."""
        return self._sender.spent()

    def receive(self, *, timeout_s: float) -> Arrival | None:
        """See `Transport`."""
        return self._receiver.receive(timeout_s)

    def take(self, arrival: Arrival) -> None:
        """See `Transport`."""
        self._receiver.take(Identity(worker=arrival.worker, incarnation=arrival.incarnation, sequence=arrival.sequence))

    def members(self) -> frozenset[int]:
        """See `Transport`."""
        return self._roster.members()

    def workers(self) -> Mapping[int, WorkerStatus]:
        """See `Transport`."""
        return self._roster.statuses()

    def report(self, status: LearnerStatus) -> None:
        """See `Transport`."""
        self._status = status

    def corrupt(self) -> int:
        """See `Transport`."""
        return self._receiver.corrupt

    @property
    def rank(self) -> Rank:
        """See `Ranked`."""
        return self._rank

    def elsewhere(self) -> Elsewhere:
        """See `Ranked`."""
        return self._peers.elsewhere()

    def wait_for_others(self, round_: int | None, *, timeout_s: float) -> bool:
        """See `Ranked`."""
        self._receiver.check()
        return self._peers.wait_for(self._resumed.session, round_, timeout_s)

    def may_close(self, round_: int) -> bool:
        """See `Ranked`."""
        return self._peers.may_close(self._resumed.session, round_)

    def heard(self) -> Control | None:
        """See `Ranked`."""
        return self._leader.control

    def report_rank(self, status: RankStatus) -> None:
        """See `Ranked`."""
        self._leader.report(status)

    def close(self) -> None:
        """See `Transport`. What was given to `control` before is still sent."""
        if self._link.closed:
            return
        if not self._sender.flush(timeout_s=END_TIMEOUT_S if self._sender.says_the_end else FLUSH_TIMEOUT_S):
            log.warning("%s: NATS was not told what this learner said last", self._job.key)
        if self._rank.leads:
            self._link.begin(self._beat())
        else:
            self._leader.leave()
        for task in self._tasks:
            task.cancel()
        self._receiver.close()
        self._link.close()

    async def _take_over(self) -> Resumed:
        link, subjects = self._link, self._subjects
        await insist(self._consumer.take_over)  # first: whoever is replaced stops before its state is read
        await link.client.subscribe(subjects.spec, cb=self._on_spec)
        await link.client.subscribe(subjects.workers, cb=self._on_worker)
        if not self._rank.leads:
            await link.client.subscribe(subjects.control, cb=self._on_control)
        elif self._rank != ALONE:
            await link.client.subscribe(subjects.ranks, cb=self._on_rank)
        await self._read_spec()  # what was published since it was read
        for worker in range(self._job.spec.workers):
            if status := await self._read(subjects.worker(worker), WorkerStatus):
                self._roster.hear(status)
        manifest = await self._read(subjects.manifest, Manifest)
        control = await self._read(subjects.control, Control)
        learner = await self._read(subjects.learner, LearnerStatus)
        if control and not self._rank.leads:
            self._leader.hear(control, joining=True)
        self._found = manifest
        return Resumed(
            session=self._rank.leads + max((each.session for each in (manifest, control, learner) if each), default=0),
            version=max((each.version for each in (manifest, control, learner) if each), default=0),
            round=control.round if control else 0,
            # What several ranks were handed, each of them tells by itself.
            frames=learner.frames if learner and self._rank == ALONE else 0,
            batches=learner.batches if learner and self._rank == ALONE else 0,
        )

    def _compare(self, version: int, snapshot: Snapshot) -> None:
        """Tell of a learner that does not go on from the weights that workers have, but from a checkpoint."""
        found, self._found = self._found, None
        if found and found.checksum != xxhash.xxh3_64_hexdigest(snapshot.data.numpy().data):
            log.warning(
                "%s: version %d, the first of this learner, has other weights than version %d, the last of the learner "
                "before it: what that one had learned since its last checkpoint is gone",
                self._job.key,
                version,
                found.version,
            )

    async def _read(self, subject: str, kind: type[M]) -> M | None:
        """What the state stream holds; None: nothing, or nothing that can be read."""
        try:
            return await read_state(self._link, subject, kind)
        except MessageInvalid as error:
            log.warning("what is stored of %s is passed over: %s", subject, error)
            return None

    async def _reclaim(self) -> None:
        """After a cut: what was on its way to us was delivered, as NATS sees it. Have it delivered again, at once.

        Where NATS has lost what it had stored, go on as before, and send again what workers must know.

        Raises:
            LearnerReplaced: The job is another learner's now.
            JobEnded: Nobody has made the job's streams again.
        """
        async with self._making:
            await self._reclaim_consumer()
        await self._read_spec()

    async def _reclaim_consumer(self) -> None:
        self._puller.hold()
        until = time.monotonic() + LOST_AFTER_S
        while (owner := await self._consumer.owned_by()) is Gone.STREAM:
            if time.monotonic() > until:
                self._receiver.fail(gone := JobEnded(f"the job {self._job.key} is gone from NATS"))
                raise gone
            await asyncio.sleep(RETRY_WAIT_S)
        control = await self._read(self._subjects.control, Control)
        newer = self._rank.leads and control is not None and control.session > self._resumed.session
        try:
            if newer or owner not in (Gone.CONSUMER, self._consumer.owner):
                raise self._replaced()
            if owner is Gone.CONSUMER:
                self._receiver.forget_deliveries()
                await self._consumer.make()
                log.warning("NATS has lost what it had stored of %s; going on", self._job.key)
                self._sender.send_again()
            else:
                await self._consumer.remake()
        except LearnerReplaced as replaced:
            self._receiver.fail(replaced)
            raise
        if control and not self._rank.leads:
            self._leader.hear(control)
        self._roster.begin_anew()
        self._peers.begin_anew()
        self._puller.go_on()

    async def _on_spec(self, message: Msg) -> None:
        await self._follow(message.data)

    async def _read_spec(self) -> None:
        if data := await read_bytes(self._link, self._subjects.spec):
            await self._follow(data)

    async def _follow(self, spec: bytes) -> None:
        try:
            job = CollectorJob.model_validate_json(spec)
        except ValidationError as error:
            log.warning("the job as it was published is passed over: %s", error)
            return
        self._roster.resize(job.spec.workers)
        self._receiver.follow(job)
        if self._consumer.cover(job.spec.workers):
            async with self._making:
                self._puller.hold()
                try:
                    await insist(self._consumer.remake)
                except LearnerReplaced as replaced:
                    self._receiver.fail(replaced)
                except JetStreamRefused as refused:  # the job is gone: a cut has been noticed, or the next request is
                    log.debug("%s: %s", self._job.key, refused)
                self._puller.go_on()

    async def _on_control(self, message: Msg) -> None:
        try:
            self._leader.hear(unpack(Control, message.data))
        except MessageInvalid as error:
            log.warning("a control message is passed over: %s", error)

    async def _on_rank(self, message: Msg) -> None:
        try:
            self._peers.hear(unpack(RankStatus, message.data))
        except MessageInvalid as error:
            log.warning("the heartbeat of a rank is passed over: %s", error)

    async def _on_worker(self, message: Msg) -> None:
        try:
            self._roster.hear(unpack(WorkerStatus, message.data))
        except MessageInvalid as error:
            log.warning("the heartbeat of a worker is passed over: %s", error)

    def _on_ended(self, task: "Future[None]") -> None:
        error = None if task.cancelled() else task.exception()
        while isinstance(error, BaseExceptionGroup):  # of a task group: the first is the cause
            error = error.exceptions[0]
        if error:
            self._receiver.fail(error)

    def _on_gone(self) -> None:
        self._link.begin(self._tell_why())

    async def _tell_why(self) -> None:
        """The consumer is gone: with the job, or into another learner's hands."""
        try:
            await read_bytes(self._link, self._subjects.control)
        except NoRespondersError:
            self._receiver.fail(JobEnded(f"the job {self._job.key} was deleted"))
        else:
            self._receiver.fail(self._replaced())

    def _replaced(self) -> RollfleetError:
        how = "" if self._rank == ALONE else f" as {self._rank}, or with another number of ranks,"
        return LearnerReplaced(f"another learner connected to {self._job.key}{how} and took it over")

    async def _heartbeat(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            if self._link.client.is_connected:
                self._roster.tick()
                self._peers.tick()
                if self._rank.leads:
                    self._tell_troubles()
            await self._beat()

    async def _look_around(self) -> None:
        """Read now and then what a rank must not miss.

        What is published is not stored in the same moment: whoever subscribes just after the one, and reads just before
        the other, misses it.
        """
        while self._rank != ALONE:
            await asyncio.sleep(LOOK_AROUND_S)
            try:
                if not self._rank.leads and (control := await self._read(self._subjects.control, Control)):
                    self._leader.hear(control)
                await self._read_spec()
            except (NatsError, TimeoutError, OSError) as error:
                log.debug("looking around: %r", error)

    def _tell_troubles(self) -> None:
        """Once for each worker, until it is well again."""
        troubles = self._roster.troubles()
        for worker, trouble in troubles.items():
            if worker not in self._told:
                log.warning("%s: %s", self._job.key, trouble)
        self._told = set(troubles)

    async def _beat(self) -> None:
        if not self._rank.leads:
            self._leader.tell()
        elif self._status:
            await self._link.tell(self._subjects.learner, pack(replace(self._status, time_s=now_s())))
