"""The space that jobs reserve on NATS: little at first, more once they need it."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from nats.js.errors import APIError
from tests.control.wire.jwt_nats import NatsInJwtMode, Site
from tests.sdk.nats import numbered_batches

import rollfleet
from rollfleet.nats.link import Link
from rollfleet.nats.worker_transport import NatsWorkerTransport
from rollfleet_api.job import CollectorJob
from rollfleet_api.permissions import Role
from rollfleet_api.streams import Space, subjects_of
from rollfleet_operator.errors import NatsFull
from rollfleet_operator.nats import space
from rollfleet_operator.nats_port import JobKey

JOBS = 50
MIB = 1 << 20
CHART_MIB = 18 << 10


@pytest.fixture
def nats_server(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[NatsInJwtMode]:
    """A server that stores as many MiB as the test's parameter says, else as many as with the chart's defaults."""
    folder = tmp_path / "nats"
    folder.mkdir()
    server = NatsInJwtMode(folder, store_bytes=getattr(request, "param", CHART_MIB) * MIB)
    yield server
    server.stop()


async def reserved(site: Site, job: CollectorJob) -> tuple[int, int]:
    """The MiB that the job's streams reserve: batches and state."""
    subjects = subjects_of(job)
    async with site.administrator(subjects) as client:
        names = (subjects.batches_stream, subjects.state_stream)
        batches, state = [json.loads((await client.request(f"$JS.API.STREAM.INFO.{name}")).data) for name in names]
    return batches["config"]["max_bytes"] // MIB, state["config"]["max_bytes"] // MIB


async def send(site: Site, job: CollectorJob, chunks: range) -> None:
    async with site.guest(job, Role.WORKER) as worker:
        for chunk in chunks:
            await worker.client.jetstream().publish(subjects_of(job).batch_chunk(0, chunk), bytes(MIB - 1000))


async def test_fifty_default_jobs_fit_into_the_defaults_of_the_chart(site: Site) -> None:
    jobs = [site.job(f"job-{index}", uid=f"uid-{index}", delivery={}) for index in range(JOBS)]
    for job in jobs:
        await site.nats.provision(job)
    assert await reserved(site, jobs[-1]) == (128, 64)


async def test_batches_that_use_half_of_their_space_get_twice_as_much_up_to_max_bytes(site: Site) -> None:
    job = await site.start(delivery={"maxBytes": "200Mi"})
    await send(site, job, range(63))
    assert not await site.nats.grow(job)
    await send(site, job, range(63, 65))
    assert await site.nats.grow(job)
    assert await reserved(site, job) == (200, 64)
    await send(site, job, range(65, 130))
    assert not await site.nats.grow(job)


async def test_weights_that_use_half_of_the_state_get_twice_as_much(site: Site) -> None:
    job = await site.start()
    async with site.guest(job, Role.LEARNER) as learner:
        for chunk in range(33):
            subject = subjects_of(job).weights_of(None).chunk(1, chunk)
            await learner.client.jetstream().publish(subject, bytes(MIB - 1000))
    assert await site.nats.grow(job)
    assert await reserved(site, job) == (4, 128)


async def test_job_that_drops_its_oldest_batches_has_all_of_max_bytes_at_once(site: Site) -> None:
    job = await site.start(delivery={"whenFull": "DropOldest"})
    assert await reserved(site, job) == (4096, 64)


async def test_restarted_operator_takes_no_space_away(site: Site) -> None:
    job = await site.start(delivery={})
    await send(site, job, range(65))
    await site.nats.grow(job)
    await site.nats_with().provision(job)
    assert await reserved(site, job) == (256, 64)


async def test_state_at_its_bound_refuses_new_subjects_and_renews_known_ones(site: Site) -> None:
    job = site.job(workers=2)
    subjects = subjects_of(job)
    await site.nats_with(state_bytes=64 << 20).provision(job)
    async with site.administrator(subjects) as client:
        await client.jetstream().publish(subjects.control, b"older")
        for number in range(3000):  # more than there may be
            await client.publish(f"{subjects.prefix}.leases.x{number}", b"")
        with pytest.raises(APIError, match="maximum messages exceeded"):
            await client.jetstream().publish(subjects.lease(0), b"")
        await client.jetstream().publish(subjects.control, b"newer")
    assert await site.stored(job, subjects.control) == b"newer"


@pytest.mark.parametrize("nats_server", [300], indirect=True)
async def test_refused_job_learns_how_much_is_free_and_which_jobs_have_the_rest(site: Site) -> None:
    await site.nats.provision(site.job("small"))
    await site.nats.provision(site.job("first", namespace="team-a", delivery={}))
    with pytest.raises(NatsFull, match=r"40 MiB of 300 MiB are free; jobs hold team-a/first 192 MiB, default/small 68"):
        await site.nats.provision(site.job("second", delivery={}))
    await site.nats.deprovision(JobKey("team-a", "first"))
    await site.nats.provision(site.job("second", delivery={}))


@pytest.mark.parametrize("nats_server", [250], indirect=True)
async def test_job_that_gets_no_more_space_waits_and_goes_on_when_batches_are_taken(site: Site) -> None:
    job = await site.start(delivery={})
    await send(site, job, range(120))
    with pytest.raises(NatsFull, match="58 MiB of 250 MiB are free"):
        await site.nats.grow(job)
    with pytest.raises(APIError, match="maximum bytes exceeded"):  # which a worker waits for to end
        await send(site, job, range(120, 140))
    async with site.administrator(subjects_of(job)) as client:
        await client.jsm().purge_stream(subjects_of(job).batches_stream)
    await send(site, job, range(120, 140))


async def test_batch_and_weights_above_the_first_space_arrive_once_the_operator_has_made_more(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(space, "FIRST", Space(batches=2 * MIB, state=2 * MIB))
    job = await site.start(delivery={})
    link = await asyncio.to_thread(Link, site.address(job, Role.WORKER), role=Role.WORKER)
    worker = await asyncio.to_thread(NatsWorkerTransport, link, 0)
    policy = torch.nn.Linear(1000, 1000)
    learner = site.address(job, Role.LEARNER)
    learner_at: dict[str, Any] = {"address": learner.url, "credentials": learner.credentials}
    collector = await asyncio.to_thread(rollfleet.connect, job.key, policy, **learner_at)
    try:
        assert (await site.stored(job, subjects_of(job).manifest)) == b""
        sent = worker.send(numbered_batches.fragment(3.0, size=1_000_000), numbered_batches.META).stored
        received = asyncio.create_task(asyncio.to_thread(numbered_batches.values, collector, 1))
        while not (received.done() and sent.done() and await site.stored(job, subjects_of(job).manifest)):
            await site.nats.grow(job)
            await asyncio.wait({received}, timeout=0.1)
        assert received.result() == [3.0]
        assert min(await reserved(site, job)) > 2
    finally:  # a thread that waits for a batch would keep the event loop from closing
        await asyncio.to_thread(collector.detach)
        await asyncio.to_thread(worker.close)
