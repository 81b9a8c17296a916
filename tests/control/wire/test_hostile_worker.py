"""A client with one worker's credentials does its worst: the server stays small, and the job's batches still flow."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from tests.attacks import ATTACKS, Attack
from tests.control.wire.job_nats import Site
from tests.sdk.nats.numbered_batches import META, fragment

import rollfleet
from rollfleet.nats.link import Link
from rollfleet.nats.worker_transport import NatsWorkerTransport
from rollfleet_api.address import Address
from rollfleet_api.job import CollectorJob
from rollfleet_api.permissions import Role
from rollfleet_api.publication import subjects_of

MOST_MIB = 400  # of the server's memory
READ_EVERY = 500  # messages between two looks at what the server has answered


@pytest.fixture(autouse=True)
def memory_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Go collect garbage early, as the chart does: else the test would measure garbage."""
    monkeypatch.setenv("GOMEMLIMIT", "256MiB")


@asynccontextmanager
async def delivering(site: Site, job: CollectorJob) -> AsyncIterator[None]:
    """The job's batches flow, one after the other, all the time, and without a gap."""
    learner, worker = (site.address(job, role) for role in (Role.LEARNER, Role.WORKER))
    begun, enough = threading.Event(), threading.Event()
    flowing = asyncio.create_task(asyncio.to_thread(lambda: deliver(job, learner, worker, begun, enough)))
    try:
        assert await asyncio.to_thread(begun.wait, 60)
        yield
    finally:
        enough.set()
        await flowing


def deliver(
    job: CollectorJob, at_learner: Address, at_worker: Address, begun: threading.Event, enough: threading.Event
) -> None:
    link = Link(at_worker, role=Role.WORKER)
    transport, number = NatsWorkerTransport(link, 0, job), 0
    try:
        with rollfleet.connect(job, address=at_learner.url, credentials=at_learner.credentials) as collector:
            while not enough.is_set():
                sending = transport.send(fragment(float(number)), META)
                assert float(next(collector)["observation"].mean()) == number
                sending.delivered.result(30)
                number += 1
                begun.set()
            stats = collector.stats()
            assert (stats.missed, stats.repeated) == (0, 0)
    finally:
        transport.close()


async def does_its_worst(site: Site, job: CollectorJob, attack: Attack, times: int) -> None:
    async with site.guest(job, Role.WORKER) as worker:
        for number in range(times):
            await attack(worker.client, subjects_of(job), number)
            if number % READ_EVERY == 0:
                await worker.flush()
        await worker.flush()


@pytest.mark.parametrize(("attack", "times"), ATTACKS, ids=[attack.__name__ for attack, _ in ATTACKS])
async def test_one_worker_takes_little_of_the_server(attack: Attack, times: int, site: Site) -> None:
    job = await site.start(workers=2, mode="Async")
    async with delivering(site, job):
        await does_its_worst(site, job, attack, times)
    assert site.server(job).peak_mib < MOST_MIB
