"""The heartbeats of workers and learners that are not there."""

import asyncio
import time

from benchmarks.fake_nodes.cluster import NAMESPACE

from rollfleet_api import messages
from rollfleet_api.messages import pack
from rollfleet_api.subjects import Subjects
from rollfleet_operator.nats.connection import Connection
from rollfleet_operator.nats_access import Login


def send_heartbeats(logins: dict[str, Login], workers: dict[str, int]) -> None:
    """Be the workers and learners of all jobs, until the process is ended."""
    asyncio.run(_send_heartbeats(logins, workers))


async def _send_heartbeats(logins: dict[str, Login], workers: dict[str, int]) -> None:
    connections = {name: await Connection(login, "heartbeats").client() for name, login in logins.items()}
    for name, client in connections.items():
        subjects = Subjects(namespace=NAMESPACE, job=name)
        for index in range(workers[name]):
            await client.publish(
                subjects.lease(index), pack(messages.Lease(incarnation=1, host=f"{name}-{index}", pid=1))
            )
        control = messages.Control(session=1, phase=messages.LearnerPhase.RUN, round=0, version=1)
        await client.publish(subjects.control, pack(control))
    sent = 0
    while True:
        began, now_s = time.monotonic(), time.time()
        sent += 1
        beat = messages.WorkerStatus(
            worker=0,
            incarnation=1,
            state=messages.WorkerState.COLLECTING,
            frames=64 * sent,
            time_s=now_s,
        )
        before, after = pack(beat).split(b'"worker":0', 1)
        learner = messages.LearnerStatus(
            session=1,
            version=sent,
            applied_version=sent,
            frames=64 * sent,
            batches=sent,
            waited_s=0.5 * sent,
            time_s=now_s,
        )
        for name, client in connections.items():
            subjects = Subjects(namespace=NAMESPACE, job=name)
            prefix = subjects.workers.removesuffix("*")
            for index in range(workers[name]):
                await client.publish(f"{prefix}{index}", b'%b"worker":%d%b' % (before, index, after))
            await client.publish(subjects.learner, pack(learner))
            await asyncio.sleep(0)
        await asyncio.sleep(max(0.0, began + 1.0 - time.monotonic()))
