"""The learner's side of a job over NATS: batches in, weights and control out.

```
chunks, offers -> BatchReceiver: Intake (make whole), decode on its own thread -> receive()
take() -> a receipt to the worker, which keeps the batch until then
send_weights(), control() -> LearnerSender (in order, the newest only)
```

A learner of several ranks has one transport in each. Only rank 0 sends weights and control.
"""

import logging
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import ExitStack

import torch

from rollfleet.errors import LearnerReplaced
from rollfleet.nats.calls import CallSender
from rollfleet.nats.heartbeats import LearnerHeartbeats
from rollfleet.nats.job_source import FollowedJob
from rollfleet.nats.link import Link
from rollfleet.nats.receiver import BatchReceiver
from rollfleet.nats.sender import LearnerSender
from rollfleet.schemes import Layout
from rollfleet.transports.learner_side import Arrival, Elastic
from rollfleet.weights.layout import State
from rollfleet.wire.buffer_pool import BufferPool
from rollfleet.wire.chunks import Identity
from rollfleet_api.job import CollectorJob
from rollfleet_api.messages import Control, Evaluation, LearnerPhase, LearnerStatus, Progress, WorkerStatus
from rollfleet_api.ranks import ALONE, Rank
from rollfleet_api.subjects import Ask

log = logging.getLogger(__name__)

TAKE_OVER_TIMEOUT_S = 15.0
OWNER_TIMEOUT_S = 60.0  # for an operator that starts: its successor waits for its lease
FLUSH_TIMEOUT_S = 2.0
IDLE_VERSIONS = 2  # whose memory is kept for the next ones
END_TIMEOUT_S = 30.0  # for the message that the job is complete: no other process would send it
HEARD_S = 5.0  # for workers to confirm it


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
        self._link = link
        self._receiver = BatchReceiver(link, rank=rank, device=device, no_cuda_sync=no_cuda_sync, session=self._session)
        self._followed = FollowedJob(link, job, lambda job: link.begin(self._follow(job)), self._receiver.fail)
        self._heartbeats = LearnerHeartbeats(link, job, rank, self._on_replaced, self._send_control)
        self._calls = CallSender(link, self._heartbeats.numbering.process_of)
        self.call = self._calls.call
        self._sender = LearnerSender(
            link,
            present=lambda: len(self.members() & self.workers().keys()),
            status=self._heartbeats.now,
        )
        try:
            link.call(self._take_over(), timeout_s=TAKE_OVER_TIMEOUT_S + OWNER_TIMEOUT_S)
        except BaseException:
            self._receiver.close()
            raise
        self._memory = BufferPool(IDLE_VERSIONS)
        link.on_reconnect(self._recover)
        self._tasks = [link.spawn(coroutine) for coroutine in (self._sender.run(), self._heartbeats.run())]
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
        self._sender.weights(version, snapshot, workers)

    def receive(self, *, timeout_s: float) -> Arrival | None:
        """See `Transport`."""
        arrival = self._receiver.receive(timeout_s)
        # Rank 0 may still train on the last batch: other ranks wait for its word.
        if arrival is None and (ended := self._followed.ended(complete=self.rank.leads)):
            raise ended
        return arrival

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
        return None if self.rank.leads else self._heartbeats.leader_control

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
        with ExitStack() as ending:  # Ctrl-C may end each wait
            ending.callback(self._link.close)
            ending.callback(self._receiver.close)
            if not self._sender.flush(timeout_s=END_TIMEOUT_S if ends_job else FLUSH_TIMEOUT_S):
                log.warning("%s: the learner's last messages did not reach NATS", self.job.key)
            elif ends_job:
                self._heartbeats.wait_complete(HEARD_S, away_s=END_TIMEOUT_S)
            for last in (self._sender.send_again(), self._heartbeats.send()):
                self._link.begin(last)
            for task in self._tasks:
                task.cancel()

    # --- on the link's thread ---

    async def _take_over(self) -> None:
        link = self._link
        await self._followed.subscribe()
        await link.ask(Ask.JOB)
        began_s = time.monotonic()
        await link.flush()
        way_s = time.monotonic() - began_s  # twice there and back
        await self._heartbeats.hear(way_s)
        if not self._heartbeats.continues:  # then only the owner can know what was before: all pods were away
            await self._followed.wait_for_owner(OWNER_TIMEOUT_S)
        self.resumed = await self._heartbeats.begin(self._known_by_owner())
        await self._receiver.follow(self.job)
        await self._calls.subscribe()
        await self._sender.subscribe()

    def _known_by_owner(self) -> Progress:
        """Return the job's progress as its owner knows it: all its processes may have ended meanwhile."""
        if (status := self._followed.job.status) is None:
            return Progress(session=0)
        return Progress(
            session=0,
            version=status.published_version or 0,
            frames=status.frames,
            batches=status.batches.delivered,
            next_incarnation=status.next_incarnation,
            env_version=status.env_version,
        )

    async def _recover(self) -> None:
        self._heartbeats.roster.forget_missed()
        await self._receiver.reconnect()
        await self._link.ask(Ask.JOB)
        await self._heartbeats.send()
        if not self.rank.leads:
            await self._link.ask(Ask.CONTROL)

    async def _follow(self, job: CollectorJob) -> None:
        self.job = job
        self._heartbeats.follow(job)
        await self._receiver.follow(job)

    async def _send_control(self) -> None:
        await self._sender.send_again()

    def _session(self) -> int:
        leader = self._heartbeats.leader_control
        return self.resumed.session if self.rank.leads or leader is None else leader.session

    def _on_ended(self, task: "Future[None]") -> None:
        error = None if task.cancelled() else task.exception()
        if error:
            self._receiver.fail(error)

    def _on_replaced(self) -> None:
        how = "" if self.rank == ALONE else f" as {self.rank}, or with another number of ranks,"
        self._receiver.fail(LearnerReplaced(f"another learner connected to {self.job.key}{how} and took it over"))
