"""Gathers batches for the other ranks of a learner: rank 0 opens the rounds and sends the weights."""

import logging
import time
from collections import Counter, deque
from typing import Any

from rollfleet.errors import JobEnded
from rollfleet.learner.broadcast import Broadcaster
from rollfleet.learner.gathering import Gatherer
from rollfleet.learner.options import MANUAL, LearnerOptions
from rollfleet.learner.tally import Tally
from rollfleet.schemes import scheme_of
from rollfleet.transports.learner_side import Arrival, Transport
from rollfleet_api.job import CollectorJob
from rollfleet_api.messages import LearnerPhase, RankStatus

log = logging.getLogger(__name__)

WARN_AFTER_S = 10.0  # without rank 0, and again after as long
LEADER_TIMEOUT_S = 60.0  # for a new rank 0, if the last one had completed the job
ANY_LAG = 1 << 62

SessionRound = tuple[int, int]  # session and round


class Follower(Gatherer):
    """Gathers the fragments of one rank's workers, for the rounds that rank 0 opens.

    A fragment names its round, and each worker sends its fragments in order. Once every member has sent one, the
    earliest round among the first ones is complete.
    """

    def __init__(
        self, transport: Transport, job: CollectorJob, weights: Broadcaster, tally: Tally, *, manual: bool = False
    ) -> None:
        super().__init__(transport, job, weights, tally, manual=manual)
        assert transport.leader is not None, "rank 0 follows no other"
        self._leader = transport.leader
        self._queues: dict[int, deque[Arrival]] = {}  # worker -> its fragments, at most one of each round
        self._gathered = self._received = (0, 0)
        control = self._leader.control
        self._completed_session = control.session if control and control.phase is LearnerPhase.COMPLETE else None
        self._alone_since_s: float | None = time.monotonic()
        self._warned_s = 0.0

    def is_over(self) -> bool:
        """Whether rank 0 has completed the job, in a session that was not complete when this rank connected.

        Also whether this process has.
        """
        if self.director.phase is LearnerPhase.COMPLETE:
            return True
        control = self._leader.control
        if control is None or control.phase is not LearnerPhase.COMPLETE:
            return False
        return control.session != self._completed_session

    def hand_over(self, *, stored: bool) -> None:
        """Count what was gathered as the learner's, and acknowledge it unless the learner does so itself."""
        self._received = self._gathered
        super().hand_over(stored=stored)

    def drop(self) -> None:
        """Drop and count what an exception has interrupted. Rank 0 need not wait for this rank to receive it."""
        super().drop()
        self._received = self._gathered
        self._report()

    def check_workers(self) -> None:
        """Check the workers' states, and whether rank 0 is present.

        Raises:
            WorkerFailed: A worker gave up with an error that a restart would repeat.
            JobEnded: The job was complete when this rank connected, and no new rank 0 comes.
        """
        super().check_workers()
        if self._alone_since_s is None:
            return
        control = self._leader.control
        alone_s = time.monotonic() - self._alone_since_s
        if control is not None and control.session != self._completed_session:
            self._alone_since_s = None
        elif control is not None and alone_s > LEADER_TIMEOUT_S:
            raise JobEnded(
                f"{self.director.job.key} was complete when {self._rank} connected, and no rank 0 connected within "
                f"{LEADER_TIMEOUT_S:g} s"
            )
        elif alone_s - self._warned_s > WARN_AFTER_S:
            self._warned_s = alone_s
            log.warning("%s of %s waits for rank 0, which has not connected", self._rank, self.director.job.key)

    def _gather_round(self) -> list[Arrival]:
        while True:
            self._drop_earlier_sessions()
            heads = {worker: _round_of(queue[0]) for worker, queue in self._queues.items() if queue}
            if self._members() - self._unreadable(heads) <= heads.keys() and heads:
                break
            if self.is_over():
                return []
            if arrival := self._next():
                self._enqueue(arrival)
        self._gathered, self._corrupt = min(heads.values()), Counter(self._transport.corrupt())
        return [self._queues[worker].popleft() for worker in sorted(heads) if heads[worker] == self._gathered]

    def _enqueue(self, arrival: Arrival) -> None:
        queue = self._queues.setdefault(arrival.worker, deque())
        if queue and _round_of(arrival) <= _round_of(queue[-1]):
            self.admission.repeated += 1  # collected again by a restarted worker
        elif _round_of(arrival) <= self._received:
            self.admission.stale += 1
        else:
            queue.append(arrival)
            return
        self._transport.take(arrival)

    def _drop_earlier_sessions(self) -> None:
        control = self._leader.control
        for queue in self._queues.values():
            while queue and control is not None and queue[0].meta.session < control.session:
                self.admission.stale += 1
                self._transport.take(queue.popleft())

    def _bound_lag(self) -> None:
        super()._bound_lag()
        if self._sync:
            self.admission.max_lag = ANY_LAG

    def _report(self) -> None:
        tally = self._tally
        self._leader.report(
            RankStatus(
                rank=self._rank.rank,
                ranks=self._rank.ranks,
                process="",  # the transport sets it
                session=self._received[0],
                round=self._received[1],
                frames=tally.frames - tally.restored,
                batches=tally.batches,
                dropped=self._dropped(),
                restored=tally.restored,
            )
        )


def gatherer_over(
    transport: Transport, job: CollectorJob, policy: Any, tally: Tally, options: LearnerOptions, *, acts: bool
) -> tuple[Broadcaster, Gatherer]:
    """Make the broadcaster and the gatherer for the rank of this transport.

    `policy` is sent by default; None: no policy. `acts`: it is the very object that collects.
    """
    scheme = options.weight_scheme or scheme_of(job.spec.weights)
    weights = Broadcaster(transport, policy, scheme=scheme, acts=acts)
    gatherer = Gatherer if transport.rank.leads else Follower
    return weights, gatherer(transport, job, weights, tally, manual=options.acknowledge == MANUAL)


def _round_of(arrival: Arrival) -> SessionRound:
    return arrival.meta.session, arrival.meta.round
