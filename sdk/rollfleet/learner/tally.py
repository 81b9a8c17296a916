"""What a learner has got so far, in numbers."""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rollfleet.data.write_quota import WriteQuota
from rollfleet.transports.learner_side import Arrival

EPISODES = 100  # that `mean_return` is over


@dataclass(slots=True, kw_only=True)
class Tally:
    """Counts what was handed out.

    Attributes:
        through: Frames, without padding, that came through the learner.
        restored: Frames of an earlier run that goes on here.
        quota: Those that workers put into its replay buffer; None: they do not.
        batches: Batches.
        nbytes: What they had on the wire.
        lag: Versions between the newest and the one that acted in the last batch.
        episode_returns: Of the last 100 episodes that ended in what was handed out.
        episode_lengths: Of the same, in frames.
    """

    through: int = 0
    restored: int = 0
    quota: WriteQuota | None = None
    batches: int = 0
    nbytes: int = 0
    lag: int = 0
    episode_returns: deque[float] = field(default_factory=lambda: deque(maxlen=EPISODES))
    episode_lengths: deque[int] = field(default_factory=lambda: deque(maxlen=EPISODES))

    def add(self, arrivals: Sequence[Arrival], *, newest: int) -> None:
        """Count one batch, made of these, while `newest` is the newest version."""
        for arrival in arrivals:
            self.through += 0 if arrival.stored else arrival.meta.frames
            self.nbytes += arrival.nbytes
            self.lag = max(0, newest - arrival.meta.version)
            self.episode_returns.extend(arrival.episode_returns.tolist())
            self.episode_lengths.extend(arrival.episode_lengths.tolist())
        self.batches += 1

    @property
    def frames(self) -> int:
        """Frames, without padding."""
        return self.through + (self.quota.written if self.quota else 0)

    @property
    def mean_return(self) -> float | None:
        """Of the last 100 episodes; None: none has ended."""
        return sum(self.episode_returns) / len(self.episode_returns) if self.episode_returns else None

    def state_dict(self) -> dict[str, Any]:
        """For a run that goes on elsewhere."""
        return {
            "frames": self.frames,
            "batches": self.batches,
            "episode_returns": list(self.episode_returns),
            "episode_lengths": list(self.episode_lengths),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Count on from there."""
        self.batches, self.restored = state["batches"], state["frames"]
        if self.quota:
            self.quota.begin_at(state["frames"])
        else:
            self.through = state["frames"]
        self.episode_returns.extend(state["episode_returns"])
        self.episode_lengths.extend(state["episode_lengths"])
