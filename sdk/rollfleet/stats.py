"""Counters of a learner's batches, and of its workers."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rollfleet_api.messages import Statistic, WorkerStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """Counters since this learner connected.

    Example:
        >>> import rollfleet
        >>> with rollfleet.Collector("CartPole-v1", frames_per_batch=8) as collector:
        ...     batch = next(collector)
        ...     stats = collector.stats()
        >>> stats.frames, stats.batches, stats.stale, stats.completed
        (8, 1, 0, False)
        >>> stats.workers[0].state.value, stats.workers[0].frames
        ('WaitingForLearner', 8)

        >>> stats.episode_statistics  # no episode has ended
        {}

    Attributes:
        frames: Frames of the job, yielded by this learner or an earlier one.
        batches: Batches of the job, yielded by this learner or an earlier one.
        bytes: Bytes on the wire of the batches that this learner yielded.
        repeated: Batches dropped because they were delivered, or collected, a second time.
        missed: Batches lost with their workers. One that a cut of the network delays counts until it comes.
        stale: Batches dropped because their version or round was too old.
        interrupted: Batches dropped because an exception, such as Ctrl-C, ended their iteration.
        corrupt: Batches dropped because they could not be read.
        non_finite: Frames of yielded batches with NaN or infinity, and versions of the weights with NaN.
        failed_episodes: Episodes that a failure of their environment ended, by the class of its error: of yielded
            batches; see `env_failures` of `Collector`.
        episode_statistics: Mean, min, max and count of numbers of the last 100 episodes, by name: `return`, `length` in
            frames, `last_version` (the version that they ended on), and those of `Collector.episode_infos`.
        waited_s: Seconds that this learner has waited for batches.
        waited_for_space_s: Seconds that the workers, in their present incarnations, have waited for space for batches.
        waited_for_weights_s: Seconds that they have waited for weights, more than `weights.maxLag` versions behind.
        waited_for_environments_s: Seconds that the workers' environments have taken; those of TorchRL do not count.
        completed: Whether the job has its `total_frames`.
        workers: The last heartbeat of each worker, by index: state, version, frames, frames per second, mean return.
    """

    frames: int
    batches: int
    bytes: int
    repeated: int
    missed: int
    stale: int
    interrupted: int
    corrupt: int
    non_finite: int
    failed_episodes: Mapping[str, int]
    episode_statistics: "Mapping[str, Statistic]"
    waited_s: float
    waited_for_space_s: float
    waited_for_weights_s: float
    waited_for_environments_s: float
    completed: bool
    workers: "Mapping[int, WorkerStatus]"
