"""A worker: rollout, batches out, weights and control in. Whom it collects for is behind its `WorkerTransport`."""

import logging
import threading
import time
import traceback
from collections import deque
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import replace

import torch

from rollfleet.data.batch import TRAJECTORY, Fragment
from rollfleet.errors import JobEnded, JobInvalid, WeightMismatch
from rollfleet.rollout.rollout import Rollout
from rollfleet.rollout.seeding import Seeds
from rollfleet.rollout.settings import RolloutSettings
from rollfleet.rollout.trajectory_ids import TrajectoryIds
from rollfleet.transports.worker_side import Sending, WeightsInbox, WorkerTransport
from rollfleet.transports.workload import Workload
from rollfleet.worker.weight_receivers import receivers_of
from rollfleet_api.job import CollectSpec, Mode
from rollfleet_api.messages import BatchMeta, Control, LearnerPhase, WorkerState, WorkerStatus

log = logging.getLogger(__name__)

MAX_ERROR_CHARACTERS = 8000  # of a traceback, its end, so that a heartbeat stays small
SOON_S = 0.05  # a wait that is longer than this is worth a word in the heartbeat
EPISODES = 100  # that the reported mean return is over


class Worker:
    """Collects for one job until it is complete.

    Args:
        transport: Where batches go and weights come from.
        workload: What to collect.
        index: Which worker this is.

    Raises:
        JobInvalid: The environment or the policy cannot be made.
    """

    def __init__(self, transport: WorkerTransport, workload: Workload, index: int) -> None:
        job = workload.job
        self._transport, self._spec, self._index = transport, job.spec, index
        self._sync = job.spec.mode is Mode.SYNC
        self._has_own_weights = job.spec.policy.entrypoint is not None  # which are worth acting on
        self._frames = self._batches = self._version = 0
        self._frames_per_second = self._waited_for_room_s = self._waited_for_weights_s = 0.0
        self._returns: deque[float] = deque(maxlen=EPISODES)
        self._leaving = threading.Event()
        self._idle = WorkerStatus.starting(index, transport.incarnation)
        transport.report(self._idle)
        env = workload.make_env(index)
        try:
            policy = workload.make_policy(index, env.single_observation_space, env.single_action_space)
            self._num_envs, self._seed, self._origin = env.num_envs, job.spec.collect.seed, 0
            self._seeding = (0, 0)  # the session and the number of the last `set_seed`
            self._trajectories = TrajectoryIds(index, self._incarnation)
            self._rollout = Rollout(
                env,
                policy,
                steps=job.spec.steps_per_batch,
                seeds=self._seeds(),
                trajectories=self._trajectories,
                settings=_settings(job.spec.collect),
            )
            self._models = workload.scheme.select(policy)
            self._layout = workload.scheme.layout(self._models)
            self._policy, self._receivers = policy, receivers_of(policy, env)
            self._inbox: WeightsInbox | None = (
                transport.follow_weights(self._layout) if self._layout.parameters else None
            )
        except BaseException:
            env.close()
            raise

    def run(self) -> None:
        """Collect until the job is complete, or until told to leave.

        Raises:
            WeightMismatch: The learner's weights do not fit the policy here.
        """
        done: Control | None = None
        sending: Sending | None = None
        try:
            while True:
                if sending:
                    self._wait_for(sending.admitted)  # what is collected while the learner is behind would be old
                control = self._next_control(done)
                if control is None or not self.apply_weights(control):
                    break
                fragment, meta = self.collect(control)
                if sending:
                    self._wait_for(sending.stored)
                sending = self._transport.send(fragment, meta)
                self._batches += 1
                done = control
            if sending and self._leaving.is_set():
                self._wait_for(sending.stored)
        except JobEnded:
            pass
        self._report(WorkerState.LEFT if self._leaving.is_set() else WorkerState.COMPLETE)

    def apply_weights(self, control: Control) -> bool:
        """Apply the newest version, once there is one that is new enough. False: the job is complete.

        A policy that a factory has made need not wait where nobody is about to send anything.
        """
        inbox = self._inbox
        if inbox is None:
            self._pass_on(control.version)
            return True
        meant = max(control.version, dict(control.some).get(self._index, 0))
        oldest = max(1, meant if self._sync else meant - self._spec.weights_max_lag)
        if not meant and control.own_weights and self._has_own_weights:
            oldest = 0

        def over() -> bool:
            newest = self._transport.control
            return self._leaving.is_set() or (newest is not None and newest.phase is LearnerPhase.COMPLETE)

        def ready() -> bool:
            newest = inbox.newest()
            return over() or (newest.version if newest else 0) >= oldest

        if not ready():
            self._report(WorkerState.WAITING_FOR_WEIGHTS)
            began = time.monotonic()
            self._transport.wait_until(ready)
            self._waited_for_weights_s += time.monotonic() - began
        newest = inbox.newest()
        if over():
            return False
        if newest is not None and newest.version != self._version:
            self._layout.load(torch.from_numpy(newest.data), self._models)
            self._pass_on(newest.version)
        return True

    def collect(self, control: Control) -> tuple[Fragment, BatchMeta]:
        """One batch, by the weights that are applied. It is cut short by `leave`, and once its round is closed."""
        self._begin_anew(control)
        self._report(WorkerState.COLLECTING)
        began = time.perf_counter()
        fragment = self._rollout.collect(
            version=self._version,
            steps=min(control.steps, self._spec.steps_among(1)),  # of all that the job asks for, whoever says more
            random_actions=control.random_actions,
            stop=lambda: self._leaving.is_set() or self._is_closed(control),
        )
        frames = int((fragment.steps[TRAJECTORY] >= 0).sum())  # what is padded has none
        self._frames += frames
        self._frames_per_second = frames / (time.perf_counter() - began)
        self._returns.extend(fragment.episode_returns.tolist())
        meta = BatchMeta(session=control.session, round=control.round, version=self._version, frames=frames)
        return fragment, meta

    def leave(self) -> None:
        """Stop at the next step, send what there is, and end. From any thread, or a signal's handler."""
        self._leaving.set()

    def failed(self, error: BaseException) -> WorkerStatus:
        """What to report of an error that came out of `run`: its traceback, and what would bring it about again."""
        seeds = ", ".join(map(str, self._seeds().envs[:4])) + (", ..." if self._num_envs > 4 else "")
        again = (
            f"To see it again: seed {self._seed}, worker {self._index}, incarnation {self._transport.incarnation} "
            f"(environments seeded {seeds}), after {self._frames} frames in {self._batches} batches"
        )
        return failure(self._transport.status or self._idle, error, again)

    def close(self) -> None:
        """Close the environments."""
        self._rollout.close()

    @property
    def _incarnation(self) -> int:
        return self._origin + self._transport.incarnation

    def _seeds(self) -> Seeds:
        return Seeds.derive(self._seed, self._index, self._incarnation, self._num_envs)

    def _pass_on(self, version: int) -> None:
        """This version is applied: so are those told who have workers of their own."""
        if version != self._version:
            self._version = version
            for receive in self._receivers:
                receive(self._policy, version)

    def _begin_anew(self, control: Control) -> None:
        """Where the learner asks for seeds, or has restored a run."""
        asked = control.seed is not None and (control.session, control.seeding) != self._seeding
        restored = control.origin > self._origin
        if control.seed is not None and asked:
            self._seed, self._seeding = control.seed, (control.session, control.seeding)
        if restored:  # else ids count on: another seed is no other life
            self._origin = control.origin
            self._trajectories = TrajectoryIds(self._index, self._incarnation)
        if asked or restored:
            self._rollout.begin_anew(self._seeds(), self._trajectories)

    def _is_closed(self, asked: Control) -> bool:
        control = self._transport.control
        if not self._sync or control is None:
            return False
        return control.session != asked.session or control.closed >= asked.round

    def _next_control(self, done: Control | None) -> Control | None:
        """What to do next, after what is done; None: nothing more."""

        def over() -> bool:
            control = self._transport.control
            return self._leaving.is_set() or (control is not None and control.phase is LearnerPhase.COMPLETE)

        def ready() -> bool:
            control = self._transport.control
            if control is None or over():
                return over()
            if control.phase is LearnerPhase.PAUSE:
                return False
            # Another session's rounds are another learner's: it may not know how far the one before it has counted.
            last = done.round if done and done.session == control.session else -1
            return not self._sync or control.round > max(last, control.closed)

        if not ready():
            paused = self._transport.control is not None and self._transport.control.phase is LearnerPhase.PAUSE
            self._report(WorkerState.PAUSED if paused else WorkerState.WAITING_FOR_LEARNER)
            self._transport.wait_until(ready)
        return None if over() else self._transport.control

    def _wait_for(self, future: "Future[None]") -> None:
        began = time.monotonic()
        try:
            future.result(SOON_S)
        except FutureTimeout:
            self._report(WorkerState.WAITING_FOR_LEARNER)
            future.result()
        self._waited_for_room_s += time.monotonic() - began

    def _report(self, state: WorkerState) -> None:
        self._transport.report(
            replace(
                self._idle,
                state=state,
                version=self._version,
                frames=self._frames,
                batches=self._batches,
                frames_per_second=self._frames_per_second,
                waited_for_room_s=self._waited_for_room_s,
                waited_for_weights_s=self._waited_for_weights_s,
                mean_return=sum(self._returns) / len(self._returns) if self._returns else None,
            )
        )


def _settings(collect: CollectSpec) -> RolloutSettings:
    return RolloutSettings(
        max_frames_per_traj=collect.max_frames_per_traj,
        exploration=collect.exploration,
        set_truncated=collect.set_truncated,
        reset_at_each_iter=collect.reset_at_each_iter,
        reset_when_done=collect.reset_when_done,
        step_count=collect.step_count,
        is_init=collect.is_init,
        trajs_per_batch=collect.trajs_per_batch,
    )


def failure(status: WorkerStatus, error: BaseException, again: str = "") -> WorkerStatus:
    """What a worker reports last: bad input in its own words, anything else with its traceback."""
    if isinstance(error, JobInvalid | WeightMismatch):
        text = str(error)
    else:
        # The error itself stays last: it is what a short report shows.
        text = "".join(traceback.format_exception(error))[-(MAX_ERROR_CHARACTERS - len(again) - 1) :]
        text = f"{again}\n{text}" if again else text
    return replace(status, state=WorkerState.FAILED, error=text[-MAX_ERROR_CHARACTERS:])
