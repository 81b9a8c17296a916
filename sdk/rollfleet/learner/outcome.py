"""Makes what an iteration yields of gathered fragments: joined, split, post-processed, stored in a replay buffer."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from rollfleet.data.batch import MASK, check_alike, join, pad
from rollfleet.data.splitting import frames_of, split_trajectories
from rollfleet.errors import JobInvalid
from rollfleet.learner.options import LearnerOptions
from rollfleet.transports.learner_side import Arrival
from rollfleet_api.job import CatResults

if TYPE_CHECKING:
    from tensordict import TensorDict


class Outcome:
    """Turns arrivals into the value that an iteration yields.

    Args:
        cat_results: How the fragments of workers are joined.
        options: The learner's options.

    Attributes:
        buffer: The replay buffer that stores batches; None: batches are yielded.
    """

    def __init__(self, cat_results: CatResults, options: LearnerOptions) -> None:
        self._cat_results = cat_results
        self._split, self._postproc = options.split_trajs, options.postproc
        self.buffer = options.replay_buffer

    def put_together(self, arrivals: Sequence[Arrival]) -> "TensorDict | None":
        """Join the arrivals into one batch; None: their workers have written them into the replay buffer."""
        if any(arrival.stored for arrival in arrivals):
            return None
        return join_fragments([arrival.batch for arrival in arrivals], self._cat_results)

    def of(self, batch: "TensorDict | None") -> Any:
        """Return the value to yield; None: the batch is in the replay buffer."""
        if batch is None:
            return None
        result = split_trajectories(batch) if self._split else batch
        result = result if self._postproc is None else self._postproc(result)
        if self.buffer is None:
            return result
        self.buffer.extend(frames_of(result))
        return None


def join_fragments(fragments: Sequence["TensorDict"], how: CatResults) -> "TensorDict":
    """Join the workers' fragments `[envs, T]` into one batch, in their order.

    A shorter fragment is padded to the longest: with zeros, trajectory id -1, and False in `("collector", "mask")`.
    All fragments then have that mask.

    Args:
        fragments: One fragment of each worker, at least one.
        how: `Envs`: `[all envs, T]`. `Time`: `[envs, workers * T]`. `Stack`: `[workers, envs, T]`.

    Raises:
        JobInvalid: The fragments differ in a key, dtype or shape, or in a number of environments that must be equal.
    """
    if how is CatResults.ENVS:
        return join(fragments)
    steps = max(fragment.shape[-1] for fragment in fragments)
    masked = [MASK in fragment.keys(True) for fragment in fragments]
    if any(fragment.shape[-1] < steps for fragment in fragments) or len(set(masked)) > 1:
        fragments = [pad(fragment, steps) for fragment in fragments]
    check_alike(fragments)
    if len({fragment.shape[0] for fragment in fragments}) > 1:
        raise JobInvalid(
            f"workers with {', '.join(str(fragment.shape[0]) for fragment in fragments)} environments cannot be joined "
            f"along {how.value.lower()}; write cat_results 'envs', or trajs_per_batch 0"
        )
    if how is CatResults.TIME:
        return torch.cat(list(fragments), dim=1)
    return torch.stack(list(fragments), dim=0)
