"""New credentials reach a running program without an interruption."""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from typing import TypeAlias

import pytest
from nats.errors import Error as NatsError
from tests.control.wire.jwt_nats import Site

from rollfleet.nats.link import Link
from rollfleet_api.address import Address
from rollfleet_api.job import CollectorJob
from rollfleet_api.permissions import Role
from rollfleet_api.streams import subjects_of
from rollfleet_api.times import format_time
from rollfleet_operator import names
from rollfleet_operator.nats.server_port import NatsOnServer
from rollfleet_operator.nats.tokens import SEED_BYTES
from rollfleet_operator.nats.trust import new_keys, trust_configuration
from rollfleet_operator.nats_port import JobKey
from rollfleet_operator.rotation import REVOKED_AFTER_S

LIFE_S = 4
Renew: TypeAlias = Callable[[], object]
Work: TypeAlias = Callable[[Link, str, Renew], None]
LONG_S = 3600  # as `Site.credentials` makes them


def rotated(job: CollectorJob, ago_s: float) -> CollectorJob:
    """The job with a request, made some time ago, to renew its credentials."""
    annotations = {names.ROTATE: format_time(time.time() - ago_s)}
    return job.model_copy(update={"metadata": job.metadata.model_copy(update={"annotations": annotations})})


async def test_rotation_on_request_renews_credentials_of_before_it(site: Site) -> None:
    job, nats = site.job(), site.nats_with(life_s=LONG_S)
    for role in Role:
        before = nats.credentials(job, role)
        assert nats.credentials(rotated(job, -30), role) == before, "not yet"
        renewed = nats.credentials(rotated(job, 0), role)
        assert renewed not in (None, before)
        assert site.nats_with(life_s=LONG_S).credentials(rotated(job, 0), role) == renewed, "a restart"


async def test_credentials_of_before_a_rotation_open_nothing_once_pods_have_new_ones(site: Site) -> None:
    job = await site.start()
    subject = subjects_of(job).worker(0)
    old, new = site.credentials(job, Role.WORKER, ago_s=2000), site.credentials(job, Role.WORKER)
    async with site.guest(job, Role.WORKER, old) as before, site.guest(job, Role.WORKER, new) as after:
        await site.nats.provision(rotated(job, REVOKED_AFTER_S - 60))
        await before.client.jetstream().publish(subject, b"in the time to change over")
        await site.nats.provision(rotated(job, REVOKED_AFTER_S))
        await asyncio.wait_for(before.closed.wait(), 5)
        await after.client.jetstream().publish(subject, b"here")
    with pytest.raises((NatsError, TimeoutError)):
        async with site.guest(job, Role.WORKER, old):
            pass
    await site.nats.provision(rotated(job, REVOKED_AFTER_S))
    assert await site.nats.heartbeats(job) is not None, "the operator connects as a new user each time"


@pytest.mark.parametrize("then", ["a second request", "a request for later", "none"])
async def test_credentials_that_were_refused_stay_refused(site: Site, then: str) -> None:
    job = site.job()
    old = site.credentials(job, Role.WORKER, ago_s=2000)
    await site.nats.provision(rotated(job, REVOKED_AFTER_S))
    edited = {"a second request": rotated(job, 5), "a request for later": rotated(job, -3600), "none": job}
    await site.nats.provision(edited[then])
    with pytest.raises((NatsError, TimeoutError)):
        async with site.guest(job, Role.WORKER, old):
            pass
    async with site.guest(job, Role.WORKER) as guest:
        await guest.client.jetstream().publish(subjects_of(job).worker(0), b"here")


async def test_an_operator_that_renews_late_refuses_the_earlier_credentials_later(site: Site) -> None:
    job = await site.start()
    old = site.credentials(job, Role.WORKER, ago_s=2000)
    late = rotated(job, REVOKED_AFTER_S + 60)
    await site.nats.provision(late, renewed_s=time.time())
    async with site.guest(job, Role.WORKER, old) as guest:
        await guest.client.jetstream().publish(subjects_of(job).worker(0), b"until pods have the new ones")


async def test_new_seed_ends_all_earlier_credentials_and_serves_the_jobs_again(site: Site) -> None:
    job, server = site.job(), site.server
    await site.nats.provision(job)
    old = site.credentials(job, Role.WORKER)
    server.keys = new_keys(os.urandom(SEED_BYTES))
    (server.folder / "trust.conf").write_text(trust_configuration(server.keys, now_s=int(time.time())))
    server.kill()
    server.start_again()
    restarted = NatsOnServer(server.settings)
    try:
        await restarted.provision(job)
        assert await restarted.provisioned() == {JobKey("default", "a")}
        async with site.guest(job, Role.WORKER) as guest:
            await guest.client.jetstream().publish(subjects_of(job).worker(0), b"here")
        with pytest.raises((NatsError, TimeoutError)):
            async with site.guest(job, Role.WORKER, old):
                pass
    finally:
        await restarted.close()


@pytest.fixture
def with_short_credentials(site: Site) -> Callable[[Work], Awaitable[None]]:
    """Runs a function in a thread: with a link whose credentials expire soon, a subject, and what renews them."""

    async def run(use: Work) -> None:
        job = await site.start()
        file = site.file(site.credentials(job, Role.WORKER, life_s=LIFE_S))

        def work() -> None:
            link = Link(Address(url=site.server.url, job=job.key, credentials=file), role=Role.WORKER)
            try:
                use(link, subjects_of(job).worker(0), lambda: site.file(site.credentials(job, Role.WORKER)))
            finally:
                link.close()

        await asyncio.to_thread(work)

    return run


async def test_worker_continues_after_its_first_credentials_expired(
    with_short_credentials: Callable[[Work], Awaitable[None]],
) -> None:
    def work(link: Link, subject: str, renew: Renew) -> None:
        until = time.monotonic() + LIFE_S + 2
        renew()
        while time.monotonic() < until:
            link.call(link.store(subject, b"here"), timeout_s=3)

    await with_short_credentials(work)


async def test_worker_continues_when_expired_credentials_are_renewed(
    with_short_credentials: Callable[[Work], Awaitable[None]],
) -> None:
    """The operator may have been away for longer than they were valid."""

    def work(link: Link, subject: str, renew: Renew) -> None:
        storing = link.store(subject, b"here")
        until = time.monotonic() + LIFE_S + 5
        while link.client.is_connected:
            assert time.monotonic() < until
            time.sleep(0.05)
        renew()
        link.call(storing, timeout_s=10)

    await with_short_credentials(work)
