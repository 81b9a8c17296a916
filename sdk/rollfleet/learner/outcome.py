"""What becomes of what was gathered: put together, split, handed to the user's function, put into a replay buffer."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rollfleet.data.splitting import frames_of, split_trajectories
from rollfleet.learner.options import LearnerOptions
from rollfleet.learner.shares import together
from rollfleet.transports.learner_side import Arrival
from rollfleet_api.job import CatResults

if TYPE_CHECKING:
    from tensordict import TensorDict


class Outcome:
    """What an iteration yields.

    Args:
        cat_results: How the shares of workers are put together.
        options: What the learner does with batches.

    Attributes:
        buffer: The replay buffer that they go into; None: there is none.
    """

    def __init__(self, cat_results: CatResults, options: LearnerOptions) -> None:
        self._cat_results = cat_results
        self._split, self._postproc = options.get("split_trajs", False), options.get("postproc")
        self.buffer = options.get("replay_buffer")

    def put_together(self, arrivals: Sequence[Arrival]) -> "TensorDict | None":
        """One batch; None: their workers have put them into the replay buffer."""
        if any(arrival.stored for arrival in arrivals):
            return None
        return together([arrival.batch for arrival in arrivals], self._cat_results)

    def of(self, batch: "TensorDict | None") -> Any:
        """What is yielded; None: it is in the replay buffer."""
        if batch is None:
            return None
        result = split_trajectories(batch) if self._split else batch
        result = result if self._postproc is None else self._postproc(result)
        if self.buffer is None:
            return result
        self.buffer.extend(frames_of(result))
        return None
