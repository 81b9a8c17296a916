"""What a rollout can be told, in the words of a job's `collect`."""

from dataclasses import dataclass

from rollfleet.errors import JobInvalid
from rollfleet.exploration import Exploration


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutSettings:
    """How to collect.

    Attributes:
        max_frames_per_traj: Truncate an episode after so many frames; 0: no limit. Only for environments that do not
            reset by themselves.
        exploration: How the policy turns distributions into actions.
        set_truncated: Mark the last frame of each row as truncated where its episode goes on, and go on under a new
            trajectory id, so that no id is seen after its end. The environment is not reset: returns, lengths,
            `step_count` and the hidden state go on. (TorchRL also marks frames that terminated, and keeps the id.)
        reset_at_each_iter: Reset all environments before each fragment but the first, which has just been reset. The
            frames after the reset have new trajectory ids; the episodes that were cut off are in no returns or lengths,
            and their last frame is not marked unless `set_truncated` says so.
        reset_when_done: False: an environment whose episode ended waits for the next fragment, so that a fragment has
            at most one episode's end in a row. What is left of the row is padding: zeros, the trajectory id -1, and
            False in `("collector", "mask")`. Only for environments that do not reset by themselves. (TorchRL has
            deprecated the keyword and refuses False.)
        step_count: Put `step_count` into the batch, int64 [envs, T, 1]: frames of the episode before this one.
        is_init: Put `is_init` into the batch, bool [envs, T, 1]: the first frame of an episode.
        trajs_per_batch: Collect until so many trajectories have ended, and return these alone, whole, one in a row
            [trajectories, T of the longest], in order of their end; what the rows lack is padding, as above. What has
            begun goes on in the next fragment. 0: fragments of T frames.

    Raises:
        JobInvalid: Two of them contradict each other.
    """

    max_frames_per_traj: int = 0
    exploration: Exploration = Exploration.RANDOM
    set_truncated: bool = False
    reset_at_each_iter: bool = False
    reset_when_done: bool = True
    step_count: bool = False
    is_init: bool = False
    trajs_per_batch: int = 0

    def __post_init__(self) -> None:
        """Check what goes together."""
        if self.trajs_per_batch and self.set_truncated:
            raise JobInvalid(
                "trajsPerBatch gives whole trajectories, whose last frame is their end, so that setTruncated has "
                "nothing to mark; remove one of them"
            )
        if self.trajs_per_batch and not self.reset_when_done:
            raise JobInvalid(
                "with resetWhenDone: false each environment ends at most one trajectory in a batch, and trajsPerBatch "
                "could wait for ever; remove one of them"
            )
        if not self.reset_when_done and self.reset_at_each_iter:
            raise JobInvalid(
                "resetAtEachIter resets every environment before a batch, resetWhenDone: false only those whose "
                "episode ended; remove one of them"
            )
