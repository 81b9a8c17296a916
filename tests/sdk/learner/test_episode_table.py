"""The table of episodes: one row for each, as its frames say, in every place."""

from collections import defaultdict
from collections.abc import Iterable
from itertools import cycle, islice
from typing import Any

import pytest
from gymnasium.vector import SyncVectorEnv
from tests.sdk.counting import TRAJECTORY, VERSION, Learned
from tests.sdk.places import Collect
from tests.sdk.rollouts import Countdown

from rollfleet.learner.episode_table import ROWS, EpisodeTable

COLUMNS = ("return", "length", "worker", "first_version", "last_version")


def played(batches: Iterable[Any], workers: int) -> list[tuple[Any, ...]]:
    """Return the rows of the episodes that ended in batches, sorted."""
    frames, ended = defaultdict[int, list[Any]](list), []
    for batch in batches:
        per_worker = len(batch) // workers
        for row, trajectories in enumerate(batch):
            for frame in trajectories.unbind(0):
                key = int(frame[TRAJECTORY])
                if key >= 0:
                    frames[key].append(frame)
                    if frame["next", "done"]:
                        ended.append((row // per_worker, frames.pop(key)))
    return sorted(
        (
            sum(float(frame["next", "reward"]) for frame in episode),
            len(episode),
            worker,
            int(episode[0][VERSION]),
            int(episode[-1][VERSION]),
        )
        for worker, episode in ended
    )


@pytest.mark.parametrize("options", [{}, {"trajs_per_batch": 3}], ids=str)
def test_each_episode_has_a_row_with_the_versions_that_its_frames_name(
    collect: Collect, options: dict[str, Any]
) -> None:
    amount = options or {"frames_per_batch": 8 * collect.workers}
    lengths = cycle([11, 7])
    collector = collect(lambda: Countdown(next(lengths)), Learned(), num_envs=2, **amount)
    batches = list(islice(collector, 6))
    table = collector.episode_table()
    rows = sorted(zip(*(table[name] for name in COLUMNS), strict=True))
    assert rows == played(batches, collect.workers)
    assert any(first < last for *_, first, last in rows)
    assert table["time_s"] == sorted(table["time_s"])


def test_the_versions_are_those_of_vectors_that_reset_in_a_step_of_their_own(here: Collect) -> None:
    collector = here(lambda: SyncVectorEnv([lambda: Countdown(5)] * 2), Learned(), num_envs=2, frames_per_batch=6)
    found = played(islice(collector, 8), 1)
    table = collector.episode_table()
    rows = zip(*(table[name] for name in COLUMNS), strict=True)
    assert set(found) <= set(rows)
    assert len(table["return"]) - len(found) <= 2


def test_the_table_keeps_the_newest_rows_and_an_episode_without_a_number_has_none() -> None:
    table = EpisodeTable()
    table.add({"return": [1.0] * ROWS, "success": [1.0] * ROWS})
    table.add({"return": [2.0], "score": [3.0]})
    table.add({"return": [4.0] * 2, "score": [3.0] * 2})
    table.take_back(2)
    columns = table.columns()
    assert columns["return"] == [1.0] * (ROWS - 3) + [2.0]
    assert (columns["score"][-1], str(columns["score"][0]), str(columns["success"][-1])) == (3.0, "nan", "nan")
