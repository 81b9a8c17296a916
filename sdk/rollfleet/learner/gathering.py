"""Tells workers what to do, and gathers what they send: a round in mode Sync, whoever is first in mode Async."""

import time
from collections import Counter
from collections.abc import Mapping, Set
from dataclasses import dataclass, replace
from typing import Any

from rollfleet.errors import JobInvalid, NoWeights, Timeout, WorkerFailed
from rollfleet.learner.admission import Admission
from rollfleet.learner.broadcast import Broadcaster
from rollfleet.learner.tally import Tally
from rollfleet.stats import Stats
from rollfleet.transports.learner_side import Arrival, Elsewhere, Ranked, Transport, rank_of
from rollfleet_api.job import CollectorJob, Mode
from rollfleet_api.messages import Control, LearnerPhase, LearnerStatus, WorkerState

LOOK_AROUND_S = 1.0  # how often the workers are looked at
ASK_OTHERS_S = 0.02  # how often, whether a round may be closed
IDLE = (WorkerState.STARTING, WorkerState.WAITING_FOR_LEARNER, WorkerState.PAUSED)


@dataclass(slots=True, kw_only=True)
class RunState:
    """Where a run stands.

    Attributes:
        round: The last round that was opened.
        closed: The last round that was closed before all had reported.
        seed: What the learner's `set_seed` said last; None: nothing.
        seeding: How often it was called.
        origin: Added to the workers' incarnations, where a run was restored.
    """

    round: int = 0
    closed: int = 0
    seed: int | None = None
    seeding: int = 0
    origin: int = 0

    def set_seed(self, seed: int) -> None:
        """Workers begin anew with this seed, also where it is the one before.

        Raises:
            JobInvalid: It is below 0.
        """
        if seed < 0:
            raise JobInvalid(f"a seed is 0 or more, not {seed}")
        self.seed, self.seeding = seed, self.seeding + 1

    def state_dict(self, lives: int) -> dict[str, Any]:
        """For a run that goes on elsewhere, after workers that began so many times."""
        return {
            "round": self.round,
            "seed": self.seed,
            "seeding": self.seeding,
            "origin": self.origin + lives,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        self.round = max(self.round, state["round"])
        self.seed, self.seeding, self.origin = state["seed"], state["seeding"], state["origin"]


class Gatherer:
    """Gathers batches of a job's workers.

    A round waits for the workers that were members when it opened, less those that leave while it is open, or had not
    begun when it was closed. Where a learner has several ranks, this is rank 0: it gathers the shares of its own
    workers and tells all workers what to do. It closes no round before every other rank that is there has enough shares
    of it, and opens none before each has been handed the one before.

    Args:
        transport: Where they come from.
        job: The job.
        weights: What was sent.
        tally: What was handed out.
        manual: Whether the learner says itself when it has what it was handed.
    """

    def __init__(
        self, transport: Transport, job: CollectorJob, weights: Broadcaster, tally: Tally, *, manual: bool = False
    ) -> None:
        self._transport, self._job, self._weights, self._tally = transport, job, weights, tally
        self._manual = manual
        self._held: list[Arrival] = []  # handed over, and not acknowledged
        self._sync = job.spec.mode is Mode.SYNC
        self._session, self._rank = transport.resumed.session, rank_of(transport)
        self._ranked: Ranked | None = transport if isinstance(transport, Ranked) else None
        self._controlled: Control | None = None
        self._looked_s = time.monotonic()
        self._asked_s: float | None = None  # since when the learner waits for data; None: it does not
        self._waited_s = 0.0
        self._quota = tally.quota
        self._steps = 0  # T of the round that is open
        self._opened = False  # a round, in this session
        self.run_state = RunState(round=transport.resumed.round)
        self.phase = LearnerPhase.RUN
        self.admission = Admission(max_lag=job.spec.weights_max_lag, session=self._session, sync=self._sync)
        self._bound_lag()

    def gather(self) -> list[Arrival]:
        """The arrivals that make the next batch, in the order of their workers.

        None at all where workers fill the replay buffer themselves: it has all that was asked for.

        Raises:
            JobInvalid: None can come: the learner has acknowledged nothing of what the workers had room for.
        """
        self._check_held()
        self._asked_s = time.monotonic()
        try:
            return self._round() if self._sync else self._fresh()
        finally:
            self._waited_s, self._asked_s = self._waited(), None

    def is_over(self) -> bool:
        """Whether all frames that were asked for have been handed out, here or to other ranks."""
        return 0 < self._job.spec.collect.total_frames <= self._all_frames()

    def hand_over(self, arrivals: list[Arrival]) -> None:
        """These are the learner's now."""
        self._held += arrivals
        if not self._manual:
            self.acknowledge()
        self._tally.add(arrivals, newest=self._weights.version)
        self.direct_async()
        self._report()

    def acknowledge(self) -> None:
        """All that was handed over need not come again."""
        held, self._held = self._held, []
        for arrival in held:
            self._transport.take(arrival)

    def direct(self) -> None:
        """Tell the workers what holds now, if it is not what they were told last."""
        run_state = self.run_state
        control = Control(
            session=self._session,
            phase=self.phase,
            round=run_state.round if self._sync else 0,
            version=self._weights.meant_for_all,
            some=self._weights.meant_for_some,
            closed=run_state.closed if self._sync else 0,
            random_actions=self._all_frames() < self._job.spec.collect.init_random_frames,
            seed=run_state.seed,
            seeding=run_state.seeding,
            origin=run_state.origin,
            steps=self._steps,
            own_weights=not self._weights.has_policy,
        )
        if control != self._controlled:
            self._transport.control(control)
            self._controlled = control

    def direct_async(self) -> None:
        """The same, where no round is to be opened that would tell them anyway."""
        if not self._sync:
            self.direct()

    def enter(self, phase: LearnerPhase) -> None:
        """From now on, the workers are in this phase."""
        self.phase = phase
        if self._quota and phase is LearnerPhase.RUN:
            self._quota.take_again()
        if self._controlled is None:
            self.direct()
        else:  # nothing else must change by it: in mode Sync no round is opened, and no version asked for
            self._controlled = replace(self._controlled, phase=phase)
            self._transport.control(self._controlled)
        if self._quota and phase is LearnerPhase.PAUSE:
            self._quota.shut()

    def complete(self) -> None:
        """The job is complete: workers leave."""
        self._report()
        self.enter(LearnerPhase.COMPLETE)

    def look_around(self) -> None:
        """See how the workers are.

        Raises:
            WorkerFailed: One gave up for good.
            NoWeights: They wait for what nobody would ever send.
        """
        self._looked_s = time.monotonic()
        self._bound_lag()
        self._report()
        for worker, status in self._transport.workers().items():
            if status.state is WorkerState.FAILED and status.fatal:
                raise WorkerFailed(worker, status.error or "no reason given")
            if status.state is WorkerState.WAITING_FOR_WEIGHTS and self._weights.version == 0 and self._rank.leads:
                raise NoWeights(
                    f"worker {worker} waits for weights and nobody has sent any: call update_policy_weights_() before "
                    f"iterating, or pass `policy=`"
                )

    def wait_for_version(self, version: int, timeout_s: float) -> None:
        """Wait until every member has applied this version or a newer one.

        Raises:
            Timeout: It did not happen in time; names the workers that are behind.
        """
        until = time.monotonic() + timeout_s
        while behind := sorted(self._transport.members() - self._at(version)):
            if time.monotonic() >= until:
                raise Timeout(f"workers {behind} have not applied version {version} within {timeout_s:g} s")
            self.look_around()
            time.sleep(0.01)

    def stats(self) -> Stats:
        """Counters since this learner connected."""
        workers = self._transport.workers().values()
        return Stats(
            frames=self._tally.frames,
            batches=self._tally.batches,
            bytes=self._tally.nbytes,
            repeated=self.admission.repeated,
            missed=self.admission.missed,
            stale=self.admission.stale,
            corrupt=self._transport.corrupt(),
            waited_for_room_s=sum(worker.waited_for_room_s for worker in workers),
            waited_for_weights_s=sum(worker.waited_for_weights_s for worker in workers),
        )

    def _at(self, version: int) -> set[int]:
        return {worker for worker, status in self._transport.workers().items() if status.version >= version}

    def _round(self) -> list[Arrival]:
        run_state = self.run_state
        self._wait_for_others()
        if self.is_over():
            return []
        run_state.round, self._opened = run_state.round + 1, True
        self.admission.open_round(run_state.round)
        members, everyone = self._members(), len(self._transport.members())
        # A round has `framesPerBatch` however many take part; where nobody does, as many may come back as there were.
        self._steps = self._job.spec.steps_among(everyone) if everyone else self._steps
        self.direct()
        enough = self._enough(members)
        shares: dict[int, Arrival] = {}
        shared_among, silent_s = members, 0.0
        # With all of them gone, others may come; and whom another rank waits for stops when this one closes the round.
        while (missing := members - shares.keys()) or not shares or self._is_to_close():
            reported = len(shares.keys() & shared_among) >= enough or (not missing and len(shares) > 0)
            if (closing := reported and run_state.closed < run_state.round) and self._others_have_enough():
                run_state.closed = run_state.round
                self.direct()
                continue
            timeout_s = ASK_OTHERS_S if closing else LOOK_AROUND_S
            if (arrival := self._next(timeout_s)) is not None:
                shares[arrival.worker], silent_s = arrival, 0.0
            elif (silent_s := silent_s + timeout_s) < LOOK_AROUND_S:
                pass  # what somebody sent who has left may be on its way
            elif shares:
                members -= missing - self._members()
                if run_state.closed == run_state.round:
                    members -= self._idle(missing)
            else:  # all of them may have made room for others
                shared_among = members = self._members()
        # Who came when the round had been shared out brings frames too many, unless all others have gone.
        counted = shares.keys() & shared_among or shares.keys()
        for worker in shares.keys() - counted:
            self.admission.stale += 1
            self._transport.take(shares[worker])
        return [shares[worker] for worker in sorted(counted)]

    def _wait_for_others(self) -> None:
        """Until every rank is there, and has been handed the last round of this session."""
        if self._ranked is None:
            return
        self._waited_s, self._asked_s = self._waited(), None  # it is not data that is waited for
        last = self.run_state.round if self._opened else None
        while not self._ranked.wait_for_others(last, timeout_s=LOOK_AROUND_S):
            self.look_around()
        self._asked_s = time.monotonic()

    def _is_to_close(self) -> bool:
        """Whether the round that is open holds up another rank until it is closed."""
        stragglers = self._job.spec.stragglers.threshold < 1 and self._rank.ranks > 1
        return stragglers and self.run_state.closed < self.run_state.round

    def _others_have_enough(self) -> bool:
        return self._ranked is None or self._ranked.may_close(self.run_state.round)

    def _enough(self, members: Set[int]) -> int:
        """So many shares close a round."""
        return max(1, int(len(members) * self._job.spec.stragglers.threshold))

    def _members(self) -> frozenset[int]:
        """Those whose batches come here."""
        return frozenset(worker for worker in self._transport.members() if self._rank.has(worker))

    def _idle(self, workers: Set[int]) -> frozenset[int]:
        """Those of them that had not begun when the round was closed, and so will not: they wait for the next one."""
        statuses = self._transport.workers()
        return frozenset(each for each in workers if each not in statuses or statuses[each].state in IDLE)

    def _elsewhere(self) -> Elsewhere:
        return self._ranked.elsewhere() if self._ranked else Elsewhere()

    def _all_frames(self) -> int:
        return self._tally.frames + self._elsewhere().frames

    def _check_held(self) -> None:
        ahead, held = self._job.spec.delivery.max_batches_ahead, Counter(each.worker for each in self._held)
        full = {worker for worker, batches in held.items() if batches >= ahead}
        members = self._members()
        if full and (members & full if self._sync else members <= full):
            raise JobInvalid(
                f"no batch can come: {len(self._held)} are not acknowledged, and a worker may be {ahead} ahead "
                f"(`delivery.maxBatchesAhead`): call ack() when you have stored what you were given"
            )

    def _fresh(self) -> list[Arrival]:
        if self._controlled is None:
            self.direct()
        while (arrival := self._next()) is None:
            if self.is_over():  # other ranks have had the rest, or whoever wrote it did not live to tell
                return []
        return [arrival]

    def _next(self, timeout_s: float = LOOK_AROUND_S) -> Arrival | None:
        """One that is admitted; None: none came for a while."""
        while True:
            arrival = self._transport.receive(timeout_s=timeout_s)
            if time.monotonic() - self._looked_s >= LOOK_AROUND_S:
                self.look_around()
            if arrival is None:
                return None
            # What is in the replay buffer was new enough when it was written.
            version = arrival.meta.version if arrival.stored else self._weights.meant_for(arrival.worker)
            if self.admission.admit(arrival, version=version):
                return arrival
            self._transport.take(arrival)
            self._report()

    def _bound_lag(self) -> None:
        self.admission.max_lag = self._job.spec.max_lag_among(max(1, len(self._transport.members())))
        if self._quota and not self._sync:
            self._quota.max_lag = self.admission.max_lag

    def _dropped(self) -> int:
        """Batches that were collected, and were not handed over here."""
        return self.admission.dropped + self.admission.missed + self._transport.corrupt()

    def _waited(self) -> float:
        return self._waited_s + (0.0 if self._asked_s is None else time.monotonic() - self._asked_s)

    def _report(self) -> None:
        tally, elsewhere = self._tally, self._elsewhere()
        members, statuses = self._transport.members(), self._transport.workers()
        applied = [status.version for worker, status in statuses.items() if worker in members]
        self._transport.report(
            LearnerStatus(
                session=self._session,
                version=self._weights.version,
                applied_version=min(applied, default=0),
                frames=tally.frames + elsewhere.frames,
                batches=tally.batches + elsewhere.batches,
                dropped=self._dropped() + elsewhere.dropped,
                mean_return=tally.mean_return,
                lag=tally.lag,
                waited_s=self._waited(),
                time_s=0.0,  # whoever sends it sets the time
            )
        )
