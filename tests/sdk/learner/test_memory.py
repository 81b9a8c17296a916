"""No memory is kept of past batches, except that the next ones lie in it. benchmarks/soak.py watches it for hours."""

import gc
import tracemalloc
from itertools import islice, pairwise

import pytest
from tests.job_server import Connect, Server, actor_critic

from rollfleet import Collector

WARM_UP, MEASURED = 200, 300
KEPT_BYTES_PER_BATCH = 100.0  # a forgotten future alone takes some 200


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("mode", ["Sync", "Async"])
def test_learner_and_workers_keep_no_memory_of_past_batches(
    mode: str, server: Server, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rollfleet.learner.episode_table.ROWS", 100)  # the table is full after the first batches
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


def traced_after(collector: Collector, batches: int) -> int:
    """Return the bytes that Python holds after this many more batches."""
    sum(1 for _ in islice(collector, batches))
    gc.collect()
    return tracemalloc.get_traced_memory()[0]
