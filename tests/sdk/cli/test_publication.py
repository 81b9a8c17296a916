"""`rollfleet submit --nats`: a job on a NATS server, without Kubernetes. tests/docs/test_slurm.py runs a whole one."""

import asyncio
import signal

from tests.job_server import Server
from tests.sdk.cli.program import Workplace

from rollfleet.cli.publication import published
from rollfleet.nats.state import read_job, read_state
from rollfleet_api.documents import read_job as read_file
from rollfleet_api.messages import Control, LearnerPhase, pack


def streams(server: Server) -> list[str]:
    admin = server.link()
    return [str(each.config.name) for each in admin.call(admin.js.streams_info())]


def test_ctrl_c_deletes_the_job(workplace: Workplace, server: Server) -> None:
    workplace.write_job(workers=3)
    program = workplace.start("submit", "job.yaml", "--nats", server.url())
    program.wait_for("default/test is published on nats://127")
    program.wait_for("workers, 0 to 2: rollfleet worker --nats nats://127")
    assert streams(server)
    assert program.end_by(signal.SIGINT) == 130
    assert streams(server) == []
    assert "@" not in program.output, "the URL's password is shown"


def test_a_complete_job_of_the_same_name_is_replaced(workplace: Workplace, server: Server) -> None:
    job = read_file(workplace.write_job(workers=2))
    server.provision()
    admin = server.link()
    complete = Control(session=1, phase=LearnerPhase.COMPLETE, round=0, version=0)
    admin.call(admin.js.publish(server.subjects.control, pack(complete)))

    async def publish() -> None:
        async with published(job, server.address(), delete=False):
            pass

    asyncio.run(publish())
    assert admin.call(read_job(admin, timeout_s=5)) == job
    assert admin.call(read_state(admin, server.subjects.control, Control)) is None
