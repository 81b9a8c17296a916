"""The learner's iterator over batches of a job, on any transport."""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from types import TracebackType
from typing import Any, Literal, Self

from torch.utils.data import IterableDataset

from rollfleet.arguments import seconds, true_or_false, whole_number
from rollfleet.errors import JobInvalid, RollfleetError
from rollfleet.learner.background_fill import BackgroundFill, SampleRatio
from rollfleet.learner.broadcast import Broadcaster
from rollfleet.learner.counters import Counters
from rollfleet.learner.gathering import Gatherer
from rollfleet.learner.keywords import MANUAL
from rollfleet.learner.next_batch import NextBatch
from rollfleet.learner.options import Options
from rollfleet.learner.public_calls import PublicCalls
from rollfleet.learner.run_state import checked
from rollfleet.learner.tally import Tally
from rollfleet.learner.workers import Membership, wait_until_applied
from rollfleet.schemes import scheme_of
from rollfleet.system.copies import refuse_copy
from rollfleet.transports.learner_side import Transport
from rollfleet.weights.models import named_states, one_source
from rollfleet_api.fields import MAX_COUNT
from rollfleet_api.job import CollectorJob, Mode
from rollfleet_api.messages import LearnerPhase


class BatchIterator(Counters, IterableDataset[Any]):
    """Iterates over the batches of a job, and sends the policy's weights to its workers.

    `rollfleet.Collector` is the public class. Use an iterator from one thread.

    Args:
        transport: The learner's side of a transport. The iterator closes it.
        policy: The policy that `weights.interval` broadcasts; None: no policy.
        acts: Whether `policy` is the very object that collects, in this process.
    """

    __reduce__ = refuse_copy

    def __init__(
        self, transport: Transport, job: CollectorJob, policy: Any, options: Options, *, acts: bool = False
    ) -> None:
        self._transport = transport
        self._calls = PublicCalls(self, transport, job.key)
        self._tally = Tally(frames=transport.resumed.frames, batches=transport.resumed.batches)
        scheme = options["weight_scheme"] or scheme_of(job.spec.weights)
        self._weights = Broadcaster(transport, policy, job.spec.collect.non_finite, scheme=scheme, acts=acts)
        self._gatherer = Gatherer(
            transport, job, self._weights, self._tally, manual=options.values.get("acknowledge") == MANUAL
        )
        self._director, self._membership = self._gatherer.director, Membership(transport)
        self._buffer = options["replay_buffer"]
        self._next_batch = NextBatch(self._weights, self._gatherer, job.spec.collect, options)

    def __repr__(self) -> str:
        """Return what is collected, how far it is, and the paths that TorchRL's environments and policies take."""
        spec, tally = self.job.spec, self._tally
        parts = [repr(spec.env.id or "..."), f"workers={spec.workers}", f"mode={spec.mode.lower()!r}"]
        parts += [f"frames={tally.frames}", f"batches={tally.batches}", f"version={self._weights.version}"]
        parts += sorted({f"path={each.path!r}" for each in self._transport.workers().values() if each.path})
        return f"<{type(self).__name__}({', '.join(parts)}){' ended' if self._calls.ended else ''}>"

    # --- iteration ---

    def __iter__(self) -> "Iterator[Any]":
        """Return the iterator itself: a second loop continues after the first one."""
        return self

    def __next__(self) -> Any:
        """Return the next batch, TensorDict. Broadcast the policy first if `weights_interval` is due.

        Raises:
            StopIteration: The learner has `total_frames`, with all its ranks; the job is complete.
            NoWeights: The workers wait for weights, and nothing would ever send them.
            WorkerFailed: A worker gave up with an error that a restart would repeat.
            JobEnded: The collector was shut down, or the job has failed on its cluster.
            RuntimeError: An environment, the policy, `postproc` or the buffer raised StopIteration, which is the cause.
        """
        if self._calls.fill is not None:  # what is under way is the background's: drop nothing
            with self._calls.acting():
                raise JobInvalid("start() fills the replay buffer in the background; do not iterate as well")
        try:
            with self._calls.acting():
                value = self._make()
        except BaseException:
            self._gatherer.drop()
            raise
        self._gatherer.under_way = []
        return value  # No calls after `acting`: Ctrl-C would lose the value uncounted.

    def _make(self) -> Any:
        return self._next_batch.make()

    def __len__(self) -> int:
        """Return the number of this rank's batches until `total_frames`, if the job's number of workers stays.

        Raises:
            TypeError: The iterator has no end, or its batches differ in frames.
        """
        self._calls.check()
        spec, collect = self.job.spec, self.job.spec.collect
        padded = not collect.reset_when_done or collect.trajs_per_batch or spec.stragglers.threshold < 1
        if padded or not collect.total_frames:
            raise TypeError("the number of batches is known with `total_frames`, if no batch has padding")
        own = max(1, self._transport.rank.share_of(spec.workers))
        frames = spec.steps_per_batch * spec.env.num_envs * (own if spec.mode is Mode.SYNC else 1)
        return -(-collect.total_frames * own // (frames * max(1, spec.workers)))

    def __bool__(self) -> bool:
        """Return True, whatever its length."""
        return True

    def ack(self) -> None:
        """With `acknowledge="manual"`: acknowledge all batches yielded so far, because they are stored.

        Over NATS, the next learner gets the batches that this one has not acknowledged.
        """
        with self._calls.acting():
            self._gatherer.acknowledge()

    @property
    def job(self) -> CollectorJob:
        """The job: with the edits since this learner connected, or as made from the arguments."""
        return self._director.job

    @property
    def total_frames(self) -> int:
        """The number of frames after which the iterator ends; 0: no end."""
        return self.job.spec.collect.total_frames

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
            worker_ids: The workers that get them, until weights go to all again. None: all.
            model_id: The one model of the policy that they belong to (see `rollfleet.weights.models`). The other
                models keep the weights sent last.
            weights_dict: Weights of several models by name, in one version: a worker never uses half of them.

        Returns:
            The number of this version: the last one plus 1.

        Raises:
            WeightMismatch: Names, shapes or dtypes differ from earlier versions. The message names the parameter.
            NoWeights: No weights were passed, here or to the collector.
            JobInvalid: The arguments contradict each other, or the worker is unknown.
        """
        with self._calls.acting():
            source = one_source(policy_or_weights, weights=weights, policy=policy)
            models = named_states(source, model_id, weights_dict, select=self._weights.select)
            whole = source if model_id is None else None
            version = self._weights.send(models, workers=self._membership.these(worker_ids), source=whole)
            self._director.direct_async()
        return version

    @property
    def version(self) -> int:
        """The newest version sent; 0: none yet."""
        self._calls.check()
        return self._weights.version

    @property
    def env_version(self) -> int:
        """The newest version of `set_env`; 0: nothing was set."""
        self._calls.check()
        return self._director.run_state.env_version

    def versions(self) -> dict[int, int]:
        """Return the version that each present worker has applied, as its last heartbeat says, by worker; 0: none."""
        self._calls.check()
        statuses, members = self._transport.workers(), self._transport.members()
        return {worker: status.version for worker, status in sorted(statuses.items()) if worker in members}

    def wait_for_version(self, version: int, timeout_s: float) -> None:
        """Wait until every worker that this version was sent to has applied it, or a newer one.

        Workers that wait apply weights at once; those that collect, after their batch.

        Raises:
            Timeout: Workers are still behind, and the message names them; or this version was not sent.
        """
        self._wait_for("version", whole_number(version, "version", most=2**63 - 1), timeout_s)

    def _wait_for(self, what: Literal["version", "env_version"], version: int, timeout_s: float) -> None:
        timeout_s = seconds(timeout_s, "timeout_s")
        with self._calls.acting():
            if self._calls.fill is None:
                self._director.direct()
            wait_until_applied(self._gatherer, self._transport, self._weights, what, version, timeout_s=timeout_s)

    # --- control ---

    @contextmanager
    def pause(self) -> "Iterator[None]":
        """Pause collection inside the block; continue afterwards, without loss.

        Workers finish and keep the batch that they are collecting.
        """
        with self._calls.acting():
            if self._director.phase is not LearnerPhase.RUN:
                raise JobInvalid("the collector is paused already, or at its end")
        with self._calls.fill.held() if self._calls.fill else nullcontext():
            try:
                with self._calls.acting():
                    self._director.enter(LearnerPhase.PAUSE)
                yield
            finally:
                if not self._calls.ended:
                    with self._calls.acting():
                        self._director.enter(LearnerPhase.RUN)

    def start(self, *, frames_per_sample: float | None = None) -> None:
        """Fill the replay buffer in the background. `frames` counts the frames in it. Do not iterate meanwhile.

        Each later call raises the error that ends the background fill, until `shutdown`. TensorDict has one interaction
        type for a process: without `workers`, a policy that takes a TensorDict sets it for the learner's modules, too.

        Args:
            frames_per_sample: From the first `sample` of the buffer on, collect this many frames for each; 0.5: two
                samples a frame. Both wait for each other. A batch is written whole. None: neither waits.

        Raises:
            JobInvalid: The collector has no `replay_buffer`, or it does not count samples as `rollfleet.ReplayBuffer`.
        """
        with self._calls.acting():
            if self._buffer is None:
                raise JobInvalid("start() fills a replay buffer in the background; pass `replay_buffer=`")
            ratio = None if frames_per_sample is None else SampleRatio(self._buffer, frames_per_sample)
            if self._calls.fill is None:
                self._calls.fill = BackgroundFill(self._make, ratio)
            elif ratio is not None:
                raise JobInvalid("start() fills the replay buffer already; pass `frames_per_sample` to the first call")

    @property
    def is_running(self) -> bool:
        """Whether `start` fills the replay buffer now: not before it, not after its end, an error or `shutdown`."""
        return self._calls.fill is not None and self._calls.fill.running

    def async_shutdown(self, timeout_s: float | None = None) -> None:
        """Stop filling the replay buffer, and shut down. Raise the error that the background fill ended with, if any.

        Raises:
            Timeout: The batch that is under way did not come in time. None: wait for it without a limit.
        """
        timeout_s = None if timeout_s is None else seconds(timeout_s, "timeout_s")
        try:
            if self._calls.fill and not self._calls.ended:
                self._calls.fill.stop(timeout_s)
        finally:
            self.shutdown()

    def set_seed(self, seed: int, static_seed: bool = False) -> int:
        """Seed environments, random actions and policies of all workers again, from their next batch on.

        Environments drop the episodes under way and begin new ones. Trajectory ids count on.

        Args:
            seed: From 0 to 2**53 - 1.
            static_seed: Give this very seed to each environment of each worker, not a different one made of it.

        Returns:
            A seed for the next collector: `seed` itself if `static_seed`, else `seed + 1`.
        """
        seed, static_seed = whole_number(seed, "seed"), true_or_false(static_seed, "static_seed")
        with self._calls.acting(self._director.phase):
            self._director.run_state.set_seed(seed, static=static_seed)
            self._director.direct_async()
        return seed if static_seed else (seed + 1) % (MAX_COUNT + 1)

    def add_workers(self, count: int = 1) -> list[int]:
        """Start more workers during the run. Returns their indices. In mode sync they take part from the next round on.

        Raises:
            JobInvalid: The workers are not this collector's own. The message says how to scale them.
        """
        with self._calls.acting(self._director.phase):
            return self._membership.add(count)

    def remove_workers(self, worker_ids: int | Collection[int]) -> None:
        """Remove workers during the run. The frames that they have collected still arrive.

        Raises:
            JobInvalid: The worker is unknown, or the workers are not this collector's own.
        """
        with self._calls.acting(self._director.phase):
            self._membership.remove(worker_ids)

    @property
    def workers(self) -> tuple[int, ...]:
        """Indices of the present workers, in the order of their fragments in a batch."""
        self._calls.check()
        return self._membership.all()

    def state_dict(self) -> dict[str, Any]:
        """Return counters, versions and seeds, for a run that continues elsewhere. No policy, no environments."""
        self._calls.check()
        incarnations = max((status.incarnation + 1 for status in self._transport.workers().values()), default=1)
        return {"version": self.version} | self._tally.state_dict() | self._director.run_state.state_dict(incarnations)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict`: versions and trajectory ids count on, environments begin new episodes.

        Raises:
            JobInvalid: It is no `state_dict`. The message names the missing keys.
        """
        known = checked(state)
        with self._calls.acting(self._director.phase):
            self._tally.load_state_dict(known)
            self._director.run_state.load_state_dict(known)
            self._weights.continue_from(known["version"])
            self._director.direct_async()

    # --- the end ---

    def shutdown(self, timeout_s: float | None = None) -> None:
        """Complete the job: its workers leave. Calling it twice is harmless.

        Raises an error that happened in the background, unless an earlier call has raised it.

        Args:
            timeout_s: How long the collector's own processes have to end in order, before signals end them. None:
                `close_timeout_s` of `Processes`.
        """
        timeout_s = timeout_s if timeout_s is None else seconds(timeout_s, "timeout_s")
        if not self._calls.ended:
            try:
                self._gatherer.complete()
                if self._calls.fill:
                    self._calls.fill.check(again=False)
            except RollfleetError as error:
                if not self._calls.has_raised(error):
                    raise
            finally:
                self.detach(timeout_s)

    def detach(self, timeout_s: float | None = None) -> None:
        """Leave without completing the job: workers wait, and another learner may continue. Twice is harmless."""
        timeout_s = timeout_s if timeout_s is None else seconds(timeout_s, "timeout_s")
        self._calls.end(timeout_s)

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
