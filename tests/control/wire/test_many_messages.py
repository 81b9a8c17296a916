"""A worker sends many large messages: the operator keeps little of them, and no other job loses any."""

import time
from typing import Any

import pytest
from tests.control.wire.job_nats import Site

from rollfleet_api.job import CollectorJob
from rollfleet_api.messages import WorkerState, WorkerStatus
from rollfleet_api.permissions import Role
from rollfleet_api.publication import subjects_of
from rollfleet_api.subjects import Ask
from rollfleet_operator.nats import job_on_nats
from rollfleet_operator.nats.job_on_nats import SPARE
from rollfleet_operator.nats_port import JobKey

WORKERS = 300
MOST_BYTES = 1 << 18  # of 36 MiB that are sent
LARGE = bytes(60_000)
ERROR = "\n".join(f"a long line of a traceback {number}" for number in range(1800))


def failed(worker: int) -> WorkerStatus:
    """The heartbeat of a worker with the longest error that it may send."""
    return WorkerStatus(worker=worker, incarnation=0, state=WorkerState.FAILED, error=ERROR, time_s=time.time())


async def begin(site: Site, job: CollectorJob) -> None:
    """Publish a job whose workers all answer."""
    site.server(job)
    await site.nats.heartbeats(job)
    subjects = subjects_of(job)
    beats = {subjects.worker(index): WorkerStatus(worker=index, incarnation=0) for index in range(job.spec.workers)}
    await site.speak(job, Role.WORKER, beats)


async def test_heartbeats_of_many_workers_on_paper_take_little_memory(site: Site) -> None:
    job = await site.start(workers=WORKERS)
    subjects = subjects_of(job)
    await site.speak(job, Role.WORKER, {subjects.worker(index): failed(index) for index in range(WORKERS)})
    found = await site.heard(job, lambda found: len(found.workers) == WORKERS)
    assert all(status.state is WorkerState.FAILED for status in found.workers.values())
    errors = [status.error for status in found.workers.values() if status.error]
    assert all(ERROR.endswith(error) for error in errors), "a job's status shows the last line"
    assert 0 < sum(map(len, errors)) < MOST_BYTES


async def test_of_a_flood_a_limited_number_is_read(site: Site) -> None:
    job = await site.start(workers=2)
    flood = [(subjects_of(job).worker(2), LARGE)] * 1000
    async with site.guest(job, Role.WORKER) as worker:

        async def answer(_: object) -> None:
            for subject, data in flood:
                await worker.client.publish(subject, data)

        await worker.client.subscribe(subjects_of(job).ask(Ask.HEARTBEATS), cb=answer)
        await worker.flush()
        await site.nats.heartbeats(job)
    assert 0 < site.nats.dropped_messages <= 2 * job.spec.workers + SPARE


async def test_invalid_messages_and_those_of_invented_workers_are_dropped_and_counted(site: Site) -> None:
    job = await site.start(workers=3)
    subjects = subjects_of(job)
    beats: dict[str, Any] = {subjects.worker(3): failed(3), f"{subjects.worker(0)}0": failed(0)}
    beats |= {subjects.worker(1): failed(0), subjects.worker(2): b"\xff{"}
    await site.speak(job, Role.WORKER, {**beats, subjects.worker(0): failed(0)})
    found = await site.heard(job, lambda _: site.nats.dropped_messages >= len(beats))
    assert list(found.workers) == [0]


@pytest.mark.parametrize(
    ("most", "large", "small"),
    [(8, 50, 2), (200, 300, 40)],  # the small one gets what is kept for each job in any case
    ids=["a small job", "another large job"],
)
async def test_large_job_takes_no_place_from(
    site: Site, monkeypatch: pytest.MonkeyPatch, most: int, large: int, small: int
) -> None:
    monkeypatch.setattr(job_on_nats, "MOST_MESSAGES", most)
    monkeypatch.setattr(job_on_nats, "MESSAGES_OF_JOB", 4)
    jobs = site.job("large", workers=large), site.job("small", workers=small)
    for job in jobs:
        await begin(site, job)
    await site.heard(jobs[0], lambda found: len(found.workers) == most // 2)
    await site.heard(jobs[1], lambda found: len(found.workers) == small)
    await site.nats.remove(JobKey("default", "large"))
    later = site.job("later", workers=large)  # gets half of what the removed one has left
    await begin(site, later)
    await site.heard(later, lambda found: len(found.workers) == max(4, (most - small) // 2))
