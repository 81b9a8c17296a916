"""The operator's connections: one for each running job, however many run."""

from rollfleet_api.subjects import Subjects
from rollfleet_operator.nats.job_connections import IDLE_S, MOST, JobConnections
from rollfleet_operator.nats.trust import new_keys
from rollfleet_operator.nats_port import Endpoint

JOBS = [Subjects(namespace="default", job=f"job-{number}") for number in range(MOST + 50)]


async def test_connections_of_running_jobs_stay_open_and_those_of_idle_ones_are_closed() -> None:
    now_s = [0.0]
    connections = JobConnections(Endpoint(url="nats://nowhere"), new_keys(b"k" * 32), clock=lambda: now_s[0])
    first = [await connections.of(job) for job in JOBS]
    for _ in range(10):
        now_s[0] += IDLE_S / 6
        assert [await connections.of(job) for job in JOBS] == first, "looked at in turn, none is closed"
    now_s[0] += IDLE_S
    running = JOBS[60:]
    for job in running:
        await connections.of(job)
    assert [await connections.of(job) for job in running] == first[60:]
    assert len(connections._open) == MOST
    await connections.close()
