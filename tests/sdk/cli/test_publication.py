"""`rollfleet submit --nats`: a job on a NATS server, without Kubernetes. tests/docs/test_slurm.py runs a whole one."""

import asyncio
import signal

from tests.job_server import Server
from tests.sdk.cli.program import Workplace

from rollfleet.cli.publication import published
from rollfleet.nats.job_source import read_job
from rollfleet_api.documents import read_job as read_file
from rollfleet_api.publication import DELETED


def test_ctrl_c_deletes_the_job(workplace: Workplace, server: Server) -> None:
    workplace.write_job(workers=3)
    deleted = server.heard(server.subjects.spec, DELETED.__eq__)
    program = workplace.start("submit", "job.yaml", "--nats", server.url())
    program.wait_for("default/test is published on nats://127")
    program.wait_for("workers, 0 to 2: rollfleet worker --nats nats://127")
    link = server.link()
    assert link.call(read_job(link, timeout_s=5)).spec.workers == 3
    assert program.end_by(signal.SIGINT) == 130
    assert deleted.wait(10)
    assert "@" not in program.output, "the URL's password is shown"


def test_two_jobs_of_one_name_are_not_taken_for_each_other(workplace: Workplace, server: Server) -> None:
    job = read_file(workplace.write_job(workers=2))
    link, uids = server.link(), set[str | None]()

    async def publish() -> None:
        async with published(job, server.address(), delete=False):
            uids.add((await asyncio.to_thread(link.call, read_job(link, timeout_s=5))).metadata.uid)

    for _ in range(2):
        asyncio.run(publish())
    assert len(uids) == 2
