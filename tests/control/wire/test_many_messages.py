"""A worker sends many large messages: the operator keeps little of them, and no other job loses any."""

import time

import pytest
from tests.control.wire.job_nats import Site

from rollfleet_api.job import CollectorJob
from rollfleet_api.messages import Lease, WorkerState, WorkerStatus, pack
from rollfleet_api.permissions import Role
from rollfleet_api.streams import subjects_of
from rollfleet_operator.nats import job_on_nats
from rollfleet_operator.nats_port import JobKey

WORKERS = 300
MOST_BYTES = 1 << 18  # of 36 MiB that are sent
LARGE = bytes(60_000)
ERROR = "\n".join(f"a long line of a traceback {number}" for number in range(1800))


def failed(worker: int) -> WorkerStatus:
    """The heartbeat of a worker with the longest error that it may send."""
    return WorkerStatus(worker=worker, incarnation=0, state=WorkerState.FAILED, error=ERROR, time_s=time.time())


async def begin(site: Site, job: CollectorJob, *, leases: bool = False) -> None:
    """Publish a job, and send a heartbeat of each of its workers, with its lease or without."""
    site.server(job)
    await site.nats.heartbeats(job)
    subjects, workers = subjects_of(job), range(job.spec.workers)
    sent: dict[str, WorkerStatus | Lease] = {
        subjects.worker(index): WorkerStatus(worker=index, incarnation=0) for index in workers
    }
    if leases:
        sent |= {subjects.lease(index): Lease(incarnation=1, host="a", pid=1) for index in workers}
    await site.speak(job, Role.WORKER, sent)


async def test_heartbeats_of_many_workers_on_paper_take_little_memory(site: Site) -> None:
    job = await site.start(workers=WORKERS)
    subjects = subjects_of(job)
    async with site.guest(job, Role.WORKER) as worker:
        for index in range(WORKERS):
            await worker.client.publish(subjects.worker(index), pack(failed(index)))
            await worker.client.publish(subjects.lease(index), LARGE)
            if index % 50 == 0:
                await worker.flush()
        await worker.flush()
    found = await site.heard(job, lambda found: len(found.workers) == WORKERS <= site.nats.dropped_messages)
    assert all(status.state is WorkerState.FAILED for status in found.workers.values())
    errors = [status.error for status in found.workers.values() if status.error]
    assert all(ERROR.endswith(error) for error in errors), "a job's status shows the last line"
    leases = site.nats._jobs[JobKey("default", "a")]._last
    assert 0 < sum(map(len, (*errors, *leases.values()))) < MOST_BYTES


async def test_messages_of_invented_workers_are_dropped_and_counted(site: Site) -> None:
    job = await site.start(workers=2)
    subjects = subjects_of(job)
    beats = {subjects.worker(2): failed(2), f"{subjects.worker(0)}0": failed(0), subjects.worker(1): failed(0)}
    await site.speak(job, Role.WORKER, {**beats, subjects.worker(0): failed(0)})
    found = await site.heard(job, lambda found: bool(found.workers))
    assert list(found.workers) == [0]
    assert site.nats.dropped_messages == len(beats)
    await site.nats.heartbeats(job)
    assert site.nats.dropped_messages == len(beats), "each is read once"


@pytest.mark.parametrize(
    ("most", "large", "small", "leases"),
    [(8, 50, 2, True), (200, 300, 40, False)],  # the small one gets what is kept for each job in any case
    ids=["a small job", "another large job"],
)
async def test_large_job_takes_no_place_from(
    site: Site, monkeypatch: pytest.MonkeyPatch, most: int, large: int, small: int, leases: bool
) -> None:
    monkeypatch.setattr(job_on_nats, "MOST_MESSAGES", most)
    monkeypatch.setattr(job_on_nats, "MESSAGES_OF_JOB", 4)
    jobs = site.job("large", workers=large), site.job("small", workers=small)
    for job in jobs:
        await begin(site, job, leases=leases)
    await site.heard(jobs[0], lambda found: len(found.workers) == most // 2)
    await site.heard(jobs[1], lambda found: len(found.workers) == small)
    await site.nats.remove(JobKey("default", "large"))
    await site.heard(jobs[1], lambda _: site.nats._messages.kept == small * (2 if leases else 1))
