"""One iteration of the learner: broadcast if that is due, gather, join, post-process."""

from typing import Any

from rollfleet.errors import JobInvalid
from rollfleet.learner.broadcast import Broadcaster
from rollfleet.learner.gathering import Gatherer
from rollfleet.learner.outcome import Outcome
from rollfleet_api.messages import LearnerPhase


class NextBatch:
    """Makes the value of the next iteration. After an exception, `make` continues where the last call ended.

    Args:
        weights: The versions of the weights.
        gatherer: Gathers the workers' fragments.
        outcome: Makes a batch of them.
    """

    def __init__(self, weights: Broadcaster, gatherer: Gatherer, outcome: Outcome) -> None:
        self._weights, self._gatherer, self._outcome = weights, gatherer, outcome

    def make(self) -> Any:
        """Return the value to yield; None: the batch is in the replay buffer.

        Raises:
            StopIteration: The job is complete.
            RuntimeError: An environment, the policy, `postproc` or the buffer raised StopIteration, which is the cause.
        """
        if self._gatherer.phase is LearnerPhase.PAUSE:
            raise JobInvalid("the collector is paused: leave the `with collector.pause():` block before iterating")
        try:
            while not self._outcome.waits:
                if self._gatherer.is_over():
                    break
                self._gather()
            else:
                return self._outcome.finish()
        except StopIteration as error:  # it would end the learner's loop (PEP 479)
            raise RuntimeError("an environment, the policy, `postproc` or the buffer raised StopIteration") from error
        self._gatherer.complete()
        raise StopIteration

    def _gather(self) -> None:
        if self._weights.is_due(self._gatherer.job.spec.weights.interval):
            self._weights.send()
            self._gatherer.direct_async()
        if arrivals := self._gatherer.gather():
            self._outcome.begin(arrivals, self._gatherer.shape)
            self._gatherer.hand_over(arrivals)
            self._weights.count_batch()
