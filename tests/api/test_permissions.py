"""What the server lets each role of a job do, on a real nats-server with the users that `start_nats_server` makes."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import islice

import nats
import pytest
from nats.aio.client import Client
from tests.job_server import Server, actor_critic, join_all
from tests.waiting import wait_until

import rollfleet
from rollfleet_api.permissions import Role
from rollfleet_api.subjects import ALL, Subjects

OURS = Subjects(namespace="default", job="test")
NOBODYS = "nobodys.subject"


class Guest:
    """A role's connection, and what the server refused it, in order."""

    def __init__(self, client: Client, refused: "asyncio.Queue[str]") -> None:
        self.client, self.refused = client, refused

    async def refusals(self, attempt: Callable[[str], Awaitable[object]], subjects: list[str]) -> set[str]:
        """Attempt each; which ones the server refused. It answers in order, so the last one's refusal ends the list."""
        for subject in subjects:
            await attempt(subject)
        await self.client.publish(NOBODYS, b"")
        refused = set()
        while NOBODYS not in (text := await asyncio.wait_for(self.refused.get(), 10)):
            refused |= {subject for subject in subjects if f'"{subject.lower()}"' in text}
        return refused

    async def refused_to_publish(self, subjects: list[str]) -> set[str]:
        return await self.refusals(lambda subject: self.client.publish(subject, b"{}"), subjects)

    async def refused_to_subscribe(self, subjects: list[str]) -> set[str]:
        return await self.refusals(self.client.subscribe, subjects)


@asynccontextmanager
async def guest(server: Server, role: Role | None) -> AsyncIterator[Guest]:
    refused: asyncio.Queue[str] = asyncio.Queue()

    async def on_error(error: Exception) -> None:
        assert "permissions violation" in str(error)
        refused.put_nowait(str(error))

    client = await nats.connect(server.url(role), error_cb=on_error)
    try:
        yield Guest(client, refused)
    finally:
        await client.close()


OF_THE_WHOLE_SERVER = [
    "$JS.API.INFO",
    "$SYS.REQ.SERVER.PING",
    "_INBOX.x",
]


def test_a_job_needs_no_more_than_its_roles_may(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    job = server.own(evaluation={"every": 1, "episodes": 1})
    workers = [server.start_worker(job, 0, evaluates=evaluates) for evaluates in (False, True)]
    with rollfleet.connect(job.key, actor_critic(), address=server.url(Role.LEARNER), timeout_s=10) as collector:
        list(islice(collector, 3))
        server.restart()
        list(islice(collector, 3))
        wait_until(lambda: collector.evaluations)
    join_all(workers)
    assert "permissions violation" not in caplog.text


async def test_worker_may_not_publish_on_subjects_of_learner_or_operator(server: Server) -> None:
    forbidden = [OURS.control, OURS.weights_of(ALL), OURS.learner(0, 1), OURS.spec, OURS.taken(0), OURS.call(0)]
    forbidden += OF_THE_WHOLE_SERVER
    async with guest(server, Role.WORKER) as worker:
        assert await worker.refused_to_publish(forbidden) == set(forbidden)


async def test_worker_may_not_read_what_other_workers_send(server: Server) -> None:
    forbidden = [OURS.batches, OURS.chunk(1), OURS.offer(1), OURS.learner("*"), OURS.worker(1), OURS.wants("1")]
    forbidden += [OURS.evaluation(1), OURS.answer(1)]
    async with guest(server, Role.WORKER) as worker:
        assert await worker.refused_to_subscribe(forbidden) == set(forbidden)


async def test_learner_may_not_pose_as_a_worker_or_an_operator(server: Server) -> None:
    forbidden = [OURS.chunk(0), OURS.offer(0), OURS.worker(0), OURS.wants("0"), OURS.answer(0), OURS.spec]
    forbidden += OF_THE_WHOLE_SERVER
    async with guest(server, Role.LEARNER) as learner:
        assert await learner.refused_to_publish(forbidden) == set(forbidden)
