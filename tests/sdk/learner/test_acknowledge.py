"""`acknowledge="manual"`, over a real nats-server."""

from itertools import islice
from typing import Any

import pytest
from tests.job_server import Connect, Server
from tests.sdk.nats.numbered_batches import SYNC

from rollfleet.errors import JobInvalid

AHEAD: dict[str, Any] = {"policy": {"random": {}}, "delivery": {"maxBatchesAhead": 3}}


def test_in_mode_sync_an_unacknowledged_batch_is_too_old_for_the_successor(connect: Connect, server: Server) -> None:
    server.start_workers(**SYNC | AHEAD | {"workers": 1})
    first = connect(acknowledge="manual")
    list(islice(first, 2))
    first.ack()
    list(islice(first, 2))
    first.detach()
    successor = connect(acknowledge="manual")
    list(islice(successor, 2))
    assert successor.stats().stale == 2
    successor.shutdown()


@pytest.mark.parametrize("mode", ["Sync", "Async"])
def test_a_loop_that_never_acknowledges_raises(mode: str, connect: Connect, server: Server) -> None:
    server.start_workers(**SYNC | AHEAD | {"mode": mode})
    collector = connect(acknowledge="manual")
    with pytest.raises(JobInvalid, match=r"are not acknowledged, and a worker may be 3 ahead .*call ack\(\)"):
        list(islice(collector, 9))  # of each worker 3, and one that it collected meanwhile
    collector.ack()
    assert next(collector).numel() == 32
    collector.shutdown()


@pytest.mark.parametrize("mode", ["Sync", "Async"])
def test_unacknowledged_frames_count_once_the_successor_has_them(mode: str, connect: Connect, server: Server) -> None:
    server.start_workers(**SYNC | AHEAD | {"mode": mode, "workers": 1})
    first = connect(acknowledge="manual")
    list(islice(first, 2))
    first.ack()
    next(first)
    assert (first.frames, first.batches) == (96, 3)
    first.detach()
    successor = connect()
    assert (successor.frames, successor.batches) == (64, 2)
    successor.shutdown()
