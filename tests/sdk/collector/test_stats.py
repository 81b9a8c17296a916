"""`collector.stats()`, in every place."""

from typing import TYPE_CHECKING

from tests.waiting import wait_until

if TYPE_CHECKING:
    from tests.sdk.collector.places import Collect


def test_stats_have_each_worker_and_the_jobs_end(collect: "Collect") -> None:
    workers = collect.workers
    collector = collect("CartPole-v1", num_envs=2, frames_per_batch=8 * workers, total_frames=16 * workers)
    next(collector)
    wait_until(lambda: [each.frames for each in collector.stats().workers.values()] == [8] * workers)
    assert [*collector.stats().workers] == [*range(workers)]
    assert not collector.stats().completed
    assert len([*collector]) == 1
    assert collector.stats().completed
