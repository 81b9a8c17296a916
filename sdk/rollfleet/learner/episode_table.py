"""The table of a learner's last episodes: one row for each."""

from collections import deque
from collections.abc import Mapping
from itertools import chain
from math import nan
from typing import Any, Final, TypeAlias

from rollfleet.data.batch import EPISODE_INFO, EPISODE_LABEL
from rollfleet.transports.learner_side import Arrival

ROWS: Final = 10_000
COLUMNS: Final = ("return", "length", "worker", "first_version", "last_version", "time_s")
"""The columns of each table. Others are `LABEL`, and those named as numbers in last infos."""
LABEL: Final = "label"

Columns: TypeAlias = dict[str, list[Any]]
"""Values of episodes by column: a list of one length each."""


def episodes_of(arrival: Arrival, time_s: float) -> Columns:
    """Return the episodes that ended in a batch, which the learner got at this time. NaN: an episode lacks the number.

    A number of the name of a column of each table is `info.NAME`.
    """
    episodes = arrival.episodes
    versions = episodes["versions"].tolist()
    infos: Columns = {
        name if (short := name.removeprefix(EPISODE_INFO)) in (*COLUMNS, LABEL) else short: numbers.tolist()
        for name, numbers in episodes.items()
        if name.startswith(EPISODE_INFO)
    }
    labels = dict(enumerate(arrival.meta.labels))
    if EPISODE_LABEL in episodes:
        infos[LABEL] = [labels.get(number, nan) for number in episodes[EPISODE_LABEL].tolist()]
    return {
        "return": episodes["returns"].tolist(),
        "length": episodes["lengths"].tolist(),
        **infos,
        "worker": [arrival.worker] * len(versions),
        "first_version": [first for first, _ in versions],
        "last_version": [last for _, last in versions],
        "time_s": [time_s] * len(versions),
    }


class EpisodeTable:
    """The last 10,000 episodes. One thread adds, others may read.

    Rows are tuples, and those of a batch share the names of their columns: 10,000 rows without infos take 2 MB.
    """

    def __init__(self) -> None:
        self._rows: deque[tuple[tuple[str, ...], tuple[Any, ...]]] = deque(maxlen=ROWS)
        self._names: tuple[str, ...] = ()

    def add(self, episodes: Mapping[str, list[Any]]) -> None:
        """Add a row for each episode."""
        if self._names != (names := tuple(episodes)):
            self._names = names
        self._rows.extend((self._names, row) for row in zip(*episodes.values(), strict=True))

    def take_back(self, count: int) -> None:
        """Remove the newest rows."""
        for _ in range(min(count, len(self._rows))):
            self._rows.pop()

    def columns(self) -> Columns:
        """Return the table by column, the oldest episode first. NaN: an episode lacks the value."""
        rows = list(self._rows)  # at once: another thread may add to them
        names = dict.fromkeys(chain(COLUMNS, *dict.fromkeys(names for names, _ in rows)))
        table: Columns = {name: [nan] * len(rows) for name in names}
        for at, (known, row) in enumerate(rows):
            for name, value in zip(known, row, strict=True):
                table[name][at] = value
        return table
