"""A NATS that comes back empty: the operator restores its data, and all processes continue."""

import asyncio
from contextlib import suppress
from dataclasses import replace

import pytest
from nats.errors import NoRespondersError
from tests.control.wire.job_nats import Site

from rollfleet_api.job import CollectorJob
from rollfleet_api.messages import Control, LearnerPhase, LearnerStatus, Lease, pack
from rollfleet_api.nats_server import OWNER
from rollfleet_api.permissions import Role
from rollfleet_api.streams import subjects_of
from rollfleet_operator.errors import NatsUnavailable
from rollfleet_operator.nats_port import JobKey

LEASE = Lease(incarnation=4, host="node-1", pid=7)
CONTROL = Control(session=6, phase=LearnerPhase.RUN, round=11, version=9)
LEARNER = LearnerStatus(session=6, version=9, applied_version=8, frames=640, batches=10, time_s=1.0)


def lose_everything(site: Site, job: CollectorJob) -> None:
    site.server(job).kill()
    site.server(job).start_again()


async def is_published_again(site: Site, job: CollectorJob) -> None:
    """Look at the job as the operator does, until its NATS has it."""
    async with asyncio.timeout(10):
        while True:
            with suppress(NoRespondersError, NatsUnavailable):  # of the lost connection
                await site.nats.heartbeats(job)
                await site.stored(job, subjects_of(job).spec)
                return


async def running(site: Site) -> CollectorJob:
    """A job of which the operator has heard."""
    job = await site.start(workers=2)
    subjects = subjects_of(job)
    await site.speak(job, Role.WORKER, {subjects.lease(1): LEASE})
    await site.speak(job, Role.LEARNER, {subjects.control: CONTROL, subjects.learner: LEARNER})
    await site.heard(job, lambda found: (found.control, found.learner) == (CONTROL, LEARNER))
    return job


async def test_lost_state_for_restarting_processes_is_restored(site: Site) -> None:
    job = await running(site)
    subjects = subjects_of(job)
    for _ in range(2):
        lose_everything(site, job)
        await is_published_again(site, job)
        assert await site.stored(job, subjects.lease(1)) == pack(LEASE)
        assert await site.stored(job, subjects.control) == pack(CONTROL)
        assert (await site.nats.heartbeats(job)).learner == LEARNER


async def test_message_from_before_the_restore_is_kept(site: Site) -> None:
    job = await running(site)
    lose_everything(site, job)
    await site.another_operator().heartbeats(job)
    newer = replace(CONTROL, round=12)
    await site.speak(job, Role.LEARNER, {subjects_of(job).control: newer})
    await is_published_again(site, job)
    assert await site.stored(job, subjects_of(job).control) == pack(newer)


async def test_later_job_of_the_same_name_gets_nothing_of_the_first(site: Site) -> None:
    first = await running(site)
    site.without_server(first)
    second = await site.start(uid="uid-2", workers=2)
    assert await site.stored(second, subjects_of(second).control) == b""
    assert not (await site.nats.heartbeats(second)).learner


async def test_a_server_that_was_taken_away_comes_back_with_the_state(site: Site) -> None:
    """As a job is suspended and resumed."""
    job = await running(site)
    await site.nats.disconnect(JobKey("default", "a"))
    site.without_server(job)
    site.server(job)
    await site.nats.heartbeats(job)
    assert await site.stored(job, subjects_of(job).control) == pack(CONTROL)


async def test_a_deleted_stream_is_created_again_and_heard(site: Site) -> None:
    job = await running(site)
    async with site.guest(job, OWNER) as owner:
        await owner.client.jsm().delete_stream(subjects_of(job).state_stream)
    with pytest.raises(NatsUnavailable):
        await site.nats.heartbeats(job)
    await is_published_again(site, job)
    newer = replace(CONTROL, round=12)
    await site.speak(job, Role.LEARNER, {subjects_of(job).control: newer})
    await site.heard(job, lambda found: found.control == newer)
