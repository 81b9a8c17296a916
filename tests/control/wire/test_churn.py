"""Jobs that come and go beside one that trains: the operator's program, a real API server, a real nats-server."""

import asyncio
import statistics
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.api.job_data import job_data
from tests.control.kubernetes import ApiServer
from tests.control.wire.jwt_nats import NatsInJwtMode, Site, memory_mib
from tests.waiting import wait_until

import rollfleet
from rollfleet.nats.link import Link
from rollfleet.nats.worker_transport import NatsWorkerTransport
from rollfleet.transports.workload import Workload
from rollfleet.worker.worker import Worker
from rollfleet_api.job import KIND, CollectorJob
from rollfleet_api.permissions import Role
from rollfleet_api.validation import parse_job
from rollfleet_operator.nats_port import JobKey

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(600)]

WAVES, AT_ONCE = 5, 10
NAMESPACE = "default"
GROWTH_MIB = 20  # after the first wave, for the allocators' sake
GAP_S = 1.0
HEALTHY_S = 0.1  # with the accounts of four deleted jobs to look for it was 7.6 s


def manifest(name: str) -> dict[str, Any]:
    return job_data({"name": name, "namespace": NAMESPACE}, policy={"random": {}})


def seconds_to_answer(url: str) -> float:
    began = time.monotonic()
    with urllib.request.urlopen(url, timeout=5):
        return time.monotonic() - began


@contextmanager
def training(site: Site, job: CollectorJob) -> Iterator[list[float]]:
    """A worker and a learner of a job, in threads; yields the times of the learner's batches."""
    times: list[float] = []
    learner = site.address(job, Role.LEARNER)
    side = NatsWorkerTransport(Link(site.address(job, Role.WORKER), role=Role.WORKER), 0)
    worker = Worker(side, Workload.of(job), 0)
    collector = rollfleet.connect(job.key, address=learner.url, credentials=learner.credentials)
    running = threading.Event()
    running.set()

    def learn() -> None:
        for _ in collector:
            times.append(time.monotonic())
            if not running.is_set():
                break
        assert collector.stats().missed == 0
        collector.shutdown()

    threads = [threading.Thread(target=work, daemon=True) for work in (worker.run, learn)]
    for thread in threads:
        thread.start()
    yield times
    running.clear()
    for thread in reversed(threads):
        thread.join(30)
        assert not thread.is_alive()
    worker.close()
    side.close()


async def test_fifty_jobs_come_and_go_beside_one_that_trains(
    server: ApiServer, operator: "subprocess.Popen[bytes]", nats_server: NatsInJwtMode, site: Site, tmp_path: Path
) -> None:
    async def call(work: Any) -> Any:
        return await asyncio.wrap_future(server.begin(work))

    async def until_nats_has(names: set[str]) -> None:
        async with asyncio.timeout(60):
            while await site.nats.provisioned() != {JobKey(NAMESPACE, name) for name in names}:
                assert operator.poll() is None, (tmp_path / "nats/operator.log").read_text()
                await asyncio.sleep(0.05)

    steady = parse_job(await call(server.api.create(manifest("steady"))))
    await until_nats_has({"steady"})
    pids = (operator.pid, nats_server.pid)
    memory: list[tuple[int, ...]] = []
    answers: list[float] = []
    with training(site, steady) as times:
        await asyncio.to_thread(wait_until, lambda: times)
        for wave in range(WAVES):
            before, names = len(times), [f"guest-{wave}-{number}" for number in range(AT_ONCE)]
            created = await asyncio.gather(*(call(server.api.create(manifest(name))) for name in names))
            await until_nats_has({"steady", *names})
            uids = [each["metadata"]["uid"] for each in created]
            await asyncio.gather(
                *(call(server.api.delete(KIND, NAMESPACE, *each)) for each in zip(names, uids, strict=True))
            )
            await until_nats_has({"steady"})
            answers += [
                await asyncio.to_thread(seconds_to_answer, f"{nats_server.monitoring}/healthz") for _ in range(5)
            ]
            memory.append(tuple(memory_mib(pid, "VmRSS") for pid in pids))
            assert len(times) > before, "the job that trains got no batch"
    gap_s = max(after - earlier for earlier, after in pairwise(times))
    print(f"{len(times)} batches, the longest gap {gap_s:.2f} s; MiB of operator and NATS after each wave: {memory}")
    assert gap_s < GAP_S
    assert statistics.median(answers) < HEALTHY_S
    assert all(later - first < GROWTH_MIB for first, later in zip(memory[0], memory[-1], strict=True))
