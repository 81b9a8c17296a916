"""The heartbeats of workers and learners that are not there."""

import asyncio
import time
from dataclasses import replace

from benchmarks.fake_nodes.cluster import NAMESPACE
from nats.aio.client import Client
from nats.aio.msg import Msg

from rollfleet_api import messages
from rollfleet_api.messages import pack
from rollfleet_api.subjects import Ask, Subjects
from rollfleet_operator.nats.connection import Connection
from rollfleet_operator.nats_access import Login


def send_heartbeats(logins: dict[str, Login], workers: dict[str, int]) -> None:
    """Be the workers and learners of all jobs, until the process is ended."""
    asyncio.run(_send_heartbeats(logins, workers))


async def _send_heartbeats(logins: dict[str, Login], workers: dict[str, int]) -> None:
    clients = [(await Connection(login, "heartbeats").client(), name) for name, login in logins.items()]
    for client, name in clients:
        await _answer(client, Subjects(namespace=NAMESPACE, job=name, uid="*"), workers[name])
    await asyncio.Event().wait()


async def _answer(client: Client, subjects: Subjects, workers: int) -> None:
    """Answer as the workers and the learner of a job, whenever one asks."""
    began_s = time.time()

    async def answer(message: Msg) -> None:
        now_s, own = time.time(), replace(subjects, uid=message.subject.split(".")[3])
        sent = int(now_s - began_s) + 1
        beat = messages.WorkerStatus(
            worker=0,
            incarnation=1,
            state=messages.WorkerState.COLLECTING,
            frames=64 * sent,
            follows=messages.Progress(session=1, frames=64 * sent),
            time_s=now_s,
        )
        before, after = pack(beat).split(b'"worker":0', 1)
        for index in range(workers):
            await client.publish(own.worker(index), b'%b"worker":%d%b' % (before, index, after))
        learner = messages.LearnerStatus(
            session=1,
            version=sent,
            applied_version=sent,
            frames=64 * sent,
            batches=sent,
            waited_s=0.5 * sent,
            time_s=now_s,
        )
        await client.publish(own.learner(0, 1), pack(learner))

    await client.subscribe(subjects.ask(Ask.HEARTBEATS), cb=answer)
