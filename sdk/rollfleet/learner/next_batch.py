"""One iteration of the learner: broadcast if that is due, gather, join, post-process, store in a replay buffer."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from rollfleet.data.batch import join, pad
from rollfleet.data.splitting import frames_of, rows_for
from rollfleet.errors import JobInvalid
from rollfleet.learner.broadcast import Broadcaster
from rollfleet.learner.gathering import Gatherer
from rollfleet.learner.options import Options
from rollfleet.transports.learner_side import Arrival
from rollfleet.wire.buffer_pool import BufferPool
from rollfleet_api.collection import CollectSpec, TrajFormat
from rollfleet_api.messages import LearnerPhase

if TYPE_CHECKING:
    from tensordict import TensorDict

IDLE_BUFFERS = 32  # of joined batches, one for each large tensor
RAISED_STOP: Final = "an environment, the policy, `postproc`, the buffer or your other code raised StopIteration"


class NextBatch:
    """Makes the value of the next iteration."""

    def __init__(self, weights: Broadcaster, gatherer: Gatherer, collect: CollectSpec, options: Options) -> None:
        self._weights, self._gatherer = weights, gatherer
        self._cat_results, self._memory = collect.cat_results, BufferPool(IDLE_BUFFERS)
        self._postproc = options["postproc"]
        self._buffer = options["replay_buffer"]
        steps = {
            frames_of: collect.traj_format is TrajFormat.CAT,
            self._process: self._postproc is not None,
            self._store: self._buffer is not None,
        }
        self._steps: list[Callable[[Any], Any]] = [step for step, wanted in steps.items() if wanted]

    def make(self) -> Any:
        """Return the value to yield; None: the batch is in the replay buffer.

        Raises:
            StopIteration: The job is complete.
            JobInvalid: The fragments cannot be joined, or `postproc` returned None.
            RuntimeError: An environment, the policy, `postproc` or the buffer raised StopIteration, which is the cause.
        """
        if self._gatherer.director.phase is LearnerPhase.PAUSE:
            raise JobInvalid("the collector is paused: leave the `with collector.pause():` block before iterating")
        try:
            while not self._gatherer.is_over():
                if arrivals := self._gather():
                    value = self._value(arrivals)
                    self._gatherer.hand_over(stored=value is None)
                    self._weights.count_batch()
                    return value
        except StopIteration as error:  # it would end the learner's loop (PEP 479)
            raise RuntimeError(RAISED_STOP) from error
        self._gatherer.complete()
        raise StopIteration

    def _gather(self) -> Sequence[Arrival]:
        if self._weights.is_due(self._gatherer.director.job.spec.weights.interval):
            self._weights.send()
            self._gatherer.director.direct_async()
        return self._gatherer.gather()

    def _value(self, arrivals: Sequence[Arrival]) -> Any:
        """Join the arrivals into one batch, and process it; None: it is in the replay buffer."""
        fragments = [arrival.batch for arrival in arrivals]
        workers, director = self._gatherer.workers, self._gatherer.director
        if workers and director.job.spec.stragglers.threshold < 1:
            trajectories = director.job.spec.collect.trajs_per_batch
            fragments = filled(
                {arrival.worker: arrival.batch for arrival in arrivals},
                workers,
                rows=trajectories or director.job.spec.env.num_envs,
                steps=0 if trajectories else director.steps,
            )
        value: Any = join(fragments, self._cat_results, empty=self._memory.empty)
        for step in self._steps:
            value = step(value)
        return value

    def _process(self, batch: "TensorDict") -> Any:
        assert self._postproc is not None
        if (result := self._postproc(batch)) is None:
            raise JobInvalid("`postproc` returned None; return the batch, or the value to yield in its place")
        return result

    def _store(self, batch: "TensorDict") -> None:
        assert self._buffer is not None
        self._buffer.extend(rows_for(self._buffer, batch))


def filled(
    fragments: "Mapping[int, TensorDict]", workers: Sequence[int], *, rows: int, steps: int
) -> "list[TensorDict]":
    """Return a fragment of each worker, in order, all with `("collector", "mask")` and rows of the same length.

    A round that may close without some workers has batches of one shape, whichever of them were in time.

    Args:
        fragments: What workers sent, `[envs, T]`, at least one. Padding stands for the others.
        workers: The workers that have rows, in order.
        rows: Rows of each worker, at least.
        steps: Frames of each row, at least; 0: as many as in the longest row.
    """
    steps = max(steps, *(fragment.shape[1] for fragment in fragments.values()))
    like = next(iter(fragments.values()))
    return [pad(fragments.get(worker, like[:0]), steps, rows) for worker in workers]
