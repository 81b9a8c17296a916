"""`acknowledge="manual"`, over a real nats-server."""

from itertools import islice
from typing import Any

import pytest
from tests.job_server import Connect, Server

from rollfleet import Collector
from rollfleet.errors import JobInvalid

SPEC: dict[str, Any] = {
    "env": {"id": "CartPole-v1", "numEnvs": 2},
    "policy": {"random": {}},
    "collect": {"framesPerBatch": 32},
    "delivery": {"maxBatchesAhead": 3},
}


def trajectories(collector: Collector, batches: int) -> list[list[int]]:
    return [batch["collector", "traj_ids"].flatten().tolist() for batch in islice(collector, batches)]


@pytest.mark.parametrize("mode", ["Sync", "Async"])
def test_only_unacknowledged_batches_come_again_to_the_successor(mode: str, connect: Connect, server: Server) -> None:
    server.start_workers(**SPEC | {"mode": mode, "workers": 1})
    first = connect(acknowledge="manual")
    stored = trajectories(first, 2)
    first.ack()
    held = trajectories(first, 2)
    first.detach()
    successor = connect(acknowledge="manual")
    again = trajectories(successor, 2)
    if mode == "Async":
        assert again == held
    else:  # fragments for another learner's rounds are too old
        assert successor.stats().stale == 2
    assert not {each for ids in again for each in ids} <= {each for ids in stored for each in ids}
    successor.shutdown()


@pytest.mark.parametrize("mode", ["Sync", "Async"])
def test_a_loop_that_never_acknowledges_raises(mode: str, connect: Connect, server: Server) -> None:
    server.start_workers(**SPEC | {"mode": mode, "workers": 2})
    collector = connect(acknowledge="manual")
    with pytest.raises(JobInvalid, match=r"are not acknowledged, and a worker may be 3 ahead .*call ack\(\)"):
        list(islice(collector, 9))  # of each worker 3, and one that it collected meanwhile
    collector.ack()
    assert next(collector).numel() == 32
    collector.shutdown()
