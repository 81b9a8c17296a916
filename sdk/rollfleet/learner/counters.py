"""What a learner has counted, for its users."""

from rollfleet.learner.gathering import Gatherer
from rollfleet.learner.public_calls import PublicCalls
from rollfleet.learner.tally import Tally
from rollfleet.stats import Stats


class Counters:
    """The counters of a collector."""

    _calls: PublicCalls
    _tally: Tally
    _gatherer: Gatherer

    @property
    def frames(self) -> int:
        """Frames yielded so far, over NATS also by earlier learners of the job, or written into the replay buffer."""
        self._calls.check()
        return self._tally.frames

    @property
    def batches(self) -> int:
        """Batches yielded so far."""
        self._calls.check()
        return self._tally.batches

    @property
    def episode_returns(self) -> list[float]:
        """Returns of the last 100 episodes that ended in yielded batches."""
        self._calls.check()
        return list(self._tally.episode_returns)  # a background fill adds to them

    @property
    def episode_lengths(self) -> list[int]:
        """Lengths of the same episodes, in frames."""
        self._calls.check()
        return list(self._tally.episode_lengths)

    @property
    def episode_infos(self) -> dict[str, list[float]]:
        """The last 100 values of each number that environments say in the last info of an episode, by name.

        A number of a nested dict has the name `outer.inner`; an episode without it has no value. 32 names at most.

        Example:
            >>> import gymnasium, rollfleet
            >>> from gymnasium.wrappers import RecordEpisodeStatistics
            >>> env = lambda: RecordEpisodeStatistics(gymnasium.make("CartPole-v1"))
            >>> with rollfleet.Collector(env, frames_per_batch=64, total_frames=256) as collector:
            ...     for batch in collector:
            ...         pass
            ...     collector.episode_infos["episode.r"] == collector.episode_returns
            True
        """
        self._calls.check()
        return {name: list(numbers) for name, numbers in self._tally.episode_infos.items()}

    @property
    def mean_return(self) -> float | None:
        """Mean return of the same episodes; None: no episode has ended."""
        self._calls.check()
        return self._tally.mean_return

    def stats(self) -> Stats:
        """Return counters since this learner connected."""
        self._calls.check()
        return self._gatherer.stats()
