"""Jobs that come and go: what NATS keeps of them, and how it answers health checks afterwards."""

import asyncio
import threading
import urllib.request
from contextlib import closing
from pathlib import Path

import pytest
from tests.control.wire.jwt_nats import NatsInJwtMode, Site
from tests.waiting import wait_until

import rollfleet
from rollfleet.errors import JobEnded
from rollfleet.nats import presence
from rollfleet.nats.link import Link
from rollfleet.nats.worker_transport import NatsWorkerTransport
from rollfleet_api.permissions import Role
from rollfleet_operator.nats_port import JobKey

JOBS = 50
STATE_BYTES = 4 << 20
FORGOTTEN_S = 2.0  # NATS trusts its memory of an account for a second


def answer(url: str) -> int:
    with urllib.request.urlopen(url, timeout=5) as answered:  # the limit of a probe
        return int(answered.status)


async def test_nats_looks_for_no_account_of_fifty_deleted_jobs(nats_server: NatsInJwtMode, site: Site) -> None:
    nats = site.nats_with(state_bytes=STATE_BYTES)
    jobs = [site.job(f"job-{index}", uid=f"uid-{index}") for index in range(JOBS)]
    stays = site.job("stays")
    for job in [*jobs, stays]:
        await nats.provision(job)
    for job in jobs:
        await nats.deprovision(JobKey(job.metadata.namespace, job.metadata.name))
    await asyncio.sleep(FORGOTTEN_S)
    for check in ("/healthz", "/healthz?js-enabled-only=true"):
        assert await asyncio.to_thread(answer, nats_server.monitoring + check) == 200
    await nats.provision(jobs[0])  # a job of the same name may come again


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_deleted_jobs_take_little_memory_of_nats(nats_server: NatsInJwtMode, site: Site) -> None:
    """NATS forgets no account before it restarts."""
    jobs, each_kib = 1000, 40

    async def come_and_go(first: int) -> None:
        for index in range(first, first + jobs // 4):
            await site.nats.provision(site.job(f"job-{index}", uid=f"uid-{index}"))
            await site.nats.deprovision(JobKey("default", f"job-{index}"))

    await come_and_go(0)
    before = nats_server.peak_mib
    await asyncio.gather(*(come_and_go(first) for first in range(jobs // 4, 5 * jobs // 4, jobs // 4)))
    assert (nats_server.peak_mib - before) << 10 < jobs * each_kib


async def test_a_job_that_comes_again_within_the_second_of_its_deletion_has_its_account(site: Site) -> None:
    job = site.job()
    key = JobKey(job.metadata.namespace, job.metadata.name)
    for _ in range(3):  # the token of an account has its time of issue in seconds
        await site.nats.provision(job)
        async with site.guest(job, Role.LEARNER) as learner:
            await learner.flush()
        await site.nats.deprovision(key)


async def test_everyone_sees_that_a_job_was_deleted(
    site: Site, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The account goes with the job: NATS ends all connections, and takes none."""
    monkeypatch.setattr(presence, "DELETED_AFTER_S", 1.0)
    job = await site.start(policy={"random": {}})
    workers, learners = site.address(job, Role.WORKER), site.address(job, Role.LEARNER)

    def work() -> None:
        worker = NatsWorkerTransport(Link(workers, role=Role.WORKER), 0)
        recorder = rollfleet.record(job.key, tmp_path, address=learners.url, credentials=learners.credentials)
        collector = rollfleet.connect(job.key, address=learners.url, credentials=learners.credentials)
        with closing(worker), recorder, collector:
            ready.set()
            wait_until(lambda: worker._job_ended, 30)
            with pytest.raises(JobEnded):
                next(collector)
            assert recorder.wait(30)

    ready = threading.Event()
    working = asyncio.create_task(asyncio.to_thread(work))
    await asyncio.to_thread(ready.wait, 30)
    await site.nats.deprovision(JobKey(job.metadata.namespace, job.metadata.name))
    await working
