"""What the server lets each role of a job do, on a real nats-server with the users that `start_nats_server` makes."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import nats
import pytest
from nats.aio.client import Client
from nats.js.errors import APIError

from rollfleet_api.permissions import Role, inbox_prefix
from rollfleet_api.ranks import ALONE, Rank
from rollfleet_api.subjects import Subjects

if TYPE_CHECKING:
    from tests.job_server import Server

OURS = Subjects(namespace="default", job="test")
NOBODYS = "nobodys.subject"
CONSUMER = f"{OURS.batches_stream}.{ALONE.consumer}"


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

    async def last(self, subject: str) -> bytes:
        request = f"$JS.API.DIRECT.GET.{OURS.state_stream}.{subject}"
        return (await self.client.request(request, timeout=5)).data


@asynccontextmanager
async def guest(server: "Server", role: Role | None) -> AsyncIterator[Guest]:
    refused: asyncio.Queue[str] = asyncio.Queue()

    async def on_error(error: Exception) -> None:
        assert "permissions violation" in str(error)
        refused.put_nowait(str(error))

    prefix = inbox_prefix(OURS, role) if role else "_INBOX.admin"
    client = await nats.connect(server.url(role), error_cb=on_error, inbox_prefix=prefix)
    try:
        yield Guest(client, refused)
    finally:
        await client.close()


def administration(*allowed: str) -> list[str]:
    """Requests to JetStream that only the operator may make: roles may ask whether the job exists."""
    streams = (OURS.state_stream, OURS.batches_stream)
    verbs = ("CREATE", "UPDATE", "DELETE", "PURGE", "INFO", "MSG.GET", "MSG.DELETE")
    requests = [f"$JS.API.STREAM.{verb}.{stream}" for verb in verbs for stream in streams]
    return [each for each in requests if each not in (OURS.state_info, *allowed)]


def consuming(subjects: Subjects) -> list[str]:
    """Requests to JetStream that only the learner of the job may make."""
    consumers = [f"{subjects.batches_stream}.{rank.consumer}" for rank in (ALONE, Rank(1, 2))]
    verbs = ("CREATE", "DURABLE.CREATE", "DELETE", "INFO", "MSG.NEXT")
    requests = [f"$JS.API.CONSUMER.{verb}.{consumer}" for verb in verbs for consumer in consumers]
    names = f"$JS.API.CONSUMER.NAMES.{subjects.batches_stream}"
    return [*requests, names, *(f"$JS.ACK.{consumer}.1.1.1.1.0" for consumer in consumers)]


OF_THE_WHOLE_SERVER = [
    "$JS.API.INFO",
    "$JS.API.STREAM.NAMES",
    "$JS.API.STREAM.LIST",
    "$JS.API.STREAM.CREATE.mine",
    "$SYS.REQ.SERVER.PING",
    "_INBOX.x",
]


async def test_worker_may_send_batches_take_its_lease_and_read_weights(server: "Server") -> None:
    server.provision()
    async with guest(server, Role.WORKER) as worker, guest(server, Role.LEARNER) as learner:
        heard = await worker.client.subscribe(OURS.all_weights[0])
        assert not await worker.refused_to_subscribe([OURS.control, OURS.taken(0), OURS.spec])
        stream = worker.client.jetstream()
        assert (await stream.publish(OURS.batch_chunk(0, 0), b"batch")).stream == OURS.batches_stream
        assert (await stream.publish(OURS.worker(0), b"status")).stream == OURS.state_stream
        first_only = {"Nats-Expected-Last-Subject-Sequence": "0"}
        await stream.publish(OURS.lease(0), b"lease", headers=first_only)
        with pytest.raises(APIError, match="wrong last sequence"):
            await stream.publish(OURS.lease(0), b"lease", headers=first_only)
        await learner.client.jetstream().publish(OURS.weights_of(None).chunk(1, 0), b"weights")
        assert (await heard.next_msg(5)).data == b"weights"
        assert await worker.last(OURS.weights_of(None).chunk(1, 0)) == b"weights"
        assert worker.refused.empty()


async def test_worker_may_not_publish_on_subjects_of_learner_or_operator(server: "Server") -> None:
    server.provision()
    forbidden = [OURS.control, OURS.manifest, OURS.weights_of(None).chunk(1, 0), OURS.learner, OURS.spec, OURS.taken(0)]
    forbidden += [OURS.rank(1), *administration(OURS.state_get), *consuming(OURS), *OF_THE_WHOLE_SERVER]
    forbidden += [f"$JS.API.DIRECT.GET.{OURS.state_stream}.{each}" for each in (OURS.lease(0), OURS.worker(0))]
    forbidden += [f"{inbox_prefix(OURS, Role.LEARNER)}.x", f"$JS.API.CONSUMER.CREATE.{OURS.state_stream}.mine"]
    async with guest(server, Role.WORKER) as worker:
        assert await worker.refused_to_publish(forbidden) == set(forbidden)


async def test_worker_may_not_read_the_queue_of_batches(server: "Server") -> None:
    server.provision()
    forbidden = [f"$JS.API.DIRECT.GET.{OURS.batches_stream}", *consuming(OURS)]
    forbidden += [f"$JS.API.DIRECT.GET.{OURS.batches_stream}.{OURS.batch_chunk(1, 0)}"]
    async with guest(server, Role.WORKER) as worker:
        assert await worker.refused_to_publish(forbidden) == set(forbidden)
        listening = [*OURS.batch_subjects, OURS.batch_chunk(1, 0), OURS.lease(1), OURS.worker(1), OURS.learner]
        assert await worker.refused_to_subscribe(listening) == set(listening)


async def test_worker_may_send_results_of_evaluations(server: "Server") -> None:
    server.provision()
    async with guest(server, Role.WORKER) as worker, guest(server, Role.LEARNER) as learner:
        heard = await learner.client.subscribe(OURS.evaluations)
        await learner.client.flush()
        assert not await worker.refused_to_publish([OURS.evaluation(0)])
        assert (await heard.next_msg(5)).data == b"{}"
        assert await worker.refused_to_subscribe([OURS.evaluation(1)]) == {OURS.evaluation(1)}


async def test_learner_may_steer_the_job_and_take_its_batches(server: "Server") -> None:
    server.provision()
    async with guest(server, Role.WORKER) as worker, guest(server, Role.LEARNER) as learner:
        assert not await learner.refused_to_subscribe([OURS.workers, OURS.spec, OURS.ranks])
        stream = learner.client.jetstream()
        for subject in (OURS.control, OURS.weights_of(None).chunk(1, 0), OURS.manifest, OURS.learner):
            assert (await stream.publish(subject, b"{}")).stream == OURS.state_stream
        config = {"durable_name": ALONE.consumer, "ack_policy": "explicit"}
        request = {"stream_name": OURS.batches_stream, "config": config}
        await ask(learner, f"$JS.API.CONSUMER.DURABLE.CREATE.{CONSUMER}", request)
        await worker.client.jetstream().publish(OURS.batch_chunk(0, 0), b"batch")
        inbox = learner.client.new_inbox()
        batches = await learner.client.subscribe(inbox)
        await learner.client.publish(f"$JS.API.CONSUMER.MSG.NEXT.{CONSUMER}", b"", reply=inbox)
        batch = await batches.next_msg(5)
        assert batch.data == b"batch"
        assert not await learner.refused_to_publish([batch.reply, OURS.taken(0)])
        await ask(learner, f"$JS.API.CONSUMER.DELETE.{CONSUMER}", {})
        assert learner.refused.empty()


async def test_learner_may_not_pose_as_a_worker_or_an_operator(server: "Server") -> None:
    server.provision()
    forbidden = [OURS.batch_chunk(0, 0), OURS.lease(0), OURS.worker(0), OURS.spec]
    forbidden += [*administration(), *OF_THE_WHOLE_SERVER, f"{inbox_prefix(OURS, Role.WORKER)}.x"]
    forbidden += [f"$JS.API.CONSUMER.{verb}.{OURS.state_stream}.mine" for verb in ("CREATE", "DURABLE.CREATE")]
    forbidden += [f"$JS.API.CONSUMER.{verb}.{OURS.state_stream}" for verb in ("CREATE", "NAMES", "LIST")]
    async with guest(server, Role.LEARNER) as learner:
        assert await learner.refused_to_publish(forbidden) == set(forbidden)


async def ask(guest: Guest, subject: str, body: object) -> None:
    data = json.dumps(body).encode() if body else b""
    answer = (await guest.client.request(subject, data, timeout=5)).data
    assert b'"error"' not in answer, answer
