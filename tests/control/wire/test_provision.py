"""What the operator makes on a real nats-server, and takes away again."""

import re

import pytest
from tests.control.wire.job_nats import OrganisationNats, Site

from rollfleet_api.job import CollectorJob
from rollfleet_api.messages import Control, LearnerPhase, WorkerStatus, pack
from rollfleet_api.nats_server import OWNER
from rollfleet_api.permissions import Role
from rollfleet_api.streams import subjects_of
from rollfleet_operator.errors import NatsUnavailable
from rollfleet_operator.nats.server_port import NatsOnServers
from rollfleet_operator.nats_port import JobKey

WORKER = WorkerStatus(worker=1, incarnation=0)
CONTROL = Control(session=1, phase=LearnerPhase.RUN, round=0, version=3)


async def test_a_job_gets_its_stream_and_its_spec(site: Site) -> None:
    job = await site.start()
    subjects = subjects_of(job)
    async with site.guest(job, OWNER) as owner:
        (stream,) = await owner.client.jsm().streams_info()
    assert (stream.config.name, stream.config.storage) == (subjects.state_stream, "memory")
    assert CollectorJob.model_validate_json(await site.stored(job, subjects.spec)) == job


async def test_provisioning_again_changes_nothing(site: Site) -> None:
    job = await site.start()
    async with site.guest(job, Role.WORKER) as worker:
        heard = await worker.client.subscribe(subjects_of(job).spec)
        await worker.flush()
        await site.another_operator().heartbeats(job)  # a restarted operator
        await site.nats.heartbeats(job)
        await worker.flush()
        assert heard.pending_msgs == 0
        assert worker.client.is_connected


async def test_job_changes_reach_its_stream_and_workers_stay_connected(site: Site) -> None:
    before = await site.start(workers=1)
    async with site.guest(before, Role.WORKER) as worker:
        heard = await worker.client.subscribe(subjects_of(before).spec)
        await worker.flush()
        after = await site.start(generation=2, workers=40)
        assert CollectorJob.model_validate_json((await heard.next_msg(5)).data) == after
        assert worker.client.is_connected


async def test_an_organisations_nats_has_its_jobs_until_they_are_deleted(nats_server: OrganisationNats) -> None:
    access = nats_server.access
    nats, jobs = NatsOnServers(access), [Site.job("first"), Site.job("second", namespace="team-b")]

    async def streams() -> list[str]:
        client = await nats._jobs[JobKey("default", "first")].nats.client()
        return sorted(str(stream.config.name) for stream in await client.jsm().streams_info())

    for job in jobs:
        await nats.heartbeats(job)
        assert access.login(job, "worker") == access.login(job, "learner"), "one user for all"
    assert await streams() == sorted(subjects_of(job).state_stream for job in jobs)
    for _ in range(2):
        await nats.remove(JobKey("team-b", "second"))
    assert await streams() == [subjects_of(jobs[0]).state_stream]
    await nats.close()


async def test_what_could_not_be_removed_is_removed_at_the_next_attempt(nats_server: OrganisationNats) -> None:
    nats = NatsOnServers(nats_server.access)
    await nats.heartbeats(Site.job())
    nats_server.kill()
    for _ in range(2):
        with pytest.raises(NatsUnavailable):
            await nats.remove(JobKey("default", "a"))
    nats_server.start_again()
    await nats.remove(JobKey("default", "a"))
    await nats.close()


async def test_a_later_job_of_the_same_name_starts_empty_on_an_organisations_nats(
    nats_server: OrganisationNats,
) -> None:
    first, second = NatsOnServers(nats_server.access), NatsOnServers(nats_server.access)
    await first.heartbeats(Site.job(uid="uid-1"))
    client = await first._jobs[JobKey("default", "a")].nats.client()
    await client.jetstream().publish(subjects_of(Site.job()).control, pack(CONTROL))
    await second.heartbeats(Site.job(uid="uid-1"))
    assert (await second.heartbeats(Site.job(uid="uid-1"))).control == CONTROL, "the same job keeps its state"
    await second.heartbeats(Site.job(uid="uid-2"))
    assert (await second.heartbeats(Site.job(uid="uid-2"))).control is None
    for nats in (first, second):
        await nats.close()


async def test_heartbeats_of_many_workers_are_all_read_by_the_first_call(site: Site) -> None:
    job = await site.start(workers=2100)
    subjects = subjects_of(job)
    result = {subjects.worker(index): WorkerStatus(worker=index, incarnation=0) for index in range(0, 2100, 3)}
    await site.speak(job, Role.WORKER, result)
    assert set((await site.another_operator().heartbeats(job)).workers) == set(range(0, 2100, 3))


async def test_invalid_heartbeat_is_ignored(site: Site) -> None:
    job = await site.start(workers=3)
    subjects = subjects_of(job)
    async with site.guest(job, Role.WORKER) as worker:
        await worker.client.jetstream().publish(subjects.worker(0), b"\xff{")
    await site.speak(job, Role.WORKER, {subjects.worker(2): WORKER, subjects.worker(1): WORKER})
    heard = await site.another_operator().heartbeats(job)
    assert heard.workers == {1: WORKER}  # the one that poses as another is not there


async def test_nats_that_is_away_is_reported_within_ten_seconds(site: Site) -> None:
    job = site.job()
    server = site.server(job)
    server.kill()
    with pytest.raises(NatsUnavailable, match=re.escape(server.url)):
        await site.nats.heartbeats(job)
    server.start_again()
