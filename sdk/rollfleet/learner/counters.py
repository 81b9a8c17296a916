"""What a learner has counted, for its users."""

from typing import Any

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
        return self._tally.values("return")

    @property
    def episode_lengths(self) -> list[int]:
        """Lengths of the same episodes, in frames."""
        self._calls.check()
        return [int(length) for length in self._tally.values("length")]

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
        return self._tally.infos

    def episode_table(self) -> dict[str, list[Any]]:
        """Return the last 10,000 episodes that ended in yielded batches: a list for each column, the oldest first.

        The columns are `return`, `length` in frames, `worker`, the versions of the policy in the `first_version` and
        `last_version` frame of the episode, `time_s` (when its batch was yielded, in seconds since the epoch), and each
        number of `episode_infos`, NaN for an episode without it. `pandas.DataFrame(collector.episode_table())` is a
        data frame. An info with the name of a column is `info.NAME`. No checkpoint has the table.

        Example:
            >>> import rollfleet
            >>> with rollfleet.Collector("CartPole-v1", frames_per_batch=64, total_frames=256) as collector:
            ...     for batch in collector:
            ...         pass
            ...     table = collector.episode_table()
            >>> sorted(table), table["return"] == table["length"]
            (['first_version', 'last_version', 'length', 'return', 'time_s', 'worker'], True)
        """
        self._calls.check()
        return self._tally.table.columns()

    @property
    def mean_return(self) -> float | None:
        """Mean return of the same episodes; None: no episode has ended."""
        self._calls.check()
        return self._tally.mean_return

    def stats(self) -> Stats:
        """Return counters since this learner connected, and statistics of its last episodes.

        Example:
            >>> import gymnasium, rollfleet
            >>> from gymnasium.wrappers import RecordEpisodeStatistics
            >>> env = lambda: RecordEpisodeStatistics(gymnasium.make("CartPole-v1"))
            >>> keywords = {"frames_per_batch": 256, "episode_metrics": ["episode.r"]}
            >>> with rollfleet.Collector(env, **keywords) as collector:
            ...     batch = next(collector)
            ...     found = collector.stats().episode_statistics
            >>> list(found), found["episode.r"].max == max(collector.episode_returns)
            (['return', 'length', 'episode.r', 'last_version'], True)
        """
        self._calls.check()
        return self._gatherer.stats()
