"""Space for batches: a batch that can never fit is an error with figures; dropped batches are counted."""

import queue
import time
from typing import Any

import pytest
from nats.aio.msg import Msg
from tests.job_server import Connect, Server
from tests.sdk.nats import numbered_batches
from tests.sdk.nats.numbered_batches import META, values

from rollfleet.data.batch import Fragment
from rollfleet.errors import JetStreamRefused, JobInvalid
from rollfleet.nats.link import FULL_WAIT_S
from rollfleet.nats.state import read_state
from rollfleet.nats.worker_transport import NatsWorkerTransport
from rollfleet_api.messages import LearnerStatus
from rollfleet_api.permissions import Role

ASYNC: dict[str, Any] = {"mode": "Async", "workers": 2, "policy": {"random": {}}}


def fragment(nbytes: int, value: float = 0.0) -> Fragment:
    """Make a batch of two environments and one step, of about this size."""
    return numbered_batches.fragment(value, steps=1, size=nbytes // 16)


@pytest.mark.parametrize("nbytes", [5_000_000, 1_200_000], ids=["one does not fit", "one of each worker does not fit"])
def test_a_batch_that_can_never_fit_is_an_error_with_sizes_and_advice(server: Server, nbytes: int) -> None:
    server.provision(**ASYNC | {"delivery": {"maxBytes": "2Mi"}})
    transport = NatsWorkerTransport(server.link(Role.WORKER), 0)
    advice = r"a batch has [\d,]+ bytes, .* 2 workers .*`delivery.maxBytes: 2Mi`, 2,097,152 bytes: write `delivery.maxB"
    with pytest.raises(JobInvalid, match=advice):
        transport.send(fragment(nbytes), META).stored.result(10)


def test_a_batch_that_just_fits_goes_through(server: Server, connect: Connect) -> None:
    server.provision(**ASYNC | {"delivery": {"maxBytes": "2Mi"}})
    transport = NatsWorkerTransport(server.link(Role.WORKER), 0)
    transport.send(fragment(1_000_000, 7.0), META).stored.result(10)
    assert values(connect(), 1) == [7.0]


def test_a_job_that_is_too_large_for_nats_is_refused_with_advice(server: Server) -> None:
    with pytest.raises(JetStreamRefused, match=r"`delivery.maxBytes: 900Ti` in `delivery.storage: File`: lower it"):
        server.provision(**ASYNC | {"delivery": {"maxBytes": "900Ti"}})


def test_a_job_that_holds_most_of_the_disk_can_change(server: Server) -> None:
    delivery = {"maxBytes": "600Gi"}  # twice of it is more than there is
    server.provision(**ASYNC | {"delivery": delivery})
    server.provision(**ASYNC | {"delivery": delivery | {"maxBatchesAhead": 2}, "workers": 3})


def test_the_oldest_batches_that_were_dropped_for_newer_ones_are_counted(server: Server, connect: Connect) -> None:
    server.provision(**ASYNC | {"delivery": {"whenFull": "DropOldest", "maxBatchesAhead": 2}})
    transport = NatsWorkerTransport(server.link(Role.WORKER), 0)
    collector = connect()
    transport.send(fragment(100, 0.0), META).stored.result(10)
    next(collector)
    for number in range(1, 21):  # messages on their way to a slow learner are bounded
        transport.send(fragment(6_000_000, float(number)), META).stored.result(10)
    seen: list[float] = []
    while seen[-1:] != [20.0]:
        seen += values(collector, 1)
    assert seen == sorted(seen)
    assert len(seen) < 20
    assert collector.stats().missed == 20 - len(seen)
    reader = server.link()
    while (status := reader.call(read_state(reader, server.subjects.learner, LearnerStatus), timeout_s=5)) is None or (
        status.batches < 1 + len(seen)
    ):
        pass
    assert status.dropped == 20 - len(seen)


def test_a_learner_does_not_wait_for_batches_dropped_before_it_connected(server: Server, connect: Connect) -> None:
    server.provision(**ASYNC | {"delivery": {"whenFull": "DropOldest", "maxBatchesAhead": 2}})
    transport = NatsWorkerTransport(server.link(Role.WORKER), 0)
    for number in range(8):
        transport.send(fragment(3_000_000, float(number)), META).stored.result(10)
    collector = connect()
    assert values(collector, 2) == [6.0, 7.0]
    transport.send(fragment(100, 8.0), META).stored.result(10)
    assert values(collector, 1) == [8.0]


def test_a_worker_ahead_of_its_learner_retries_at_growing_intervals(server: Server, connect: Connect) -> None:
    server.provision(**ASYNC | {"delivery": {"maxBatchesAhead": 1}})
    link, asked = server.link(), queue.SimpleQueue[float]()

    async def note(_: Msg) -> None:
        asked.put(time.monotonic())

    link.call(link.client.subscribe(server.subjects.batch_chunk(0, 0), cb=note))
    link.call(link.flush())
    transport = NatsWorkerTransport(server.link(Role.WORKER), 0)
    transport.send(fragment(100, 0.0), META).stored.result(10)
    waiting = transport.send(fragment(100, 1.0), META)
    _, *times = [asked.get(timeout=20) for _ in range(6)]
    assert times[-1] - times[0] > 5 * FULL_WAIT_S  # each time twice as long: 15 of them, and load makes it more
    collector = connect()
    next(collector)
    waiting.stored.result(20)
    assert values(collector, 1) == [1.0]
