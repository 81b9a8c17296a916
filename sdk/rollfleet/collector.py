"""The learner's iterator: how workers' batches are gathered, how weights are versioned, when collection ends.

Everything here is above the transport, so it is the same wherever the batches come from.
"""

import weakref
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from types import TracebackType
from typing import Any, Self, Unpack

from rollfleet.errors import JobEnded, JobInvalid, RollfleetError
from rollfleet.learner.background_fill import BackgroundFill
from rollfleet.learner.construction import start
from rollfleet.learner.following import gatherer_over
from rollfleet.learner.membership import Membership
from rollfleet.learner.options import LearnerOptions, Options
from rollfleet.learner.outcome import Outcome
from rollfleet.learner.raised_errors import RaisedErrors
from rollfleet.learner.tally import Tally
from rollfleet.stats import Stats
from rollfleet.transports.learner_side import Stores, Transport
from rollfleet.transports.patience import Patient
from rollfleet.weights.models import named_states, one_source
from rollfleet_api.job import CollectorJob
from rollfleet_api.messages import LearnerPhase

SHUTDOWN_S = 3.0  # for a step, and for the batch that is on its way into a replay buffer


class Collector:
    """Iterates over batches of frames, and sends the policy's weights to whoever collects them.

    `Collector(env, policy, ...)` collects in this process, or with `workers=` in processes of this machine;
    `rollfleet.connect(job, policy)` makes one whose workers are anywhere. In mode sync an iteration opens a round: all
    workers collect one batch on the same version, and they are yielded together, `[workers * num_envs, T]`, in the
    workers' order. In mode async batches are yielded as they come, `[num_envs, T]`, and collection goes on meanwhile.
    Use it from one thread.

    Leaving the `with` block without an error completes the job: its workers leave. An error does not where workers can
    do without the learner (over NATS): a learner that starts again goes on.
    """

    def __init__(self, env: Any, policy: Any = None, **options: Unpack[Options]) -> None:
        """Collect here, or in processes of this machine.

        Args:
            env: A Gymnasium id, a function that makes an environment (or a whole `VectorEnv`), a `VectorEnv`, or a
                list with one of these for each worker.
            policy: Maps observations `[num_envs, ...]` to actions, or to a dict or TensorDict with `action` and what
                else goes into the batch; a TensorDictModule reads and writes by its keys. None: random actions.
            **options: See below.

        Keywords, with what they are where nothing is said:

        - `frames_per_batch` (must be given): frames of what the iterator yields, of all workers together (sync) or of
          one (async). `total_frames` (0: no end): the iterator ends when so many were handed out.
        - `num_envs` (1): environments of each worker. `env_kwargs` ({}): of their constructor; a list: of each
          worker's. `vectorization` ("sync"), `env_processes` (0), `backend` ("gymnasium", or "envpool"): see a job's
          `env`.
        - `workers` (0: collect in this process and thread), `mode` ("sync", or "async"), `start_method` ("spawn"),
          `max_restarts_per_worker` (0), `quiet` (True: workers' warnings are not shown), `max_batches_ahead` (1),
          `stragglers_threshold` (1.0), `suspect_after_s` (10: see a job's `failure`): about worker processes.
        - `policy_factory`: called on the worker as `factory(observation_space, action_space)`; a list: one for each
          worker. `policy_device`: where it acts; a list: one for each worker. `env_device`: where environments that
          make tensors are; likewise. `device`: where batches are put. `no_cuda_sync`: do not wait for copies there.
        - `weights_interval` (1): broadcast after so many batches; 0: only the first, and when told. `max_lag`,
          `precision` ("float32", or "bfloat16"), `weight_scheme` (see `rollfleet.schemes`).
        - `seed` (0), `init_random_frames` (0), `max_frames_per_traj` (0: no limit), `exploration` ("random", "mode",
          "mean", "deterministic"), `set_truncated`, `reset_at_each_iter`, `reset_when_done` (True), `step_count`,
          `is_init`, `trajs_per_batch` (0): see a job's `collect`.
        - `cat_results` ("envs", "time", "stack"): how workers' shares are put together in mode sync.
        - `split_trajs` (False): yield `split_trajectories(batch)`. `postproc`: called with each batch, its result is
          yielded. `replay_buffer`: batches go into it, `extend(frames)`, and the iterator yields None. `acknowledge`
          ("auto": a batch is the learner's once it is yielded, or "manual": once it calls `ack()`).

        Raises:
            JobInvalid: Something cannot be done; the message names the keyword. (EnvironmentInvalid, PolicyInvalid.)
            TypeError: There is no such keyword.
        """
        transport, job, acts = start(env, policy, options)
        try:
            self._begin(transport, job, policy, options, acts=acts)
        except BaseException:
            transport.close()
            raise

    @classmethod
    def over(cls, transport: Transport, job: CollectorJob, policy: Any = None, **more: Unpack[LearnerOptions]) -> Self:
        """A collector over a transport that is there. It closes it."""
        collector = cls.__new__(cls)
        collector._begin(transport, job, policy, more)
        return collector

    def _begin(
        self, transport: Transport, job: CollectorJob, policy: Any, options: LearnerOptions, *, acts: bool = False
    ) -> None:
        self._transport, self._job = transport, job
        self._close = weakref.finalize(self, transport.close)  # also where nobody shuts down: it was dropped, or exits
        resumed, quota = transport.resumed, transport.quota if isinstance(transport, Stores) else None
        self._tally = Tally(through=resumed.frames, batches=resumed.batches, quota=quota)
        self._weights, self._gatherer = gatherer_over(transport, job, policy, self._tally, options, acts=acts)
        self._membership = Membership(transport)
        self._raised_errors = RaisedErrors()
        self._ended = False
        self._outcome = Outcome(job.spec.collect.cat_results, options)
        self._background_fill: BackgroundFill | None = None

    # --- iteration ---

    def __iter__(self) -> "Iterator[Any]":
        """Itself: several loops over it go on where the one before stopped."""
        return self

    def __next__(self) -> Any:
        """The next batch, TensorDict. Broadcasts first, where `weights.interval` says that it is time.

        Raises:
            StopIteration: `total_frames` are reached, over all ranks; the job is complete.
            NoWeights: The workers wait for weights, and nothing would ever send them.
            WorkerFailed: A worker gave up in a way that starting it again would not mend.
            JobEnded: The collector was shut down.
        """
        with self._raised_errors:
            if self._background_fill is not None and not self._ended:
                self._background_fill.check()
                raise JobInvalid(
                    "the replay buffer is being filled in the background: do not iterate, or do not call start()"
                )
            return self._next()

    def _next(self) -> Any:
        if self._ended:
            raise JobEnded(f"the collector of {self._job.key} was shut down")
        if self._gatherer.phase is LearnerPhase.PAUSE:
            raise JobInvalid("the collector is paused: leave the `with collector.pause():` block before iterating")
        if self._gatherer.is_over():
            self._gatherer.complete()
            raise StopIteration
        if self._weights.is_due(self._job.spec.weights.interval):
            self.update_policy_weights_()
        arrivals = self._gatherer.gather()
        if not arrivals:
            return self._next()
        batch = self._outcome.put_together(arrivals)
        self._gatherer.hand_over(arrivals)
        self._weights.count_batch()
        return self._outcome.of(batch)

    def ack(self) -> None:
        """With `acknowledge="manual"`: whatever was handed over until now is stored, and need not come again.

        What a learner has not acknowledged when it ends comes again to its successor.
        """
        with self._raised_errors:
            self._gatherer.acknowledge()

    @property
    def job(self) -> CollectorJob:
        """The job: as it was when this learner connected, or what the arguments amount to."""
        return self._job

    @property
    def total_frames(self) -> int:
        """Frames after which the iterator ends: the job's `totalFrames`; 0: never."""
        return self._job.spec.collect.total_frames

    # --- weights ---

    def update_policy_weights_(
        self,
        policy_or_weights: Any = None,
        *,
        weights: Any = None,
        policy: Any = None,
        worker_ids: int | Collection[int] | None = None,
        model_id: str | None = None,
        weights_dict: Mapping[str, Any] | None = None,
    ) -> int:
        """Send weights to the workers; they act on them from their next batch on. Returns at once.

        Args:
            policy_or_weights: A module (its parameters and buffers), a dict or a TensorDict of tensors named as in
                the policy's `state_dict`. None: the policy that the collector was given.
            weights: The same, where it is said that it is a dict or a TensorDict.
            policy: The same, where it is said that it is a module.
            worker_ids: Only these workers. None: all.
            model_id: These are the weights of this model, of a policy of several (see `rollfleet.weights.models`);
                the others stay as they were sent last.
            weights_dict: Weights of several models by name, in one version: a worker never acts on half of them.

        Returns:
            The number of this version, one more than the last.

        Raises:
            WeightMismatch: Names, shapes or dtypes are not those of earlier versions; names the parameter.
            NoWeights: No weights were given, here or to the collector.
            JobInvalid: The arguments contradict each other, or there is no such worker.
        """
        source = one_source(policy_or_weights, weights=weights, policy=policy)
        models = named_states(source, model_id, weights_dict, select=self._weights.select)
        with self._raised_errors:
            version = self._weights.send(models, workers=self._membership.these(worker_ids))
            self._gatherer.direct_async()
        return version

    def receive_weights(
        self, policy_or_weights: Any = None, version: int = 0, *, weights: Any = None, policy: Any = None
    ) -> int:
        """Load weights that came from a larger collector into the policy, if any is here, and send them to the workers.

        See `rollfleet.worker.weight_receivers`. Arguments and errors are those of `update_policy_weights_`; `version`
        is the number that they came with, and have here if it is newer. Returns their number here.
        """
        source = one_source(policy_or_weights, weights=weights, policy=policy)
        models = named_states(source, select=self._weights.select)
        if models is None:
            raise JobInvalid("`receive_weights` is given weights; to send the policy's own, update_policy_weights_()")
        with self._raised_errors:
            version = self._weights.pass_on(models, version)
            self._gatherer.direct_async()
        return version

    @property
    def version(self) -> int:
        """The newest version that was sent; 0: none yet."""
        return self._weights.version

    def versions(self) -> dict[int, int]:
        """The version that each worker has applied; 0: none yet."""
        return {worker: status.version for worker, status in sorted(self._transport.workers().items())}

    def wait_for_version(self, version: int, timeout_s: float) -> None:
        """Wait until every worker has applied this version or a newer one.

        In mode sync a worker applies weights when the next round begins: wait between rounds and it does not happen.

        Raises:
            Timeout: It did not happen in time; names the workers that are behind.
        """
        with self._raised_errors:
            self._gatherer.wait_for_version(version, timeout_s)

    # --- while it goes on ---

    @contextmanager
    def pause(self) -> "Iterator[None]":
        """Nothing new is collected inside the block; afterwards it goes on, without loss.

        What a worker is in the middle of is finished and kept.
        """
        if self._gatherer.phase is not LearnerPhase.RUN:
            raise JobInvalid("the collector is paused already, or at its end")
        with self._background_fill.held() if self._background_fill else nullcontext():
            with self._raised_errors:
                self._gatherer.enter(LearnerPhase.PAUSE)
            try:
                yield
            finally:
                if not self._ended:
                    with self._raised_errors:
                        self._gatherer.enter(LearnerPhase.RUN)

    def start(self) -> None:
        """Fill the replay buffer in the background: `frames` tells how far it is. Do not iterate meanwhile.

        Raises:
            JobInvalid: There is no `replay_buffer`.
        """
        if self._outcome.buffer is None:
            raise JobInvalid("start() fills a replay buffer in the background; write `replay_buffer=`")
        self._background_fill = self._background_fill or BackgroundFill(self._next)

    def async_shutdown(self, timeout_s: float | None = None) -> None:
        """End what `start` began, and shut down. Raises what went wrong in the background."""
        try:
            if self._background_fill:
                self._background_fill.stop(timeout_s)
        finally:
            self.shutdown()

    def set_seed(self, seed: int, static_seed: bool = False) -> int:
        """Seed environments, random actions and policies of all workers anew, from their next batch on.

        Episodes that are under way are given up. Trajectory ids go on.

        Returns:
            The seed for the next collector: `seed` itself if `static_seed`, else one further, so that it is another.
        """
        self._gatherer.run_state.set_seed(seed)
        with self._raised_errors:
            self._gatherer.direct_async()
        return seed if static_seed else seed + 1

    def add_workers(self, count: int = 1) -> list[int]:
        """Start more workers in mid-run; in mode sync they take part from the next round on.

        Returns:
            Their indices.

        Raises:
            JobInvalid: The workers are not this collector's own; the message tells who scales them.
        """
        with self._raised_errors:
            return self._membership.add(count)

    def remove_workers(self, worker_ids: int | Collection[int]) -> None:
        """Let workers leave in mid-run; what they have collected still comes.

        Raises:
            JobInvalid: There is no such worker, or the workers are not this collector's own.
        """
        with self._raised_errors:
            self._membership.remove(worker_ids)

    @property
    def workers(self) -> tuple[int, ...]:
        """Indices of the workers there are, in the order of their shares."""
        return self._membership.all()

    def state_dict(self) -> dict[str, Any]:
        """What a run needs to go on elsewhere: counters, versions, seeds. Not the policy, not the environments."""
        lives = max((status.incarnation + 1 for status in self._transport.workers().values()), default=1)
        return {"version": self.version} | self._tally.state_dict() | self._gatherer.run_state.state_dict(lives)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where `state_dict` was taken: versions and trajectory ids count on, environments begin new episodes."""
        self._tally.load_state_dict(state)
        self._gatherer.run_state.load_state_dict(state)
        self._weights.go_on_from(state["version"])

    # --- what is known ---

    @property
    def frames(self) -> int:
        """Frames handed out so far, over NATS also by learners of the job before, or written into the replay buffer."""
        return self._tally.frames

    @property
    def batches(self) -> int:
        """Batches handed out so far."""
        return self._tally.batches

    @property
    def episode_returns(self) -> deque[float]:
        """Returns of the last 100 episodes that ended in what was handed out."""
        return self._tally.episode_returns

    @property
    def episode_lengths(self) -> deque[int]:
        """Lengths of the same episodes, in frames."""
        return self._tally.episode_lengths

    @property
    def mean_return(self) -> float | None:
        """Mean return of the last 100 episodes that ended in what was handed out; None: none has ended."""
        return self._tally.mean_return

    def stats(self) -> Stats:
        """Counters since this learner connected."""
        return self._gatherer.stats()

    # --- the end ---

    def shutdown(self, timeout_s: float = SHUTDOWN_S) -> None:
        """Complete the job: workers leave; a collector's own have `timeout_s` to end in order. Twice is fine.

        Raises what went wrong in the background, unless a call before has raised it.
        """
        if not self._ended:
            try:
                self._gatherer.complete()
            except RollfleetError as error:
                if not self._raised_errors.of(error):
                    raise
            finally:
                self.detach(timeout_s)

    def detach(self, timeout_s: float = SHUTDOWN_S) -> None:
        """Leave the job as it is: workers wait, and another learner may go on. Calling it twice is fine."""
        self._ended = True
        if self._background_fill:
            self._background_fill.leave(timeout_s)
        if isinstance(self._transport, Patient):
            self._transport.wait_at_close(timeout_s)
        self._close()

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Shut down, or after an error detach."""
        if kind is None:
            self.shutdown()
        else:
            self.detach()
