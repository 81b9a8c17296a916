"""One iteration of the learner: broadcast if that is due, gather, join, post-process, store in a replay buffer."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from rollfleet.data.batch import join
from rollfleet.data.replay_buffer import ReplayBuffer
from rollfleet.data.splitting import frames_of, rows_for, split_trajectories
from rollfleet.errors import JobInvalid
from rollfleet.learner.broadcast import Broadcaster
from rollfleet.learner.gathering import Gatherer
from rollfleet.learner.options import LearnerOptions
from rollfleet.transports.learner_side import Arrival
from rollfleet_api.collection import CollectSpec, TrajFormat
from rollfleet_api.messages import LearnerPhase

if TYPE_CHECKING:
    from tensordict import TensorDict

RAISED_STOP: Final = "an environment, the policy, `postproc`, the buffer or your other code raised StopIteration"


class NextBatch:
    """Makes the value of the next iteration. After an exception, `make` continues where the last call ended.

    It keeps a batch until all steps are done. After an error of `postproc` or of the buffer, `make` calls that same
    step again, with the same value.

    Args:
        weights: The versions of the weights.
        gatherer: Gathers the workers' fragments.
        collect: How the fragments of workers are joined, and their layout.
        options: The learner's options.
    """

    def __init__(self, weights: Broadcaster, gatherer: Gatherer, collect: CollectSpec, options: LearnerOptions) -> None:
        self._weights, self._gatherer = weights, gatherer
        self._cat_results = collect.cat_results
        self._postproc = options.postproc
        self._buffer = options.replay_buffer
        steps = {
            split_trajectories: bool(options.split_trajs),
            frames_of: collect.traj_format is TrajFormat.CAT,
            self._process: self._postproc is not None,
            self._store: self._buffer is not None,
        }
        self._steps: list[Callable[[Any], Any]] = [step for step, wanted in steps.items() if wanted]
        self._left: list[Callable[[Any], Any]] | None = None  # steps to do; None: there is no batch
        self._value: Any = None

    def make(self) -> Any:
        """Return the value to yield; None: the batch is in the replay buffer.

        Raises:
            StopIteration: The job is complete.
            JobInvalid: The fragments cannot be joined, or `postproc` returned None.
            RuntimeError: An environment, the policy, `postproc` or the buffer raised StopIteration, which is the cause.
        """
        if self._gatherer.phase is LearnerPhase.PAUSE:
            raise JobInvalid("the collector is paused: leave the `with collector.pause():` block before iterating")
        try:
            while self._left is None:
                if self._gatherer.is_over():
                    break
                self._gather()
            else:
                return self._finish()
        except StopIteration as error:  # it would end the learner's loop (PEP 479)
            raise RuntimeError(RAISED_STOP) from error
        self._gatherer.complete()
        raise StopIteration

    def _gather(self) -> None:
        if self._weights.is_due(self._gatherer.job.spec.weights.interval):
            # A worker of another rank that has not begun the last round would begin it with these weights.
            self._gatherer.end_round()
            if self._gatherer.is_over():
                return
            self._weights.send()
            self._gatherer.direct_async()
        if arrivals := self._gatherer.gather():
            self._begin(arrivals)
            self._gatherer.hand_over(arrivals)
            self._weights.count_batch()

    def _begin(self, arrivals: Sequence[Arrival]) -> None:
        fragments = [arrival.batch for arrival in arrivals]
        if (shape := self._gatherer.shape) is not None:
            fragments = shape.filled({arrival.worker: arrival.batch for arrival in arrivals})
        if self._steps == [self._store] and isinstance(self._buffer, ReplayBuffer):  # it needs no joined batch
            self._value, self._left = fragments, [self._store_each]
            return
        self._value, self._left = join(fragments, self._cat_results), list(self._steps)

    def _finish(self) -> Any:
        while self._left:
            self._value = self._left[0](self._value)
            del self._left[0]
        value, self._value, self._left = self._value, None, None
        return value

    def _process(self, batch: "TensorDict") -> Any:
        assert self._postproc is not None
        if (result := self._postproc(batch)) is None:
            raise JobInvalid("`postproc` returned None; return the batch, or the value to yield in its place")
        return result

    def _store_each(self, fragments: Sequence["TensorDict"]) -> None:
        for fragment in fragments:
            self._store(fragment)

    def _store(self, batch: "TensorDict") -> None:
        assert self._buffer is not None
        self._buffer.extend(rows_for(self._buffer, batch))
