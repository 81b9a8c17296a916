"""Gathers the fragments of workers: a round in mode Sync, the next batch in mode Async."""

import time
from collections import Counter
from collections.abc import Collection, Set

from rollfleet.errors import JobInvalid, MessageCorrupt, NoWeights, Timeout, WorkerFailed
from rollfleet.learner.admission import Admission, Round
from rollfleet.learner.broadcast import Broadcaster
from rollfleet.learner.directing import Director
from rollfleet.learner.tally import Tally
from rollfleet.stats import Stats
from rollfleet.system.interrupts import interruptible, uninterrupted
from rollfleet.transports.learner_side import Arrival, PeerTotals, Transport
from rollfleet_api.job import CollectorJob, Mode
from rollfleet_api.messages import LearnerPhase, LearnerStatus, WorkerState
from rollfleet_api.versions import count_of

CHECK_WORKERS_S = 1.0  # between two checks of the workers' states
CTRL_C_S = 0.1  # until Ctrl-C ends a wait
OWN_WEIGHTS = "; if workers are to act with the weights of `policy.entrypoint`, give the job `weights.interval: 0`"
IDLE = (WorkerState.STARTING, WorkerState.WAITING_FOR_LEARNER, WorkerState.PAUSED)


class Gatherer:
    """Gathers batches of a job's workers. In a learner of several ranks, this is rank 0.

    Rank 0 gathers the fragments of its own workers, and directs all workers. It opens a round once every present rank
    has received the last. Only a learner of one process closes a round before all workers have sent.

    After an exception, `drop` drops the open round, or the batch that was gathered and not yielded, and counts it. The
    next one has new episodes.

    Args:
        transport: The learner's side of a transport.
        weights: The versions of the weights.
        tally: The counters of the learner.
        manual: Whether the learner acknowledges batches itself.

    Attributes:
        director: Directs the workers.
        admission: Which arrivals reach the learner.
        workers: The workers of the round gathered last, in order, also those without an arrival; empty: no round.
        under_way: Arrivals that were gathered and not yielded.
        interrupted: Batches dropped because an exception ended their iteration.
    """

    def __init__(
        self, transport: Transport, job: CollectorJob, weights: Broadcaster, tally: Tally, *, manual: bool = False
    ) -> None:
        self._transport, self._weights, self._tally = transport, weights, tally
        self._manual = manual
        self._unacknowledged: list[Arrival] = []  # handed over
        self._sync = job.spec.mode is Mode.SYNC
        self._session, self._rank, self._peers = transport.resumed.session, transport.rank, transport.peers
        self.director = Director(transport, job, weights, self._all_frames)
        self._checked_s, self._waited_s = time.monotonic(), 0.0
        self._waiting_since_s: float | None = None  # since when the learner waits for data; None: it does not
        self._round: Round | None = None  # the open one
        self._corrupt: Counter[int] = Counter()  # what could not be read before it, by worker
        self._handed_over = False  # whether `under_way` was
        self.under_way: list[Arrival] = []
        self.interrupted = 0
        self.workers: tuple[int, ...] = ()
        self.admission = Admission(max_lag=job.spec.weights_max_lag)
        self._bound_lag()

    def gather(self) -> list[Arrival]:
        """Wait for the arrivals that make the next batch; return them in the order of their workers.

        Returns an empty list when the job is over meanwhile: other ranks have the last frames.

        Raises:
            JobInvalid: No batch can come: the learner has not acknowledged as many as workers may be ahead.
        """
        self._check_unacknowledged()
        self._waiting_since_s = time.monotonic()
        try:
            self.under_way, self._handed_over = self._gather_round() if self._sync else self._gather_one(), False
        finally:
            self._waited_s, self._waiting_since_s = self._waited(), None
        return self.under_way

    def end_round(self) -> None:
        """In mode Sync, wait until every rank has received the last round of this session."""
        if self._sync and self.director.has_opened and self._round is None:
            self._wait_for_peers()

    def is_over(self) -> bool:
        """Whether no batch is to come: the learner, with all its ranks, has `totalFrames`, or has completed the job."""
        return self.director.phase is LearnerPhase.COMPLETE or self._has_total_frames()

    def hand_over(self, *, stored: bool) -> None:
        """Count what was gathered as the learner's, and acknowledge it unless the learner does so itself.

        Args:
            stored: Whether it is in the replay buffer already, and cannot be lost any more.
        """
        arrivals = self.under_way
        self._unacknowledged += arrivals
        self._tally.add(arrivals, newest=self._weights.version)
        self._handed_over = True
        if stored:
            self.under_way = []
        if not self._manual:
            self.acknowledge()
        self.director.direct_async()
        self._report()

    def drop(self) -> None:
        """Drop and count what an exception has interrupted. Environments begin new episodes."""
        with uninterrupted():
            round_, arrivals = self._round, self.under_way
            self._round, self.under_way = None, []
            if self._handed_over:
                self._tally.take_back(arrivals)
                self._unacknowledged = [each for each in self._unacknowledged if each not in arrivals]
            if round_ is not None:
                arrivals = [*arrivals, *round_.fragments.values()]
            self.interrupted += len(arrivals)
            self.director.run_state.interrupts += round_ is not None or len(arrivals) > 0
            for arrival in arrivals:
                self._transport.take(arrival)

    def acknowledge(self) -> None:
        """Acknowledge all that was handed over."""
        arrivals, self._unacknowledged = self._unacknowledged, []
        for arrival in arrivals:
            self._transport.take(arrival)

    def complete(self) -> None:
        """Complete the job: workers leave."""
        self._report()
        self.director.enter(LearnerPhase.COMPLETE)

    def check_workers(self) -> None:
        """Check the workers' states, report the learner's, and follow the number of members.

        Raises:
            WorkerFailed: A worker gave up with an error that a restart would repeat.
            NoWeights: Workers wait for weights, and nothing would ever send them.
        """
        self._checked_s = time.monotonic()
        self._weights.follow()
        self._bound_lag()
        self._report()
        for worker, status in self._transport.workers().items():
            self.admission.hear(status)
            if status.state is WorkerState.FAILED and status.fatal:
                raise WorkerFailed(worker, status.error or "no reason given")
            waits = status.state is WorkerState.WAITING_FOR_WEIGHTS and not self._weights.target(worker)
            if waits and self._rank.leads and not self._weights.is_due(self.director.job.spec.weights.interval):
                raise NoWeights(
                    f"worker {worker} waits for weights, and none were sent: call update_policy_weights_() before "
                    f"iterating, or pass `policy=`" + OWN_WEIGHTS * bool(self.director.job.spec.policy.entrypoint)
                )

    def wait_for_version(self, version: int, timeout_s: float) -> None:
        """Wait until every member that this version was sent to has applied it, or a newer one.

        Raises:
            Timeout: Workers are still behind, and the message names them; or this version was not sent.
        """
        until = time.monotonic() + timeout_s
        while version > self._weights.version or self._behind(version):
            if time.monotonic() >= until:
                raise Timeout(
                    f"workers {sorted(self._behind(version))} have not applied version {version} within {timeout_s:g} s"
                    if version <= self._weights.version
                    else f"version {version} was not sent within {timeout_s:g} s; the newest is {self._weights.version}"
                )
            self.check_workers()
            with interruptible():
                time.sleep(0.01)

    def stats(self) -> Stats:
        """Return counters since this learner connected."""
        statuses = self._transport.workers()
        workers = statuses.values()
        return Stats(
            frames=self._tally.frames,
            batches=self._tally.batches,
            bytes=self._tally.nbytes,
            repeated=self.admission.repeated,
            missed=self.admission.missed,
            stale=self.admission.stale,
            interrupted=self.interrupted,
            corrupt=sum(self._transport.corrupt().values()),
            waited_s=self._waited(),
            waited_for_space_s=sum(worker.waited_for_space_s for worker in workers),
            waited_for_weights_s=sum(worker.waited_for_weights_s for worker in workers),
            completed=self._has_total_frames(),
            workers=dict(sorted(statuses.items())),
        )

    def _behind(self, version: int) -> set[int]:
        """Return the members that this version was sent to, and that have an older one."""
        sent_to = {each for each in self._transport.members() if count_of(self._weights.target(each)) >= version}
        return sent_to - {worker for worker, status in self._transport.workers().items() if status.version >= version}

    def _gather_round(self) -> list[Arrival]:
        director, run_state = self.director, self.director.run_state
        self._waited_s, self._waiting_since_s = self._waited(), None  # do not count this as a wait for data
        self._wait_for_peers()
        self._waiting_since_s = time.monotonic()
        if self.is_over():
            return []
        self._round = round_ = self._open_round()
        director.direct()
        while round_.missing or not round_.fragments:  # without members, others may join
            if round_.has_enough and run_state.closed < run_state.round:
                run_state.closed = run_state.round
                director.direct()
            if (arrival := self._next()) is not None:
                round_.add(arrival)
            elif director.phase is LearnerPhase.COMPLETE:  # in another thread: workers leave
                return []
            elif round_.fragments:
                missing = round_.missing
                round_.release((missing - self._members()) | self._unreadable(round_.fragments))
                if run_state.closed == run_state.round:
                    round_.release(self._idle(missing))
            elif not self._unreadable():
                round_.reopen(self._members())
        fragments, late = round_.result()
        for arrival in late:
            self.admission.stale += 1
            self._transport.take(arrival)
        self.workers, self._round = round_.workers, None
        return fragments

    def _open_round(self) -> Round:
        director, spec = self.director, self.director.job.spec
        director.run_state.round, director.has_opened = director.run_state.round + 1, True
        self._corrupt = Counter(self._transport.corrupt())
        everyone, members = len(self._transport.members()), self._members()
        # A round has `framesPerBatch` frames, divided among its members. Without members, expect as many as last time.
        director.steps = spec.steps_among(everyone) if everyone else director.steps
        threshold = 1.0 if self._peers else spec.stragglers.threshold
        enough = max(1, int(len(members) * threshold))
        return Round(session=self._session, number=director.run_state.round, members=members, enough=enough)

    def _wait_for_peers(self) -> None:
        """Wait until every rank is present, and has received the last round of this session."""
        last = self.director.run_state.round if self.director.has_opened else None
        while self._peers and not self._peers.wait_for_round(self._session, last, timeout_s=CHECK_WORKERS_S):
            self.check_workers()
            with interruptible():
                pass

    def _members(self) -> frozenset[int]:
        """Return the workers whose fragments come to this rank."""
        return frozenset(worker for worker in self._transport.members() if self._rank.has(worker))

    def _unreadable(self, came: Collection[int] = ()) -> frozenset[int]:
        """Return the workers whose batch for this round could not be read. If they are all, that is an error."""
        corrupt, members = Counter(self._transport.corrupt()), self._members()
        found = members & (corrupt - self._corrupt).keys()
        if found and found == members and not came:
            self._corrupt = corrupt
            raise MessageCorrupt("no worker's batch for this round could be read; the log has the reason for each")
        return found

    def _idle(self, workers: Set[int]) -> frozenset[int]:
        """Return the workers that had not begun when the round was closed: they wait for the next one."""
        statuses = self._transport.workers()
        return frozenset(each for each in workers if each not in statuses or statuses[each].state in IDLE)

    def _peer_totals(self) -> PeerTotals:
        return self._peers.totals() if self._peers else PeerTotals()

    def _all_frames(self) -> int:
        return self._tally.frames + self._peer_totals().frames

    def _has_total_frames(self) -> bool:
        return 0 < self.director.job.spec.collect.total_frames <= self._all_frames()

    def _check_unacknowledged(self) -> None:
        ahead = self.director.job.spec.delivery.max_batches_ahead
        by_worker = Counter(each.worker for each in self._unacknowledged)
        full = {worker for worker, batches in by_worker.items() if batches >= ahead}
        members = self._members()
        if members and (members & full if self._sync else members <= full):
            raise JobInvalid(
                f"no batch can come: {len(self._unacknowledged)} are not acknowledged, and a worker may be {ahead} "
                f"ahead (`delivery.maxBatchesAhead`): call ack() once you have stored them"
            )

    def _gather_one(self) -> list[Arrival]:
        self.director.direct()
        while (arrival := self._next()) is None:
            if self.is_over():  # other ranks have the rest
                return []
        return [arrival]

    def _next(self) -> Arrival | None:
        """Wait for an arrival that is admitted; None: none came for a second."""
        left_s = CHECK_WORKERS_S
        while True:
            if time.monotonic() - self._checked_s >= CHECK_WORKERS_S:
                self.check_workers()
            self._weights.follow()
            with interruptible():
                pass  # Ctrl-C is raised here, where no arrival can be lost
            wait_s = min(left_s, CTRL_C_S)
            if (arrival := self._transport.receive(timeout_s=wait_s)) is None:
                if (left_s := left_s - wait_s) <= 0 or self.director.phase is LearnerPhase.COMPLETE:
                    return None
                continue
            target, replaced = self._weights.target(arrival.worker), self._weights.has_replaced(arrival.meta.version)
            if self.admission.admit(arrival, version=target, replaced=replaced, to=self._round):
                return arrival
            self._transport.take(arrival)
            self._report()
            left_s = CHECK_WORKERS_S

    def _bound_lag(self) -> None:
        self.admission.max_lag = self.director.job.spec.max_lag_among(max(1, len(self._transport.members())))

    def _dropped(self) -> int:
        """Return the number of batches that were collected, and not handed over by this rank."""
        corrupt = sum(self._transport.corrupt().values())
        return self.admission.dropped + self.admission.missed + self.interrupted + corrupt

    def _waited(self) -> float:
        since_s = self._waiting_since_s
        return self._waited_s + (0.0 if since_s is None else time.monotonic() - since_s)

    def _report(self) -> None:
        tally, peers = self._tally, self._peer_totals()
        members, statuses = self._transport.members(), self._transport.workers()
        applied = [status.version for worker, status in statuses.items() if worker in members]
        self._transport.report(
            LearnerStatus(
                session=self._session,
                version=self._weights.version,
                applied_version=min(applied, default=0),
                frames=tally.frames + peers.frames,
                batches=tally.batches + peers.batches,
                dropped=self._dropped() + peers.dropped,
                mean_return=tally.mean_return,
                lag=tally.lag,
                episodes=tally.episodes,
                waited_s=self._waited(),
            )
        )
