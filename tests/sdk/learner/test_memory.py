"""No memory is kept of past batches, except that the next ones lie in it. benchmarks/soak.py watches it for hours."""

import gc
import tracemalloc
from itertools import islice, pairwise
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box
from tests.job_server import Connect, Server, actor_critic
from tests.sdk.counting import always_0
from tests.sdk.places import Collect

from rollfleet import Collector
from rollfleet.testing import CountingEnv

FRAMES = 8192  # whose observations are large enough to be reused
WARM_UP, MEASURED = 200, 300
KEPT_BYTES_PER_BATCH = 100.0  # a forgotten future alone takes some 200


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("mode", ["Sync", "Async"])
def test_learner_and_workers_keep_no_memory_of_past_batches(mode: str, server: Server, connect: Connect) -> None:
    server.start_workers(mode=mode, workers=2, env={"id": "CartPole-v1", "numEnvs": 4}, collect={"framesPerBatch": 32})
    with connect(actor_critic()) as collector:
        tracemalloc.start()
        try:
            traced = [traced_after(collector, batches) for batches in (WARM_UP, *[MEASURED] * 3)]
        finally:
            tracemalloc.stop()
    # A leak grows with each batch; a cache that fills, or more batches under way than before, does not.
    kept = min(after - before for before, after in pairwise(traced))
    assert kept / MEASURED < KEPT_BYTES_PER_BATCH, f"{kept:,} bytes are kept of {MEASURED:,} batches"


def test_what_the_loop_keeps_of_a_round_stays_while_later_rounds_lie_in_reused_memory() -> None:
    with Collector("CartPole-v1", actor_critic(), workers=2, num_envs=4, frames_per_batch=FRAMES) as collector:
        kept = [next(collector)["next", "observation"][3:5] for _ in range(3)]
        before = [each.clone() for each in kept]
        sum(1 for _ in islice(collector, 5))
    assert all(each.equal(then) for each, then in zip(kept, before, strict=True))


IMAGE = np.random.default_rng(0).integers(0, 256, (100, 100), np.uint8)  # compression gains nothing from it


class Images(CountingEnv):
    """Shows 10 kB a frame."""

    observation_space: Any = Box(0, 255, (100, 100), np.uint8)

    def reset(self, **given: Any) -> tuple[Any, dict[str, Any]]:
        return IMAGE.copy(), super().reset(**given)[1]

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return IMAGE.copy(), *super().step(action)[1:]


def test_kept_rewards_of_one_worker_do_not_keep_its_images(apart: Collect) -> None:
    with apart(Images, always_0, workers=1, mode="async", frames_per_batch=100) as collector:
        next(collector)
        tracemalloc.start()
        try:
            kept = [next(collector)["next", "reward"] for _ in range(20)]
            gc.collect()
            assert tracemalloc.get_traced_memory()[0] < 10_000_000
        finally:
            tracemalloc.stop()
    assert all(len(rewards.flatten()) == 100 for rewards in kept)


def traced_after(collector: Collector, batches: int) -> int:
    """Return the bytes that Python holds after this many more batches."""
    sum(1 for _ in islice(collector, batches))
    gc.collect()
    return tracemalloc.get_traced_memory()[0]
