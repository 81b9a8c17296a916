"""A NATS that comes back empty: the operator restores its data, and all processes continue."""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar

import pytest
from tests.control.wire.jwt_nats import NatsInJwtMode, Site

from rollfleet.nats.link import Link
from rollfleet_api.job import CollectorJob
from rollfleet_api.messages import Control, LearnerPhase, LearnerStatus, Lease, pack
from rollfleet_api.permissions import Role
from rollfleet_api.streams import subjects_of
from rollfleet_operator.errors import NatsUnavailable

T = TypeVar("T")
LEASE = Lease(incarnation=4, host="node-1", pid=7)
CONTROL = Control(session=6, phase=LearnerPhase.RUN, round=11, version=9)
LEARNER = LearnerStatus(session=6, version=9, applied_version=8, frames=640, batches=10, time_s=1.0)


def lose_everything(nats_server: NatsInJwtMode) -> None:
    nats_server.kill()
    nats_server.start_again(empty=True)


async def noticed(site: Site, job: CollectorJob) -> None:
    """Wait until the operator has noticed that it hears nothing of the job."""
    with suppress(NatsUnavailable):
        async with asyncio.timeout(10):
            while True:
                await site.nats.heartbeats(job)
                await blocking(lambda: time.sleep(0.01))


async def running(site: Site) -> CollectorJob:
    """A job of which the operator has heard: some of it was there before it listened, the rest came afterwards."""
    job = await site.start(workers=2)
    subjects = subjects_of(job)
    await site.speak(job, Role.WORKER, {subjects.lease(1): LEASE})
    await site.nats.heartbeats(job)
    await site.speak(job, Role.LEARNER, {subjects.control: CONTROL, subjects.learner: LEARNER})
    async with asyncio.timeout(5):
        while (await site.nats.heartbeats(job)).learner != LEARNER:
            await site.stored(job, subjects.spec)  # a round trip: it is on its way
    return job


async def test_lost_state_for_restarting_processes_is_restored(nats_server: NatsInJwtMode, site: Site) -> None:
    job = await running(site)
    subjects = subjects_of(job)
    for _ in range(2):
        lose_everything(nats_server)
        await noticed(site, job)
        await site.nats.provision(job)
        assert await site.stored(job, subjects.lease(1)) == pack(LEASE)
        assert await site.stored(job, subjects.control) == pack(CONTROL)
        assert (await site.nats.heartbeats(job)).learner == LEARNER


async def test_message_from_before_the_restore_is_kept(nats_server: NatsInJwtMode, site: Site) -> None:
    job = await running(site)
    lose_everything(nats_server)
    await site.nats_with().provision(job)
    newer = replace(CONTROL, round=12)
    await site.speak(job, Role.LEARNER, {subjects_of(job).control: newer})
    await site.nats.provision(job)
    assert await site.stored(job, subjects_of(job).control) == pack(newer)


async def test_later_job_of_the_same_name_gets_nothing_of_the_first(nats_server: NatsInJwtMode, site: Site) -> None:
    first = await running(site)
    lose_everything(nats_server)
    await noticed(site, first)
    second = await site.start(uid="uid-2", workers=2)
    assert await site.stored(second, subjects_of(second).control) == b""
    assert not (await site.nats.heartbeats(second)).learner


async def test_the_lost_stream_of_an_existing_account_is_recreated(nats_server: NatsInJwtMode, site: Site) -> None:
    job = await site.start()
    await site.speak(job, Role.LEARNER, {subjects_of(job).control: CONTROL})
    assert (await site.nats.heartbeats(job)).control == CONTROL
    nats_server.kill()
    nats_server.start_again()
    for _ in range(2):
        await noticed(site, job)
    await site.nats.provision(job)
    assert (await site.nats.heartbeats(job)).control == CONTROL


@pytest.mark.parametrize("role", [Role.WORKER, Role.LEARNER])  # those that store anything
async def test_refused_processes_continue_when_the_accounts_are_back(
    role: Role, nats_server: NatsInJwtMode, site: Site
) -> None:
    job = site.job()
    subjects = subjects_of(job)
    subject = subjects.worker(0) if role is Role.WORKER else subjects.learner
    await site.nats.provision(job)
    address = site.address(job, role)
    link = await asyncio.to_thread(lambda: Link(address, role=role))
    try:
        await blocking(lambda: link.call(link.store(subject, b"before"), timeout_s=10))
        lose_everything(nats_server)
        async with asyncio.timeout(20):
            while "authorization" not in str(link._last_error).lower():
                await blocking(lambda: time.sleep(0.01))
        await site.nats.provision(job)
        await blocking(lambda: link.call(link.store(subject, b"after"), timeout_s=20))
        assert await site.stored(job, subject) == b"after"
    finally:
        await blocking(link.close)


async def blocking(call: Callable[[], T]) -> T:
    return await asyncio.to_thread(call)
