"""Gathers for the ranks of a learner that are not rank 0: rank 0 opens the rounds and sends the weights."""

import logging
import time
from collections import deque
from collections.abc import Collection, Mapping
from typing import Any, cast

from rollfleet.errors import JobEnded
from rollfleet.learner.admission import Admission
from rollfleet.learner.broadcast import Broadcaster
from rollfleet.learner.gathering import LOOK_AROUND_S, Gatherer
from rollfleet.learner.options import MANUAL, LearnerOptions
from rollfleet.learner.tally import Tally
from rollfleet.schemes import scheme_of
from rollfleet.transports.learner_side import Arrival, Ranked, Transport, rank_of
from rollfleet.weights.layout import State
from rollfleet_api.job import CollectorJob
from rollfleet_api.messages import Control, LearnerPhase, RankStatus

log = logging.getLogger(__name__)

WORD_AFTER_S = 10.0  # without rank 0, a word is due
PATIENCE_S = 60.0  # for another rank 0, where the one before had completed the job
ANY_LAG = 1 << 62

When = tuple[int, int]  # session and round


class FollowedWeights(Broadcaster):
    """The versions that rank 0 has sent, as its control messages tell. Nothing is sent from here."""

    def follow(self, control: Control | None) -> int:
        """The newest version, by what rank 0 said last."""
        if control is not None:
            self._for_all, self._for_some = control.version, dict(control.some)
            self.version = max(control.version, *self._for_some.values(), 0)
        return self.version

    def is_due(self, interval: int) -> bool:
        """Never: all ranks have the same weights, and rank 0 sends them."""
        return False

    def send(
        self,
        models: Mapping[str, State] | None = None,
        *,
        workers: Collection[int] | None = None,
        version: int = 0,
    ) -> int:
        """Sends nothing. Returns the newest version that rank 0 is known to have sent."""
        return self.follow(cast(Ranked, self._transport).heard())

    def pass_on(self, models: Mapping[str, State], version: int) -> int:
        """Loads them into the policy, where there is one; sends nothing."""
        if self._policy is not None:
            self._load(models)
        return self.send()

    def go_on_from(self, version: int) -> None:
        """Rank 0 numbers on."""


class Follower(Gatherer):
    """Gathers what the workers of one rank collect for the rounds that rank 0 opens.

    What comes tells which round it is for, and comes in its order from each worker: once there is something of every
    member, the earliest round among these is complete.
    """

    def __init__(
        self, transport: Transport, job: CollectorJob, weights: FollowedWeights, tally: Tally, *, manual: bool = False
    ) -> None:
        super().__init__(transport, job, weights, tally, manual=manual)
        self._followed, self._leader = weights, cast(Ranked, transport)
        self.admission = Admission(max_lag=0, session=0, sync=False)  # rounds are dealt with here
        self._bound_lag()
        self._ahead: dict[int, deque[Arrival]] = {}  # worker -> what has come, one of each round
        self._gathered = self._handed = self._has_enough_of = (0, 0)
        control = self._leader.heard()
        self._over_before = control.session if control and control.phase is LearnerPhase.COMPLETE else None
        self._alone_since_s: float | None = time.monotonic()
        self._told_s = 0.0

    def is_over(self) -> bool:
        """Whether rank 0 has completed the job, in the session that it has now."""
        control = self._leader.heard()
        return control is not None and control.phase is LearnerPhase.COMPLETE and control.session != self._over_before

    def hand_over(self, arrivals: list[Arrival]) -> None:
        """These are the learner's now."""
        self._handed = self._gathered
        super().hand_over(arrivals)

    def direct(self) -> None:
        """Rank 0 does."""

    def enter(self, phase: LearnerPhase) -> None:
        """Known here alone."""
        self.phase = phase

    def look_around(self) -> None:
        """See how the workers are, and whether there is a rank 0.

        Raises:
            WorkerFailed: One gave up for good.
            JobEnded: The job had been completed before, and no rank 0 comes.
        """
        super().look_around()
        control = self._leader.heard()
        if self._alone_since_s is None:
            return
        alone_s = time.monotonic() - self._alone_since_s
        if control is not None and control.session != self._over_before:
            self._alone_since_s = None
        elif control is not None and alone_s > PATIENCE_S:
            raise JobEnded(
                f"{self._job.key} was complete when {self._rank} connected, and for {PATIENCE_S:g} s no rank 0 has"
            )
        elif alone_s - self._told_s > WORD_AFTER_S:
            self._told_s = alone_s
            log.warning("%s of %s waits for rank 0, which has not begun", self._rank, self._job.key)

    def _round(self) -> list[Arrival]:
        silent = False
        while True:
            self._drop_what_an_earlier_session_asked_for()
            heads = {worker: _when(queue[0]) for worker, queue in self._ahead.items() if queue}
            missing = self._members() - heads.keys()
            self._tell_whether_enough(list(heads.values()))
            if heads and silent and self._is_closed(min(heads.values())):
                missing -= self._idle(missing)
            if heads and not missing:
                break
            if self.is_over():
                return []
            if arrival := self._next():
                self._line_up(arrival)
            silent = arrival is None
        self._gathered = min(heads.values())
        return [self._ahead[worker].popleft() for worker in sorted(heads) if heads[worker] == self._gathered]

    def _tell_whether_enough(self, heads: list[When]) -> None:
        """Rank 0 closes no round before every rank has shares of it."""
        first = min(heads, default=(0, 0))
        if first > self._has_enough_of and heads.count(first) >= self._enough(self._members()):
            self._has_enough_of = first
            self._report()

    def _is_closed(self, when: When) -> bool:
        control = self._leader.heard()
        return control is not None and when <= (control.session, control.closed)

    def _line_up(self, arrival: Arrival) -> None:
        queue = self._ahead.setdefault(arrival.worker, deque())
        if queue and _when(arrival) <= _when(queue[-1]):
            self.admission.repeated += 1  # collected again, by a worker that began anew
        elif _when(arrival) <= self._handed:
            self.admission.stale += 1
        else:
            queue.append(arrival)
            return
        self._transport.take(arrival)

    def _drop_what_an_earlier_session_asked_for(self) -> None:
        control = self._leader.heard()
        for queue in self._ahead.values():
            while queue and control is not None and queue[0].meta.session < control.session:
                self.admission.stale += 1
                self._transport.take(queue.popleft())

    def _next(self, timeout_s: float = LOOK_AROUND_S) -> Arrival | None:
        self._followed.follow(self._leader.heard())
        return super()._next(timeout_s)

    def _bound_lag(self) -> None:
        super()._bound_lag()
        if self._sync:
            self.admission.max_lag = ANY_LAG

    def _report(self) -> None:
        tally, session = self._tally, max(self._handed[0], self._has_enough_of[0])
        self._leader.report_rank(
            RankStatus(
                rank=self._rank.rank,
                ranks=self._rank.ranks,
                life="",  # the transport's
                session=session,
                round=self._handed[1] if self._handed[0] == session else 0,
                enough=self._has_enough_of[1] if self._has_enough_of[0] == session else 0,
                frames=tally.frames - tally.restored,
                batches=tally.batches,
                dropped=self._dropped(),
                restored=tally.restored,
            )
        )


def gatherer_over(
    transport: Transport, job: CollectorJob, policy: Any, tally: Tally, options: LearnerOptions, *, acts: bool
) -> tuple[Broadcaster, Gatherer]:
    """What sends weights and what gathers batches, for the rank that this transport is of.

    Args:
        transport: Where batches come from.
        job: The job.
        policy: What is sent when nothing else is named; None: nothing is.
        tally: What was handed out.
        options: The learner's.
        acts: `policy` is the very object that collects.
    """
    scheme, version = options.get("weight_scheme") or scheme_of(job.spec.weights), transport.resumed.version
    manual = options.get("acknowledge") == MANUAL
    if rank_of(transport).leads:
        weights = Broadcaster(transport, policy, scheme=scheme, version=version, acts=acts)
        return weights, Gatherer(transport, job, weights, tally, manual=manual)
    followed = FollowedWeights(transport, policy, scheme=scheme, version=version)
    return followed, Follower(transport, job, followed, tally, manual=manual)


def _when(arrival: Arrival) -> When:
    return arrival.meta.session, arrival.meta.round
