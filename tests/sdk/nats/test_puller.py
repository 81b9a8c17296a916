"""Pull requests that no server answers."""

import logging
import threading

import pytest
from tests.job_server import Server

from rollfleet.nats.puller import OPEN_REQUESTS, Puller


def test_a_consumer_without_a_server_is_asked_once_at_a_time(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    link, unavailable = server.link(), threading.Semaphore(0)
    puller = Puller(
        link.client,
        stream="none",
        consumer="none",
        on_message=lambda _: None,
        on_deleted=lambda: None,
        on_unavailable=unavailable.release,
        paused=lambda: False,
    )
    with caplog.at_level(logging.WARNING):
        pulling = link.spawn(puller.run())
        for rounds in (1, 2, 3):
            assert unavailable.acquire(timeout=10)
            link.call(link.flush())  # all answers have come
            assert puller._count <= rounds * OPEN_REQUESTS
            assert not unavailable.acquire(blocking=False)
            link.soon(puller.resume)
    pulling.cancel()
    assert not caplog.records
