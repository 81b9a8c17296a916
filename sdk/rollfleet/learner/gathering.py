"""Gathers the fragments of workers: a round in mode Sync, the next batch in mode Async."""

import logging
import time
from collections import Counter
from collections.abc import Collection, Set
from itertools import chain

from rollfleet.errors import JobInvalid, MessageCorrupt, NoWeights, WorkerFailed
from rollfleet.learner.admission import Admission, Round
from rollfleet.learner.broadcast import Broadcaster
from rollfleet.learner.directing import Director
from rollfleet.learner.tally import Tally
from rollfleet.stats import Stats
from rollfleet.system.interrupts import interruptible, uninterrupted
from rollfleet.transports.learner_side import Arrival, Transport
from rollfleet_api.job import CollectorJob, Mode
from rollfleet_api.messages import LearnerPhase, LearnerStatus, WorkerState
from rollfleet_api.ranks import ALONE

log = logging.getLogger(__name__)

CHECK_WORKERS_S = 1.0  # between two checks of the workers' states
CTRL_C_S = 0.1  # until Ctrl-C ends a wait
TOLD_S = 30.0  # without a batch, until a warning says why; then twice as long
OWN_WEIGHTS = "; if workers are to act with the weights of `policy.entrypoint`, give the job `weights.interval: 0`"
IDLE = (WorkerState.STARTING, WorkerState.WAITING_FOR_LEARNER, WorkerState.PAUSED)


class Gatherer:
    """Gathers batches of a job's workers. In a learner of several ranks, each gathers those of its own workers.

    Rank 0 directs all workers. Each other rank gathers the rounds that rank 0 opens, which its workers' batches name.
    Only a learner of one process closes a round before all workers have sent.

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
        self._unacknowledged: list[list[Arrival]] = []  # the batches handed over: a successor gets them again
        self._sync = job.spec.mode is Mode.SYNC
        self._session, self._rank = transport.resumed.session, transport.rank
        self.director = Director(transport, job, weights, self._all_frames)
        self._checked_s, self._waited_s = time.monotonic(), 0.0
        self._waiting_since_s: float | None = None  # since when the learner waits for data; None: it does not
        self._tell_after_s = TOLD_S
        self._round: Round | None = None  # the open one
        self._last, self._over_before = (0, 0), 0  # on other ranks: the last round, and a session that is over
        if control := transport.leader_control:
            complete = control.phase is LearnerPhase.COMPLETE
            self._last = (control.session, control.round if complete else control.round - 1)
            self._over_before = control.session if complete else 0
        self._corrupt: Counter[int] = Counter()  # what could not be read before it, by worker
        self._handed_over = False  # whether `under_way` was
        self.under_way: list[Arrival] = []
        self.interrupted = 0
        self.workers: tuple[int, ...] = ()
        self._calls: dict[str, None] = {}  # methods called on workers
        self._called: set[tuple[int, int]] = set()  # workers at the last call, and their incarnations
        self.admission = Admission(max_lag=job.spec.weights_max_lag)
        self._everyone = self._own = frozenset[int]()  # the members, and those whose fragments come to this rank
        self._bound_lag()
        if self._rank.leads:
            transport.report(self.status)

    def gather(self) -> list[Arrival]:
        """Wait for the arrivals that make the next batch; return them in the order of their workers.

        Returns an empty list when the job is over meanwhile.

        Raises:
            JobInvalid: No batch can come: the learner has not acknowledged as many as workers may be ahead.
        """
        self._check_unacknowledged()
        self._waiting_since_s, self._tell_after_s = time.monotonic(), TOLD_S
        try:
            self.under_way, self._handed_over = self._gather_round() if self._sync else self._gather_one(), False
        finally:
            self._waited_s, self._waiting_since_s = self._waited(), None
        return self.under_way

    def is_over(self) -> bool:
        """Whether no batch is to come: rank 0 counts `totalFrames`, or the job is complete."""
        return self.director.phase is LearnerPhase.COMPLETE or (self._rank.leads and self._has_total_frames())

    def hand_over(self, *, stored: bool) -> None:
        """Count what was gathered as the learner's, and acknowledge it unless the learner does so itself.

        Args:
            stored: Whether it is in the replay buffer already, and cannot be lost any more.
        """
        arrivals = self.under_way
        self._tally.add(arrivals, newest=self._weights.version, time_s=time.time())
        self._unacknowledged.append(arrivals)
        self._handed_over = True
        if stored:
            self.under_way = []
        if not self._manual:
            self.acknowledge()
        self.director.direct_async()

    def drop(self) -> None:
        """Drop and count what an exception has interrupted. Environments begin new episodes."""
        with uninterrupted():
            round_, arrivals = self._round, self.under_way
            self._round, self.under_way = None, []
            if self._handed_over and arrivals:
                self._tally.take_back()
                self._unacknowledged = [batch for batch in self._unacknowledged if batch is not arrivals]
            if round_ is not None:
                arrivals = [*arrivals, *round_.fragments.values()]
            self.interrupted += len(arrivals)
            self.director.run_state.interrupts += round_ is not None or len(arrivals) > 0
            for arrival in arrivals:
                self._transport.take(arrival)

    def acknowledge(self) -> None:
        """Acknowledge all that was handed over."""
        batches, self._unacknowledged = self._unacknowledged, []
        for arrival in chain.from_iterable(batches):
            self._transport.take(arrival)

    def complete(self) -> None:
        """Complete the job: workers leave."""
        self.director.enter(LearnerPhase.COMPLETE)

    def check_workers(self) -> None:
        """Check the workers' states, and follow the number of members.

        Raises:
            WorkerFailed: A worker gave up with an error that a restart would repeat.
            NoWeights: Workers wait for weights, and nothing would ever send them.
        """
        self._checked_s = time.monotonic()
        self._follow_leader()
        self._bound_lag()
        self._tell()
        for worker, status in self._transport.workers().items():
            self.admission.hear(status)
            if self._calls and (worker, status.incarnation) not in self._called:
                self._called.add((worker, status.incarnation))
                log.warning(
                    "worker %d (incarnation %d) joined after collector.call: repeat %s on it if that changed "
                    "environments or policies",
                    *(worker, status.incarnation, ", ".join(map(repr, self._calls))),
                )
            if status.state is WorkerState.FAILED and status.fatal:
                raise WorkerFailed(worker, status.error or "no reason given")
            if status.state is WorkerState.WAITING_FOR_WEIGHTS and self._rank.leads:
                self._send_to(worker)

    def _tell(self) -> None:
        """Warn, ever more rarely, while this learner waits and no worker collects."""
        if self._waiting_since_s is None or (waited_s := self._checked_s - self._waiting_since_s) < self._tell_after_s:
            return
        self._tell_after_s *= 2
        known = self._transport.workers()  # the last words of a silent worker may be that it collects
        present = (known[worker].state for worker in self._transport.members() & known.keys())
        states = Counter(str(state) for state in present if not state.ended)
        if WorkerState.COLLECTING not in states:
            found = ", ".join(f"{count} {state}" for state, count in states.items()) or "none is there"
            more = f"; `rollfleet describe {job.key}` says more" if (job := self._transport.job) else ""
            log.warning("no batch for %.0f s, and no worker collects: %s%s", waited_s, found, more)

    def _send_to(self, worker: int) -> None:
        """Send the policy to a worker that waits for weights that only an earlier learner had."""
        weights, spec = self._weights, self.director.job.spec
        if weights.is_due(spec.weights.interval) or weights.has_sent(worker):
            return
        if weights.has_policy:
            weights.send()
            self.director.direct()
        elif self._sync or not weights.target(worker):  # else other workers' batches come
            raise NoWeights(
                f"worker {worker} waits for weights, and none were sent: call update_policy_weights_() before "
                f"iterating, or pass `policy=`" + OWN_WEIGHTS * bool(spec.policy.entrypoint)
            )

    def note_call(self, method: str) -> None:
        """Note that a method was called on workers: `check_workers` warns of those that join later."""
        self._calls[method] = None
        self._called = {(worker, status.incarnation) for worker, status in self._transport.workers().items()}

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
            non_finite=self._tally.non_finite + self._weights.non_finite,
            failed_episodes=self._tally.failed_episodes,
            episode_statistics=self._tally.statistics,
            waited_s=self._waited(),
            waited_for_space_s=sum(worker.waited_for_space_s for worker in workers),
            waited_for_weights_s=sum(worker.waited_for_weights_s for worker in workers),
            waited_for_environments_s=sum(worker.waited_for_environments_s for worker in workers),
            completed=self._has_total_frames(),
            workers=dict(sorted(statuses.items())),
        )

    def _gather_round(self) -> list[Arrival]:
        director, run_state = self.director, self.director.run_state
        self._round = round_ = self._open_round()
        director.direct()
        while round_.missing or not round_.fragments:  # without members, others may join
            if round_.has_enough and run_state.closed < run_state.round:
                director.close_round()
            if (arrival := self._next()) is not None:
                round_.add(arrival)
            elif director.phase is LearnerPhase.COMPLETE:  # by rank 0, or in another thread: workers leave
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
        session, last = (self._session, director.run_state.round) if self._rank.leads else self._last
        self._last, director.run_state.round = (session, last + 1), last + 1
        self._corrupt = Counter(self._transport.corrupt())
        everyone, members = len(self._transport.members()), self._members()
        # A round has `framesPerBatch` frames, divided among its members. Without members, expect as many as last time.
        director.steps = spec.steps_among(everyone) if everyone else director.steps
        threshold = spec.stragglers.threshold if self._rank == ALONE else 1.0
        return Round(of=self._last, members=members, threshold=threshold)

    def _follow_leader(self) -> None:
        """On a rank other than 0, follow rank 0's newest control."""
        control = self._transport.leader_control
        if control is None or control.session == self._over_before:
            return
        self._weights.follow()
        self._follow_round((control.session, control.round))
        if control.phase is LearnerPhase.COMPLETE:
            self.director.phase = LearnerPhase.COMPLETE

    def _follow_round(self, named: tuple[int, int]) -> None:
        """On a rank other than 0, gather the named session and round if it is later than the open one."""
        if self._round is None or self._rank.leads or named <= self._last:
            return
        self._last, self.director.run_state.round = named, named[1]
        for arrival in self._round.move_to(named, self._members()):
            self.admission.stale += 1
            self._transport.take(arrival)

    def _members(self) -> frozenset[int]:
        """Return the workers whose fragments come to this rank."""
        if (everyone := self._transport.members()) is not self._everyone:
            self._everyone, self._own = everyone, frozenset(filter(self._rank.has, everyone))
        return self._own

    def _unreadable(self, came: Collection[int] = ()) -> frozenset[int]:
        """Return the workers whose batch for this round could not be read. If they are all, that is an error."""
        corrupt, members = Counter(self._transport.corrupt()), self._members()
        found = members & (corrupt - self._corrupt).keys()
        if found and found == members and not came:
            self._corrupt = corrupt
            raise MessageCorrupt("no batch of any worker could be read; the log has the reason")
        return found

    def _idle(self, workers: Set[int]) -> frozenset[int]:
        """Return the workers that had not begun when the round was closed: they wait for the next one."""
        statuses = self._transport.workers()
        return frozenset(each for each in workers if each not in statuses or statuses[each].state in IDLE)

    def _all_frames(self, *, acknowledged: bool = False) -> int:
        """Estimate the frames of all ranks: this rank has the share of its workers.

        `acknowledged`: Without those that a successor would get again.
        """
        again = [*self._unacknowledged] if acknowledged else []
        frames = self._tally.frames - sum(each.meta.frames for each in chain.from_iterable(again))
        workers = self.director.job.spec.workers
        return max(0, frames) * workers // max(1, self._rank.share_of(workers))  # a restored run has fewer

    def _has_total_frames(self) -> bool:
        return 0 < self.director.job.spec.collect.total_frames <= self._all_frames()

    def _check_unacknowledged(self) -> None:
        ahead = self.director.job.spec.delivery.max_batches_ahead
        members = self._members()
        if len(self._unacknowledged) < ahead * (1 if self._sync else len(members)):
            return  # a look at each of them would take longer with more workers
        by_worker = Counter(each.worker for each in chain.from_iterable(self._unacknowledged))
        full = {worker for worker, batches in by_worker.items() if batches >= ahead}
        if members and (members & full if self._sync else members <= full):
            raise JobInvalid(
                f"no batch can come: {len(self._unacknowledged)} are not acknowledged, and a worker may be {ahead} "
                f"ahead (`delivery.maxBatchesAhead`): call ack() once you have stored them"
            )

    def _gather_one(self) -> list[Arrival]:
        self.director.direct()
        self._corrupt = Counter(self._transport.corrupt())
        while (arrival := self._next()) is None:
            if self.is_over():
                return []
            self._unreadable()
        return [arrival]

    def _next(self) -> Arrival | None:
        """Wait for an arrival that is admitted; None: none came for a second."""
        left_s = CHECK_WORKERS_S
        while True:
            if time.monotonic() - self._checked_s >= CHECK_WORKERS_S:
                self.check_workers()
            self._follow_leader()
            with interruptible():
                pass  # Ctrl-C is raised here, where no arrival can be lost
            wait_s = min(left_s, CTRL_C_S)
            if (arrival := self._transport.receive(timeout_s=wait_s)) is None:
                if (left_s := left_s - wait_s) <= 0 or self.director.phase is LearnerPhase.COMPLETE:
                    return None
                continue
            self._follow_round((arrival.meta.session, arrival.meta.round))  # control may come later
            if self.admission.admit(
                arrival, lag=self._weights.lag(arrival.worker, arrival.meta.version), to=self._round
            ):
                return arrival
            self._transport.take(arrival)
            left_s = CHECK_WORKERS_S

    def _bound_lag(self) -> None:
        self.admission.max_lag = self.director.job.spec.max_lag_among(max(1, len(self._transport.members())))

    def _dropped(self) -> int:
        """Return the number of batches that were collected, and not handed over."""
        corrupt = sum(self._transport.corrupt().values())
        return self.admission.dropped + self.admission.missed + self.interrupted + corrupt

    def _waited(self) -> float:
        since_s = self._waiting_since_s
        return self._waited_s + (0.0 if since_s is None else time.monotonic() - since_s)

    def status(self) -> LearnerStatus:
        """Return the content of the learner's heartbeat. On any thread."""
        tally, statuses = self._tally, self._transport.workers()
        applied = [statuses[worker].version for worker in self._transport.members() & statuses.keys()]
        return LearnerStatus(
            session=self._session,
            phase=self.director.phase,
            version=self._weights.version,
            applied_version=min(applied, default=0),
            frames=self._all_frames(acknowledged=True),
            batches=max(0, tally.batches - len(self._unacknowledged)),
            dropped=self._dropped(),
            mean_return=tally.mean_return,
            episode_statistics=tally.statistics,
            lag=tally.lag,
            episodes=tally.episodes,
            non_finite=tally.non_finite + self._weights.non_finite,
            failed_episodes=dict(tally.failed_episodes),
            env_version=self.director.run_state.env_version,
            waited_s=self._waited(),
        )
