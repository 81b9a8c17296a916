"""Directs the workers and gathers their fragments: a round in mode Sync, the next batch in mode Async."""

import time
from collections import Counter
from collections.abc import Set
from dataclasses import replace

from rollfleet.errors import JobInvalid, NoWeights, Timeout, WorkerFailed
from rollfleet.learner.admission import Admission
from rollfleet.learner.broadcast import Broadcaster
from rollfleet.learner.rounds import Round, RoundShape
from rollfleet.learner.run_state import RunState
from rollfleet.learner.tally import Tally
from rollfleet.stats import Stats
from rollfleet.system.interrupts import interruptible
from rollfleet.transports.learner_side import Arrival, PeerTotals, Transport
from rollfleet_api.job import CollectorJob, Mode
from rollfleet_api.messages import Call, Control, LearnerPhase, LearnerStatus, WorkerState

CHECK_WORKERS_S = 1.0  # between two checks of the workers' states
ASK_PEERS_S = 0.02  # interval of checks whether a round may be closed
CTRL_C_S = 0.1  # until Ctrl-C ends a wait
IDLE = (WorkerState.STARTING, WorkerState.WAITING_FOR_LEARNER, WorkerState.PAUSED)


class Gatherer:
    """Gathers batches of a job's workers. In a learner of several ranks, this is rank 0.

    Rank 0 gathers the fragments of its own workers, and directs all workers. It closes a round once every present rank
    has enough fragments of it, and opens the next one once every present rank has received the last.

    After an exception, `gather` continues: it keeps the open round, the fragments that have come, and a gathered batch
    until `hand_over`.

    Args:
        transport: The learner's side of a transport.
        job: The job.
        weights: The versions of the weights.
        tally: The counters of the learner.
        manual: Whether the learner acknowledges batches itself.

    Attributes:
        run_state: Rounds and seeds.
        phase: The phase that workers are in.
        admission: Which arrivals reach the learner.
        shape: The shape of the batch gathered last; None: that of its arrivals.
    """

    def __init__(
        self, transport: Transport, job: CollectorJob, weights: Broadcaster, tally: Tally, *, manual: bool = False
    ) -> None:
        self._transport, self._job, self._weights, self._tally = transport, job, weights, tally
        self._manual = manual
        self._unacknowledged: list[Arrival] = []  # handed over
        self._sync = job.spec.mode is Mode.SYNC
        self._session, self._rank, self._peers = transport.resumed.session, transport.rank, transport.peers
        self._control: Control | None = None  # the last one sent
        self._call: Call | None = None
        self._checked_s, self._waited_s = time.monotonic(), 0.0
        self._waiting_since_s: float | None = None  # since when the learner waits for data; None: it does not
        self._steps, self._opened = 0, False  # T of the open round; whether this session has opened one
        self._round: Round | None = None  # the open one
        self._ready: list[Arrival] = []  # and not handed over
        self.shape: RoundShape | None = None
        self.run_state = RunState(round=transport.resumed.round)
        self.phase = LearnerPhase.RUN
        self.admission = Admission(max_lag=job.spec.weights_max_lag, session=self._session, sync=self._sync)
        self._bound_lag()

    @property
    def job(self) -> CollectorJob:
        """The job, with the edits since the learner connected."""
        return self._transport.job or self._job

    def gather(self) -> list[Arrival]:
        """Wait for the arrivals that make the next batch; return them in the order of their workers.

        Returns an empty list when the job is over meanwhile: other ranks have the last frames.

        Raises:
            JobInvalid: No batch can come: the learner has not acknowledged as many as workers may be ahead.
        """
        if not self._ready:
            self._check_unacknowledged()
            self._waiting_since_s = time.monotonic()
            try:
                self._ready = self._gather_round() if self._sync else self._gather_one()
            finally:
                self._waited_s, self._waiting_since_s = self._waited(), None
        return self._ready

    def end_round(self) -> None:
        """In mode Sync, wait until every rank has received the last round of this session."""
        if self._sync and self._opened and self._round is None:
            self._wait_for_peers()

    def is_over(self) -> bool:
        """Whether no batch is to come: the learner, with all its ranks, has `totalFrames`, or has completed the job."""
        return self.phase is LearnerPhase.COMPLETE or 0 < self.job.spec.collect.total_frames <= self._all_frames()

    def hand_over(self, arrivals: list[Arrival]) -> None:
        """Count these arrivals as the learner's, and acknowledge them unless it does so itself."""
        self._ready = []
        self._unacknowledged += arrivals
        self._tally.add(arrivals, newest=self._weights.version)
        if not self._manual:
            self.acknowledge()
        self.direct_async()
        self._report()

    def acknowledge(self) -> None:
        """Acknowledge all that was handed over."""
        arrivals, self._unacknowledged = self._unacknowledged, []
        for arrival in arrivals:
            self._transport.take(arrival)

    def direct(self) -> None:
        """Send the workers the present control message, if it differs from the last one."""
        run_state = self.run_state
        control = Control(
            session=self._session,
            phase=self.phase,
            round=run_state.round if self._sync else 0,
            version=self._weights.meant_for_all,
            some=self._weights.meant_for_some,
            # No worker collects for the last round of the session before.
            closed=(run_state.closed if self._opened else run_state.round) if self._sync else 0,
            random_actions=self._all_frames() < self.job.spec.collect.init_random_frames,
            seed=run_state.seed,
            static_seed=run_state.static_seed,
            seeding=run_state.seeding,
            origin=run_state.origin,
            resumed=self._transport.resumed.version,
            steps=self._steps,
            own_weights=not self._weights.has_policy,
            call=self._call,
        )
        if control != self._control:
            self._transport.control(control)
            self._control = control

    def direct_async(self) -> None:
        """Do the same in mode Async. In mode Sync the next round sends it anyway."""
        if not self._sync:
            self.direct()

    def enter(self, phase: LearnerPhase) -> None:
        """Put the workers into this phase."""
        self.phase = phase
        if self._control is None:
            self.direct()
        else:  # change nothing else: in mode Sync no round opens, and no newer version is required
            self._control = replace(self._control, phase=phase)
            self._transport.control(self._control)

    def call(self, call: Call | None) -> None:
        """Ask workers to answer a call; None: its answers are read. Change nothing else, as in `enter`.

        Raises:
            JobInvalid: Rank 0 directs the workers, and this is another one.
        """
        if self._control is None:
            self.direct()
        if self._control is None:
            raise JobInvalid("only rank 0 of a learner can call methods on workers; call it there")
        self._call = call
        self._control = replace(self._control, call=call)
        self._transport.control(self._control)

    def complete(self) -> None:
        """Complete the job: workers leave."""
        self._report()
        self.enter(LearnerPhase.COMPLETE)

    def check_workers(self) -> None:
        """Check the workers' states, report the learner's, and follow the number of members.

        Raises:
            WorkerFailed: A worker gave up with an error that a restart would repeat.
            NoWeights: Workers wait for weights, and nothing would ever send them.
        """
        self._checked_s = time.monotonic()
        self._bound_lag()
        self._report()
        for worker, status in self._transport.workers().items():
            self.admission.hear(status)
            if status.state is WorkerState.FAILED and status.fatal:
                raise WorkerFailed(worker, status.error or "no reason given")
            if status.state is WorkerState.WAITING_FOR_WEIGHTS and self._weights.version == 0 and self._rank.leads:
                raise NoWeights(
                    f"worker {worker} waits for weights, and none were sent: call update_policy_weights_() before "
                    f"iterating, or pass `policy=`"
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
            corrupt=self._transport.corrupt(),
            waited_s=self._waited(),
            waited_for_room_s=sum(worker.waited_for_room_s for worker in workers),
            waited_for_weights_s=sum(worker.waited_for_weights_s for worker in workers),
            completed=0 < self.job.spec.collect.total_frames <= self._all_frames(),
            workers=dict(sorted(statuses.items())),
        )

    def _behind(self, version: int) -> set[int]:
        """Return the members that this version was sent to, and that have an older one."""
        sent_to = {worker for worker in self._transport.members() if self._weights.meant_for(worker) >= version}
        return sent_to - {worker for worker, status in self._transport.workers().items() if status.version >= version}

    def _gather_round(self) -> list[Arrival]:
        run_state = self.run_state
        if self._round is None:
            self._waited_s, self._waiting_since_s = self._waited(), None  # do not count this as a wait for data
            self._wait_for_peers()
            self._waiting_since_s = time.monotonic()
            if self.is_over():
                return []
            self._round = self._open_round()
        if self._control is None or self._control.round != run_state.round:
            self.direct()
        round_, silent_s = self._round, 0.0
        # Without members, others may join. Workers of other ranks stop only when this rank closes the round.
        while round_.missing or not round_.fragments or self._must_close():
            closing = round_.has_enough and run_state.closed < run_state.round
            if closing and self._peers_have_enough():
                run_state.closed = run_state.round
                self.direct()
                continue
            timeout_s = ASK_PEERS_S if closing else CHECK_WORKERS_S
            if (arrival := self._next(timeout_s)) is not None:
                round_.add(arrival)
                silent_s = 0.0
            elif self.phase is LearnerPhase.COMPLETE:  # in another thread: workers leave
                return []
            elif (silent_s := silent_s + timeout_s) < CHECK_WORKERS_S:
                pass  # a fragment of a worker that left may still be on its way
            elif round_.fragments:
                missing = round_.missing
                round_.release(missing - self._members())
                if run_state.closed == run_state.round:
                    round_.release(self._idle(missing))
            else:
                round_.reopen(self._members())
        fragments, late = round_.result()
        for arrival in late:
            self.admission.stale += 1
            self._transport.take(arrival)
        self.shape = RoundShape.of(self.job.spec, round_.workers, self._steps)
        self._round = None
        return fragments

    def _open_round(self) -> Round:
        self.run_state.round, self._opened = self.run_state.round + 1, True
        self.admission.open_round(self.run_state.round)
        everyone, members = len(self._transport.members()), self._members()
        # A round has `framesPerBatch` frames, divided among its members. Without members, expect as many as last time.
        self._steps = self.job.spec.steps_among(everyone) if everyone else self._steps
        return Round(members, enough=self._enough(members))

    def _wait_for_peers(self) -> None:
        """Wait until every rank is present, and has received the last round of this session."""
        last = self.run_state.round if self._opened else None
        while self._peers and not self._peers.wait_for_round(last, timeout_s=CHECK_WORKERS_S):
            self.check_workers()
            with interruptible():
                pass

    def _must_close(self) -> bool:
        """Whether another rank waits for this one to close the open round."""
        stragglers = self.job.spec.stragglers.threshold < 1 and self._rank.ranks > 1
        return stragglers and self.run_state.closed < self.run_state.round

    def _peers_have_enough(self) -> bool:
        return self._peers is None or self._peers.may_close(self.run_state.round)

    def _enough(self, members: Set[int]) -> int:
        """Return the number of fragments that closes a round."""
        return max(1, int(len(members) * self.job.spec.stragglers.threshold))

    def _members(self) -> frozenset[int]:
        """Return the workers whose fragments come to this rank."""
        return frozenset(worker for worker in self._transport.members() if self._rank.has(worker))

    def _idle(self, workers: Set[int]) -> frozenset[int]:
        """Return the workers that had not begun when the round was closed: they wait for the next one."""
        statuses = self._transport.workers()
        return frozenset(each for each in workers if each not in statuses or statuses[each].state in IDLE)

    def _peer_totals(self) -> PeerTotals:
        return self._peers.totals() if self._peers else PeerTotals()

    def _all_frames(self) -> int:
        return self._tally.frames + self._peer_totals().frames

    def _check_unacknowledged(self) -> None:
        ahead = self.job.spec.delivery.max_batches_ahead
        by_worker = Counter(each.worker for each in self._unacknowledged)
        full = {worker for worker, batches in by_worker.items() if batches >= ahead}
        members = self._members()
        if full and (members & full if self._sync else members <= full):
            raise JobInvalid(
                f"no batch can come: {len(self._unacknowledged)} are not acknowledged, and a worker may be {ahead} "
                f"ahead (`delivery.maxBatchesAhead`): call ack() once you have stored them"
            )

    def _gather_one(self) -> list[Arrival]:
        if self._control is None:
            self.direct()
        while (arrival := self._next()) is None:
            if self.is_over():  # other ranks have the rest
                return []
        return [arrival]

    def _next(self, timeout_s: float = CHECK_WORKERS_S) -> Arrival | None:
        """Wait for an arrival that is admitted; None: none came in time."""
        left_s = timeout_s
        while True:
            if time.monotonic() - self._checked_s >= CHECK_WORKERS_S:
                self.check_workers()
            with interruptible():
                pass  # Ctrl-C is raised here, where no arrival can be lost
            wait_s = min(left_s, CTRL_C_S)
            if (arrival := self._transport.receive(timeout_s=wait_s)) is None:
                if (left_s := left_s - wait_s) <= 0 or self.phase is LearnerPhase.COMPLETE:
                    return None
                continue
            version = self._weights.meant_for(arrival.worker)
            self._weights.pass_over(arrival.meta.version)
            replaced = arrival.meta.session < self._session and self._weights.has_sent(arrival.meta.version)
            if self.admission.admit(arrival, version=version, replaced=replaced):
                return arrival
            self._transport.take(arrival)
            self._report()
            left_s = timeout_s

    def _bound_lag(self) -> None:
        self.admission.max_lag = self.job.spec.max_lag_among(max(1, len(self._transport.members())))

    def _dropped(self) -> int:
        """Return the number of batches that were collected, and not handed over by this rank."""
        return self.admission.dropped + self.admission.missed + self._transport.corrupt()

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
                time_s=0.0,  # the transport sets it
            )
        )
