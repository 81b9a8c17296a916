"""Makes what an iteration yields of gathered fragments: joined, split, post-processed, stored in a replay buffer."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from rollfleet.data.batch import MASK, check_alike, join, pad
from rollfleet.data.splitting import frames_of, rows_for, split_trajectories
from rollfleet.errors import JobInvalid
from rollfleet.learner.options import LearnerOptions
from rollfleet.learner.round_shape import RoundShape
from rollfleet.transports.learner_side import Arrival
from rollfleet_api.collection import CatResults, CollectSpec, TrajFormat

if TYPE_CHECKING:
    from tensordict import TensorDict


class Outcome:
    """Turns arrivals into the value that an iteration yields.

    It keeps a batch until all steps are done. After an error of `postproc` or of the buffer, `finish` calls that same
    step again, with the same value.

    Args:
        collect: How the fragments of workers are joined, and their layout.
        options: The learner's options.
    """

    def __init__(self, collect: CollectSpec, options: LearnerOptions) -> None:
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

    @property
    def waits(self) -> bool:
        """Whether it has a batch that was not yielded."""
        return self._left is not None

    def begin(self, arrivals: Sequence[Arrival], shape: RoundShape | None) -> None:
        """Join the arrivals into one batch, unless their workers have written them into the replay buffer.

        Args:
            arrivals: What the workers sent, in the order of their fragments.
            shape: The rows and frames that the batch has, whichever workers sent; None: those of the arrivals.

        Raises:
            JobInvalid: The arrivals cannot be joined.
        """
        if any(arrival.stored for arrival in arrivals):
            self._value, self._left = None, []
            return
        fragments = [arrival.batch for arrival in arrivals]
        if shape is not None:
            fragments = shape.filled({arrival.worker: arrival.batch for arrival in arrivals})
        self._value, self._left = join_fragments(fragments, self._cat_results), list(self._steps)

    def finish(self) -> Any:
        """Return the value to yield; None: the batch is in the replay buffer.

        Raises:
            JobInvalid: `postproc` returned None.
        """
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

    def _store(self, batch: "TensorDict") -> None:
        assert self._buffer is not None
        self._buffer.extend(rows_for(self._buffer, batch))


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
