"""The learner's iterator over batches of a job, on any transport."""

import weakref
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from types import TracebackType
from typing import Any, Self

from rollfleet.errors import JobEnded, JobInvalid, RollfleetError
from rollfleet.learner.background_fill import BackgroundFill
from rollfleet.learner.following import gatherer_over
from rollfleet.learner.membership import Membership
from rollfleet.learner.options import LearnerOptions
from rollfleet.learner.outcome import Outcome
from rollfleet.learner.tally import Tally
from rollfleet.stats import Stats
from rollfleet.transports.learner_side import Transport
from rollfleet.weights.models import named_states, one_source
from rollfleet_api.job import CollectorJob
from rollfleet_api.messages import LearnerPhase

SHUTDOWN_S = 3.0  # for a step, and for the batch on its way into a replay buffer


class RaisedErrors:
    """A context around public calls that remembers the errors they raised: the end raises none of them again."""

    def __init__(self) -> None:
        self._errors: weakref.WeakSet[RollfleetError] = (
            weakref.WeakSet()
        )  # an error holds its traceback, and so the collector

    def __contains__(self, error: RollfleetError) -> bool:
        """Whether a call has raised this very error before."""
        return error in self._errors

    def __enter__(self) -> None:
        """Begin a call."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End the call; remember its error."""
        if isinstance(error, RollfleetError):
            self._errors.add(error)


class BatchIterator:
    """Iterates over the batches of a job, and sends the policy's weights to its workers.

    `rollfleet.Collector` is the public class. Use an iterator from one thread.

    Args:
        transport: The learner's side of a transport. The iterator closes it.
        job: The job.
        policy: The policy that `weights.interval` broadcasts; None: no policy.
        options: The learner's options.
        acts: Whether `policy` is the very object that collects, in this process.
    """

    def __init__(
        self, transport: Transport, job: CollectorJob, policy: Any, options: LearnerOptions, *, acts: bool = False
    ) -> None:
        self._transport, self._job = transport, job
        self._close = weakref.finalize(self, transport.close)  # also if the iterator is dropped, or the program exits
        resumed, quota = transport.resumed, transport.quota
        self._tally = Tally(through=resumed.frames, batches=resumed.batches, quota=quota)
        self._weights, self._gatherer = gatherer_over(transport, job, policy, self._tally, options, acts=acts)
        self._membership = Membership(transport)
        self._raised_errors = RaisedErrors()
        self._ended = False
        self._outcome = Outcome(job.spec.collect.cat_results, options)
        self._background_fill: BackgroundFill | None = None

    # --- iteration ---

    def __iter__(self) -> "Iterator[Any]":
        """Return the iterator itself: a second loop continues after the first one."""
        return self

    def __next__(self) -> Any:
        """Return the next batch, TensorDict. Broadcast the policy first if `weights_interval` is due.

        Raises:
            StopIteration: All ranks together have `total_frames`; the job is complete.
            NoWeights: The workers wait for weights, and nothing would ever send them.
            WorkerFailed: A worker gave up with an error that a restart would repeat.
            JobEnded: The collector was shut down.
        """
        with self._raised_errors:
            if self._background_fill is not None and not self._ended:
                self._background_fill.check()
                raise JobInvalid("start() fills the replay buffer in the background; do not iterate as well")
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
        """With `acknowledge="manual"`: acknowledge all batches yielded so far, because they are stored.

        Over NATS, the next learner gets the batches that this one has not acknowledged.
        """
        with self._raised_errors:
            self._gatherer.acknowledge()

    @property
    def job(self) -> CollectorJob:
        """The job: as it was when this learner connected, or as made from the arguments."""
        return self._job

    @property
    def total_frames(self) -> int:
        """The number of frames after which the iterator ends; 0: no end."""
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
        """Send weights to the workers. They use them from their next batch on. Returns at once.

        Args:
            policy_or_weights: A module (its parameters and buffers), a dict or a TensorDict of tensors, named as in
                the policy's `state_dict`. None: the collector's own policy.
            weights: The same, as a dict or a TensorDict.
            policy: The same, as a module.
            worker_ids: The workers that get them. None: all.
            model_id: The one model of the policy that they belong to (see `rollfleet.weights.models`). The other
                models keep the weights sent last.
            weights_dict: Weights of several models by name, in one version: a worker never uses half of them.

        Returns:
            The number of this version: the last one plus 1.

        Raises:
            WeightMismatch: Names, shapes or dtypes differ from earlier versions. The message names the parameter.
            NoWeights: No weights were passed, here or to the collector.
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
        """Load weights of an outer collector into this one's policy, if it has one, and send them to the workers.

        See `rollfleet.worker.weight_receivers`. Arguments and errors are those of `update_policy_weights_`.

        Args:
            policy_or_weights: See `update_policy_weights_`.
            version: The outer collector's version number. They keep it here if it is newer.
            weights: See `update_policy_weights_`.
            policy: See `update_policy_weights_`.

        Returns:
            The version number that they have here.
        """
        source = one_source(policy_or_weights, weights=weights, policy=policy)
        models = named_states(source, select=self._weights.select)
        if models is None:
            raise JobInvalid("`receive_weights` needs weights; update_policy_weights_() sends the policy's own")
        with self._raised_errors:
            version = self._weights.pass_on(models, version)
            self._gatherer.direct_async()
        return version

    @property
    def version(self) -> int:
        """The newest version sent; 0: none yet."""
        return self._weights.version

    def versions(self) -> dict[int, int]:
        """Return the version that each worker has applied, by worker; 0: none yet."""
        return {worker: status.version for worker, status in sorted(self._transport.workers().items())}

    def wait_for_version(self, version: int, timeout_s: float) -> None:
        """Wait until every worker has applied this version or a newer one.

        In mode sync a worker applies weights when the next round begins: do not wait between rounds.

        Raises:
            Timeout: Workers are still behind. The message names them.
        """
        with self._raised_errors:
            self._gatherer.wait_for_version(version, timeout_s)

    # --- control ---

    @contextmanager
    def pause(self) -> "Iterator[None]":
        """Pause collection inside the block; continue afterwards, without loss.

        Workers finish and keep the batch that they are collecting.
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
        """Fill the replay buffer in the background. `frames` counts the frames in it. Do not iterate meanwhile.

        Raises:
            JobInvalid: The collector has no `replay_buffer`.
        """
        if self._outcome.buffer is None:
            raise JobInvalid("start() fills a replay buffer in the background; pass `replay_buffer=`")
        self._background_fill = self._background_fill or BackgroundFill(self._next)

    def async_shutdown(self, timeout_s: float | None = None) -> None:
        """Stop filling the replay buffer, and shut down. Raise the error that the background fill ended with, if any.

        Raises:
            Timeout: The batch that is under way did not come in time. None: wait for it without a limit.
        """
        try:
            if self._background_fill:
                self._background_fill.stop(timeout_s)
        finally:
            self.shutdown()

    def set_seed(self, seed: int, static_seed: bool = False) -> int:
        """Seed environments, random actions and policies of all workers again, from their next batch on.

        Environments drop the episodes under way and begin new ones. Trajectory ids count on.

        Returns:
            A seed for the next collector: `seed` itself if `static_seed`, else `seed + 1`.
        """
        self._gatherer.run_state.set_seed(seed)
        with self._raised_errors:
            self._gatherer.direct_async()
        return seed if static_seed else seed + 1

    def add_workers(self, count: int = 1) -> list[int]:
        """Start more workers during the run. In mode sync they take part from the next round on.

        Returns:
            Their indices.

        Raises:
            JobInvalid: The workers are not this collector's own. The message says how to scale them.
        """
        with self._raised_errors:
            return self._membership.add(count)

    def remove_workers(self, worker_ids: int | Collection[int]) -> None:
        """Remove workers during the run. The frames that they have collected still arrive.

        Raises:
            JobInvalid: There is no such worker, or the workers are not this collector's own.
        """
        with self._raised_errors:
            self._membership.remove(worker_ids)

    @property
    def workers(self) -> tuple[int, ...]:
        """Indices of the present workers, in the order of their fragments in a batch."""
        return self._membership.all()

    def state_dict(self) -> dict[str, Any]:
        """Return counters, versions and seeds, for a run that continues elsewhere. No policy, no environments."""
        incarnations = max((status.incarnation + 1 for status in self._transport.workers().values()), default=1)
        return {"version": self.version} | self._tally.state_dict() | self._gatherer.run_state.state_dict(incarnations)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict`: versions and trajectory ids count on, environments begin new episodes."""
        self._tally.load_state_dict(state)
        self._gatherer.run_state.load_state_dict(state)
        self._weights.continue_from(state["version"])

    # --- counters ---

    @property
    def frames(self) -> int:
        """Frames yielded so far, over NATS also by earlier learners of the job, or written into the replay buffer."""
        return self._tally.frames

    @property
    def batches(self) -> int:
        """Batches yielded so far."""
        return self._tally.batches

    @property
    def episode_returns(self) -> deque[float]:
        """Returns of the last 100 episodes that ended in yielded batches."""
        return self._tally.episode_returns

    @property
    def episode_lengths(self) -> deque[int]:
        """Lengths of the same episodes, in frames."""
        return self._tally.episode_lengths

    @property
    def mean_return(self) -> float | None:
        """Mean return of the same episodes; None: no episode has ended."""
        return self._tally.mean_return

    def stats(self) -> Stats:
        """Return counters since this learner connected."""
        return self._gatherer.stats()

    # --- the end ---

    def shutdown(self, timeout_s: float = SHUTDOWN_S) -> None:
        """Complete the job: its workers leave. Calling it twice is harmless.

        Raises an error that happened in the background, unless an earlier call has raised it.

        Args:
            timeout_s: How long the collector's own processes have to end in order, before signals end them.
        """
        if not self._ended:
            try:
                self._gatherer.complete()
            except RollfleetError as error:
                if error not in self._raised_errors:
                    raise
            finally:
                self.detach(timeout_s)

    def detach(self, timeout_s: float = SHUTDOWN_S) -> None:
        """Leave without completing the job: workers wait, and another learner may continue. Twice is harmless."""
        self._ended = True
        if self._background_fill:
            self._background_fill.leave(timeout_s)
        if self._close.detach():
            self._transport.close(timeout_s=timeout_s)

    def __enter__(self) -> Self:
        """Return the collector."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Shut down; after an error, detach."""
        if kind is None:
            self.shutdown()
        else:
            self.detach()
