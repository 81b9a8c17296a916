"""What the operator makes on a real nats-server, and takes away again."""

import re
from dataclasses import replace

import pytest
from nats.js.errors import APIError
from tests.control.wire.jwt_nats import NatsInJwtMode, Site

from rollfleet_api.job import CollectorJob
from rollfleet_api.messages import Control, LearnerPhase, LearnerStatus, WorkerStatus
from rollfleet_api.permissions import Role
from rollfleet_api.streams import state_stream, subjects_of
from rollfleet_operator.errors import NatsUnavailable
from rollfleet_operator.nats_port import JobKey

WORKER = WorkerStatus(worker=1, incarnation=0)
LEARNER = LearnerStatus(session=1, version=3, applied_version=2, frames=64, batches=2, time_s=1.0)
CONTROL = Control(session=1, phase=LearnerPhase.RUN, round=0, version=3)


async def test_a_job_gets_its_stream_and_its_spec(site: Site) -> None:
    job = await site.start()
    subjects = subjects_of(job)
    async with site.administrator(subjects) as client:
        (stream,) = await client.jsm().streams_info()
    assert (stream.config.name, stream.config.storage) == (subjects.state_stream, "memory")
    assert CollectorJob.model_validate_json(await site.stored(job, subjects.spec)) == job
    assert await site.nats.provisioned() == {JobKey("default", "a")}


async def test_a_job_that_reserves_most_of_the_memory_may_change(site: Site) -> None:
    nats = site.nats_with(state_bytes=2500 << 20)  # twice of it is more than there is
    await nats.provision(site.job())
    await nats.provision(site.job(workers=3))


async def test_a_job_without_memory_on_nats_is_refused_until_another_is_gone(site: Site) -> None:
    nats = site.nats_with(state_bytes=2500 << 20)
    await nats.provision(site.job("first"))
    with pytest.raises(NatsUnavailable, match=r"insufficient memory resources available; .*`nats.stateBytes`"):
        await nats.provision(site.job("second"))
    await nats.deprovision(JobKey("default", "first"))
    await nats.provision(site.job("second"))


async def test_state_at_its_bound_refuses_new_subjects_and_renews_known_ones(site: Site) -> None:
    job = await site.start(workers=2)
    subjects = subjects_of(job)
    async with site.administrator(subjects) as client:
        await client.jetstream().publish(subjects.control, b"older")
        for number in range(3000):  # more than there may be
            await client.publish(f"{subjects.prefix}.leases.x{number}", b"")
        with pytest.raises(APIError, match="maximum messages exceeded"):
            await client.jetstream().publish(subjects.lease(0), b"")
        await client.jetstream().publish(subjects.control, b"newer")
    assert await site.stored(job, subjects.control) == b"newer"


async def test_provisioning_again_changes_nothing(site: Site) -> None:
    job = await site.start()
    async with site.guest(job, Role.WORKER) as worker:
        heard = await worker.client.subscribe(subjects_of(job).spec)
        await worker.flush()
        await site.nats_with().provision(job)  # a restarted operator
        await site.nats.provision(job)
        await worker.flush()
        assert heard.pending_msgs == 0
        assert worker.client.is_connected


async def test_job_changes_reach_its_stream_and_workers_stay_connected(site: Site) -> None:
    before = await site.start(workers=1)
    async with site.guest(before, Role.WORKER) as worker:
        heard = await worker.client.subscribe(subjects_of(before).spec)
        await worker.flush()
        after = await site.start(workers=40)
        assert CollectorJob.model_validate_json((await heard.next_msg(5)).data) == after
        assert worker.client.is_connected
    async with site.administrator(subjects_of(after)) as client:
        stream = await client.jsm().stream_info(subjects_of(after).state_stream)
        assert stream.config.max_msgs == state_stream(after, site.server.settings.state_bytes)["max_msgs"]


async def test_a_server_that_starts_again_takes_the_jobs_credentials_without_the_operator(
    nats_server: NatsInJwtMode, site: Site
) -> None:
    job = await site.start()
    nats_server.kill()
    nats_server.start_again()
    async with site.guest(job, Role.LEARNER) as learner:
        await learner.flush()


async def test_deprovisioned_job_leaves_nothing(nats_server: NatsInJwtMode, site: Site) -> None:
    job, other = site.job(), site.job("other")
    for each in (job, other):
        await site.nats.provision(each)
    await site.speak(job, Role.WORKER, {subjects_of(job).worker(1): WORKER})
    await site.nats.deprovision(JobKey("default", "a"))
    await site.nats.deprovision(JobKey("default", "a"))  # nothing is there: no error
    assert await site.nats.provisioned() == {JobKey("default", "other")}
    assert len(list((nats_server.folder / "accounts").glob("*"))) == 2  # the other's, and the system's
    async with site.administrator(subjects_of(other)) as client:
        assert [stream.config.name for stream in await client.jsm().streams_info()] == [subjects_of(other).state_stream]


async def test_another_job_of_the_same_name_starts_with_nothing_of_the_first(site: Site) -> None:
    first, second = site.job(uid="uid-1"), site.job(uid="uid-2")
    await site.nats.provision(first)
    await site.speak(first, Role.LEARNER, {subjects_of(first).learner: LEARNER})
    assert (await site.nats.heartbeats(first)).learner == LEARNER
    await site.nats.provision(second)
    heard = await site.nats.heartbeats(second)
    assert heard.learner is None
    assert not heard.workers


async def test_message_published_during_the_subscription_is_known_at_the_next_reconciliation(site: Site) -> None:
    job = await site.start(workers=2)
    subjects = subjects_of(job)
    await site.speak(job, Role.LEARNER, {subjects.control: CONTROL})
    assert (await site.nats.heartbeats(job)).control == CONTROL
    newer = replace(CONTROL, phase=LearnerPhase.COMPLETE)
    await site.deafen()
    await site.speak(job, Role.LEARNER, {subjects.control: newer})
    assert (await site.nats.heartbeats(job)).control == newer


async def test_heartbeats_of_more_workers_than_one_request_returns_are_all_read(site: Site) -> None:
    job = await site.start(workers=2100)
    subjects = subjects_of(job)
    result = {subjects.worker(index): WorkerStatus(worker=index, incarnation=0) for index in range(0, 2100, 3)}
    await site.speak(job, Role.WORKER, result)
    assert set((await site.nats.heartbeats(job)).workers) == set(range(0, 2100, 3))


async def test_invalid_heartbeat_is_ignored(site: Site) -> None:
    job = await site.start(workers=3)
    subjects = subjects_of(job)
    async with site.guest(job, Role.WORKER) as worker:
        await worker.client.jetstream().publish(subjects.worker(0), b"\xff{")
    await site.speak(job, Role.WORKER, {subjects.worker(2): WORKER, subjects.worker(1): WORKER})
    assert (await site.nats.heartbeats(job)).workers == {1: WORKER}  # the one that poses as another is not there


async def test_every_call_reports_within_ten_seconds_that_nats_is_away(nats_server: NatsInJwtMode, site: Site) -> None:
    nats_server.kill()
    job = site.job()
    for attempt in (
        site.nats.provision(job),
        site.nats.deprovision(JobKey("default", "a")),
        site.nats.provisioned(),
        site.nats.heartbeats(job),
    ):
        with pytest.raises(NatsUnavailable, match=re.escape(nats_server.url)):
            await attempt
    nats_server.start_again()


async def test_nats_without_a_full_resolver_is_reported(nats_server: NatsInJwtMode, site: Site) -> None:
    nats_server.kill()
    nats_server.start_again(resolver="MEMORY")
    with pytest.raises(NatsUnavailable, match=r"resolver: \{type: full"):
        await site.nats.provision(site.job())
