"""A worker's loop: collect a batch, send it, apply weights and control. Its `WorkerTransport` reaches the learner."""

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from functools import partial

import torch

from rollfleet.data.batch import ENV_VERSION, TRAJECTORY, Fragment, to_batch
from rollfleet.envs.factory import slow_servers
from rollfleet.envs.settings import Settings
from rollfleet.errors import JobEnded, JobInvalid, WeightMismatch, WorkerReplaced
from rollfleet.rollout.rollouts import make_rollout
from rollfleet.rollout.seeding import Seeds
from rollfleet.rollout.trajectory_ids import MAX_INCARNATIONS, EnvVersions, TrajectoryIds
from rollfleet.system.process_setup import seed_generators
from rollfleet.system.tracebacks import formatted
from rollfleet.transports.worker_side import PendingBatch, Weights, WeightsInbox, WorkerTransport
from rollfleet.transports.workload import Workload
from rollfleet.weights.modules import complete
from rollfleet.wire.env_settings import unpack_settings
from rollfleet.worker.remote_calls import answer_to
from rollfleet_api.job import Mode
from rollfleet_api.messages import Answer, Call, Control, LearnerPhase, WorkerState, WorkerStatus
from rollfleet_api.transfers import BatchMeta
from rollfleet_api.versions import count_of

MAX_ERROR_CHARACTERS = 8000  # the end of a traceback is kept, so that a heartbeat stays small
MEAN_EPISODES = 100  # episodes in the reported mean return


class Worker:
    """Collects for one job until it is complete. `WorkerTransport` shows an example.

    Args:
        transport: Sends batches, and receives weights and control.
        workload: The job, its environments and its policy.
        in_learner: Whether this is the learner's own process: its generators are not seeded, and the policy may be the
            object that it trains.

    Attributes:
        policy: The policy that acts.
        answer: Returns the answer to a call of the learner.
        status: The present status, with the applied version and all counters.

    Raises:
        JobInvalid: The environment or the policy cannot be made.
    """

    def __init__(self, transport: WorkerTransport, workload: Workload, index: int, *, in_learner: bool = False) -> None:
        job = workload.job
        self._transport, self._spec, self._index = transport, job.spec, index
        self._in_learner = in_learner
        self._sync = job.spec.mode is Mode.SYNC
        self._version = 0  # the version in use; `status` has its count
        self._returns: deque[float] = deque(maxlen=MEAN_EPISODES)
        self._leaving = threading.Event()
        self.status = WorkerStatus(worker=index, incarnation=transport.incarnation)
        transport.report(self.status)
        self._seed, self._static_seed, self._origin = job.spec.collect.seed, False, 0
        self._seeded_as = self._incarnation  # the incarnation from which ids and seeds were derived
        self._hooks = workload.make_hooks()
        if self._hooks.init_fn is not None:
            self._hooks.init_fn()
        self._seed_process()
        env = workload.make_env(index)
        try:
            policy = workload.make_policy(index, env.single_observation_space, env.single_action_space)
            self._env, self._num_envs = env, env.num_envs
            self._seeding = (0, 0)  # session and number of the last `set_seed`
            self._interrupts = (0, 0)  # session and number of the last interrupted batch
            self._told = (0, 0)  # session and version of the environments' settings
            self._trajectories, self._env_versions = TrajectoryIds(index, self._incarnation), EnvVersions()
            self._rollout = make_rollout(
                env,
                policy,
                steps=job.spec.steps_per_batch,
                seeds=self._seeds(),
                trajectories=self._trajectories,
                collect=job.spec.collect,
                trained_here=in_learner,
                failures=job.spec.failure.environments,
            )
            self._select = workload.scheme.select
            self._layout = workload.scheme.layout(self._select(policy))
            self.policy = policy
            self.answer: Callable[[Call], Answer] = partial(answer_to, env=env, policy=policy)
            self._inbox: WeightsInbox | None = (
                transport.follow_weights(self._layout) if self._layout.parameters else None
            )
        except BaseException:
            env.close()
            raise

    def run(self) -> None:
        """Collect until the job is complete, or until `leave`.

        Raises:
            JobEnded: It ended otherwise: its learner is gone for good, or another process took this worker's index.
            WeightMismatch: The learner's weights do not fit the worker's policy.
        """
        done: Control | None = None
        kept: list[PendingBatch] = []  # the newest batch, and those before it that are not delivered
        try:
            while True:
                if kept:
                    self._wait_for(kept[-1].admitted)  # frames collected while the learner lags behind would be stale
                control = self._next_control(done)
                if control is None or not self.apply_weights(control):
                    break
                fragment, meta = self.collect(control)
                kept = [each for each in kept if not each.delivered.done()]
                kept.append(self._transport.send(fragment, meta))
                self._add(batches=1)
                done = control
            for each in kept if self._leaving.is_set() else ():  # after a loss, a later one may be taken first
                self._wait_for(each.delivered)
        except JobEnded as ended:
            if not self._is_complete() and not self._leaving.is_set():
                if not isinstance(ended, WorkerReplaced):  # its successor's report must stay the newest
                    self._report(WorkerState.LEFT)
                raise
        self._report(WorkerState.LEFT if self._leaving.is_set() else WorkerState.COMPLETE)

    def apply_weights(self, control: Control) -> bool:
        """Apply the newest version, after waiting for one that is new enough. Returns False if collecting is over.

        A policy that a factory made acts on its own weights if the learner has no policy to send.
        """
        inbox, target = self._inbox, control.version_for(self._index)
        if inbox is None:
            self._use(target)
            return True
        oldest = max(1, target if self._sync else target - self._spec.weights_max_lag)
        if not target and control.own_weights and self._spec.policy.entrypoint is not None:
            oldest = 0  # its own weights may be trained ones

        def ready() -> bool:
            newest = inbox.newest()
            return self._is_over() or (newest.version if newest else 0) >= oldest

        self._add(waited_for_weights_s=self._wait(ready, WorkerState.WAITING_FOR_WEIGHTS))
        if self._is_over():
            return False
        self._load_newest()
        return True

    def apply_waiting(self) -> None:
        """Apply the newest version, and answer a call, while the worker waits to collect."""
        control, before = self._transport.control, self._applied
        self._answer_call()
        if self._inbox is not None:
            self._load_newest()
        elif control is not None:
            self._use(control.version_for(self._index))
        self._apply_settings(control)
        if self._applied != before:
            self._report(self.status.state)

    def collect(self, control: Control) -> tuple[Fragment, BatchMeta]:
        """Collect one batch on the applied weights. `leave`, or the close of its round, cuts it short."""
        self._apply_seeds(control)
        self._apply_settings(control)
        self._answer_call()
        self._report(WorkerState.COLLECTING)
        if self._hooks.pre_collect_hook is not None:
            self._hooks.pre_collect_hook()
        began, before_s = time.perf_counter(), self._rollout.environments_s
        fragment = self._rollout.collect(
            version=self.status.version,
            steps=control.steps,
            random_actions=control.random_actions,
            stop=lambda: self._leaving.is_set() or self._is_closed(control),
        )
        if self._hooks.post_collect_hook is not None:
            self._hooks.post_collect_hook(to_batch(fragment).clone())  # it may keep what it got
        if self.status.env_version:
            versions = self._env_versions.of(fragment.steps[TRAJECTORY].numpy())
            fragment.steps[ENV_VERSION] = torch.from_numpy(versions)
        frames, took_s = fragment.frames, time.perf_counter() - began
        waited_s = self._rollout.environments_s - before_s
        self._add(frames=frames, waited_for_environments_s=waited_s, collecting_s=took_s)
        self._returns.extend(fragment.episodes["returns"].tolist())
        self.status = replace(
            self.status,
            frames_per_second=frames / took_s,
            path=self._rollout.path,
            slow_servers=slow_servers(self._env),
            mean_return=sum(self._returns) / len(self._returns) if self._returns else None,
        )
        if fragment.newest_failure:
            self.status = replace(self.status, newest_failure=fragment.newest_failure, failed_s=time.time())
        meta = BatchMeta(
            session=control.session,
            round=control.round,
            version=self._version,
            frames=frames,
            non_finite=fragment.non_finite,
            failed_episodes=dict(fragment.failed_episodes),
            labels=fragment.labels,
        )
        return fragment, meta

    def start_over(self) -> None:
        """Begin new episodes in the next batch."""
        self._rollout.start_over()

    def report_waiting(self) -> None:
        """Report that this worker waits for the learner, and its counters."""
        self._report(WorkerState.WAITING_FOR_LEARNER)

    def leave(self) -> None:
        """Stop at the next step, send the frames so far, and end. Safe in any thread and in a signal handler."""
        self._leaving.set()

    def failed(self, error: BaseException) -> WorkerStatus:
        """Return the status that reports an error of `run`: its traceback, and how to reproduce it.

        It is also fatal if no environment was ever reset. Environments that broke later may work after a restart.
        """
        seeds = ", ".join(map(str, self._seeds().envs[:4])) + (", ..." if self._num_envs > 4 else "")
        reproduction = (
            f"To reproduce it: seed {self._seed}, worker {self._index}, incarnation {self._transport.incarnation} "
            f"(environments seeded {seeds}), after {self.status.frames} frames in {self.status.batches} batches"
        )
        never_worked = self._rollout.first_reset_failed and not self._transport.incarnation
        status = failure(self.status, error, reproduction)
        return replace(status, fatal=status.fatal or never_worked)

    def close(self) -> None:
        """Close the environments."""
        self._rollout.close()

    @property
    def _incarnation(self) -> int:
        return (self._origin + self._transport.incarnation) % MAX_INCARNATIONS  # a restored run may be at any number

    def _seeds(self) -> Seeds:
        if self._static_seed:
            return Seeds.static(self._seed, self._num_envs)
        return Seeds.derive(self._seed, self._index, self._incarnation, self._num_envs)

    def _seed_process(self) -> None:
        """Seed the generators that environments of this process may draw from."""
        if not self._in_learner:
            worker = (0, 0) if self._static_seed else (self._index, self._incarnation)
            seed_generators(Seeds.of_process(self._seed, *worker))

    def _load_newest(self) -> None:
        newest = self._newer()
        if newest is not None:
            # A policy's call may have replaced its tensors, outside of the learner by tensors of inference mode.
            with torch.inference_mode(not self._in_learner):
                self._layout.load(torch.from_numpy(newest.data), loaded := self._select(self.policy))
                complete(self.policy, loaded, newest.flags)
            self._use(newest.version)

    def _newer(self) -> Weights | None:
        """Return the newest version unless it is in use."""
        newest = self._inbox.newest() if self._inbox is not None else None
        return newest if newest and newest.version != self._version else None

    def _use(self, version: int) -> None:
        self._version, self.status = version, replace(self.status, version=count_of(version))

    def _apply_seeds(self, control: Control) -> None:
        """Restart the environments if the learner has lost a batch, set a seed, or restored a run."""
        interrupts = (control.session, control.interrupts)
        if control.interrupts and interrupts != self._interrupts:
            self._interrupts = interrupts
            self._rollout.start_over()
        asked = control.seed is not None and (control.session, control.seeding) != self._seeding
        self._origin = max(self._origin, control.origin)
        restored = self._incarnation != self._seeded_as  # or its number came after the environments were made
        if control.seed is not None and asked:
            self._seed, self._static_seed = control.seed, control.static_seed
            self._seeding = (control.session, control.seeding)
        if restored:  # else ids count on: a new seed does not start an incarnation
            self._seeded_as = self._incarnation
            self._trajectories, self._env_versions = TrajectoryIds(self._index, self._incarnation), EnvVersions()
            self._env_versions.begin(self.status.env_version, self._trajectories)
        if asked or restored:
            self._seed_process()
            self._rollout.reseed(self._seeds(), self._trajectories)

    def _apply_settings(self, control: Control | None) -> None:
        """Pass on the environments' settings, if the learner has others than this worker."""
        if control is None or not self._has_new_settings(control):
            return
        self._told = (control.session, control.env_version)
        self.status = replace(self.status, env_version=control.env_version)
        self._env_versions.begin(control.env_version, self._trajectories)
        values = unpack_settings(control.env_settings, worker=self._index, num_envs=self._num_envs)
        self._rollout.set_env(Settings(values, self._spec.env.settings_method))

    def _has_new_settings(self, control: Control | None) -> bool:
        return control is not None and control.env_version > 0 and (control.session, control.env_version) != self._told

    @property
    def _applied(self) -> tuple[int, int]:
        return self._version, self.status.env_version

    def _is_over(self) -> bool:
        return self._leaving.is_set() or self._is_complete()

    def _is_complete(self) -> bool:
        control = self._transport.control
        return control is not None and control.phase is LearnerPhase.COMPLETE

    def _is_closed(self, asked: Control) -> bool:
        control = self._transport.control
        if not self._sync or control is None:
            return False
        return control.session != asked.session or control.closed >= asked.round

    def _next_control(self, done: Control | None) -> Control | None:
        """Wait for control that asks for a batch after `done`. Returns None if collecting is over."""

        def ready() -> bool:
            control = self._transport.control
            if control is None or self._is_over():
                return self._is_over()
            if control.phase is LearnerPhase.PAUSE:
                return False
            # A new session's learner may not know the previous learner's last round.
            last = done.round if done and done.session == control.session else -1
            return not self._sync or control.round > max(last, control.closed)

        paused = self._transport.control is not None and self._transport.control.phase is LearnerPhase.PAUSE
        waited_s = self._wait(ready, WorkerState.PAUSED if paused else WorkerState.WAITING_FOR_LEARNER)
        if not paused:
            self._add(waited_for_round_s=waited_s)
        return None if self._is_over() else self._transport.control

    def _wait(self, ready: Callable[[], bool], state: WorkerState) -> float:
        """Wait, and meanwhile apply newer weights and answer calls. Returns the seconds that it took."""
        if ready():
            return 0.0
        self._report(state)
        began = time.monotonic()

        def changed() -> bool:
            new = self._newer() is not None or self._has_new_settings(self._transport.control)
            return ready() or new or self._transport.call is not None

        self._transport.wait_until(changed)
        while not ready():
            self.apply_waiting()
            self._transport.wait_until(changed)
        return time.monotonic() - began

    def _answer_call(self) -> None:
        if (call := self._transport.call) is not None:
            self._transport.answer(self.answer(call))

    def _wait_for(self, future: "Future[None]") -> None:
        waited_s = self._wait(lambda: future.done() or self._is_complete(), WorkerState.WAITING_FOR_LEARNER)
        if not future.done():
            raise JobEnded("the job is complete: no learner will take this batch")
        self._add(waited_for_space_s=waited_s)

    def _add(self, **counts: float) -> None:
        if not any(counts.values()):
            return
        self.status = replace(self.status, **{name: getattr(self.status, name) + more for name, more in counts.items()})

    def _report(self, state: WorkerState) -> None:
        self.status = replace(self.status, state=state)
        self._transport.report(self.status)


def failure(status: WorkerStatus, error: BaseException, reproduction: str = "") -> WorkerStatus:
    """Return the last status of a worker that failed: the text of bad input, or the traceback of any other error.

    Bad input is fatal: a restart would repeat it.
    """
    fatal = isinstance(error, JobInvalid | WeightMismatch)
    if fatal:
        text = str(error)
    else:
        # The error itself stays last: short reports show only the last line.
        text = formatted(error)[-(MAX_ERROR_CHARACTERS - len(reproduction) - 1) :]
        text = f"{reproduction}\n{text}" if reproduction else text
    return replace(status, state=WorkerState.FAILED, error=text[-MAX_ERROR_CHARACTERS:], fatal=fatal)
