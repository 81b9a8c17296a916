"""Large batches from one worker process to one learner, both over NATS on this machine, beside nats-py alone.

`python -P benchmarks/delivery.py [--rounds N] [--quick]`

Rollfleet: a worker's port sends batches of 8 x 128 frames of 84 x 84 x 4 bytes as fast as they are taken; counted are
the bytes on the wire of the TensorDicts that the iterator yields. nats-py: one process publishes messages of 1 MB to a
work queue (8 in flight), another fetches and acknowledges them; nothing is done with them. Same server, same storage,
rounds of both in turn, medians.
"""

import argparse
import asyncio
import multiprocessing
import statistics
import tempfile
import time
from multiprocessing.process import BaseProcess
from pathlib import Path

import nats
import torch

import rollfleet
from rollfleet.batch import Fragment
from rollfleet.joining.link import Link
from rollfleet.joining.nats_server import NatsServer, start_nats_server
from rollfleet.joining.provision import deprovision, provision
from rollfleet.transports.worker_port import WorkerPort
from rollfleet_api.environment import Address
from rollfleet_api.messages import BatchMeta
from rollfleet_api.permissions import Role
from rollfleet_api.streams import subjects_of
from rollfleet_api.validation import parse_job

ENVS, STEPS, PIXELS = 8, 128, (84, 84, 4)
MESSAGE_BYTES, IN_FLIGHT = 1_000_000, 8
STORAGES = ("Memory", "File")


def job(storage: str) -> rollfleet.CollectorJob:
    """The job whose streams carry the batches."""
    return parse_job(
        {
            "apiVersion": "rollfleet.dev/v1alpha1",
            "kind": "CollectorJob",
            "metadata": {"name": "delivery"},
            "spec": {
                "env": {"id": "CartPole-v1", "numEnvs": ENVS},
                "policy": {"random": {}},
                "collect": {"framesPerBatch": ENVS * STEPS},
                "delivery": {"storage": storage, "maxBatchesAhead": 2},
            },
        }
    )


def send(url: str, count: int) -> None:
    """A worker that has collected already: the same batch, again and again."""
    flags = torch.zeros(ENVS, STEPS, 1, dtype=torch.bool)
    fragment = Fragment(
        steps={
            ("observation",): torch.randint(255, (ENVS, STEPS, *PIXELS), dtype=torch.uint8),
            ("action",): torch.zeros(ENVS, STEPS, dtype=torch.int64),
            ("next", "reward"): torch.ones(ENVS, STEPS, 1),
            ("next", "terminated"): flags,
            ("next", "truncated"): flags,
            ("collector", "traj_ids"): torch.zeros(ENVS, STEPS, dtype=torch.int64),
        },
        final={("observation",): torch.zeros(ENVS, *PIXELS, dtype=torch.uint8)},
        episode_returns=torch.empty(0, dtype=torch.float64),
        episode_lengths=torch.empty(0, dtype=torch.int64),
        version=0,
    )
    meta = BatchMeta(session=1, round=0, version=0, frames=ENVS * STEPS)
    port = WorkerPort(Link(Address(url=url, job="default/delivery"), role=Role.WORKER), 0)
    for sending in [port.send(fragment, meta) for _ in range(count)]:
        sending.stored.result()
    port.close()


def rollfleet_mb_per_s(server: NatsServer, storage: str, batches: int) -> float:
    """Megabytes of batches a second; the first two are not counted."""
    known = job(storage)
    admin = Link(Address(url=server.url(None), job=known.key), role=None)
    admin.call(provision(admin, known))
    sender = _start(send, server.url(Role.WORKER), batches + 2)
    with rollfleet.connect(known, address=server.url(Role.LEARNER)) as collector:
        next(collector), next(collector)
        began, before = time.perf_counter(), collector.stats().bytes
        for _ in range(batches):
            next(collector)
        seconds = time.perf_counter() - began
        received = collector.stats().bytes - before
    sender.join()
    admin.call(deprovision(admin))
    admin.close()
    return received / seconds / 1e6


def publish(url: str, count: int) -> None:
    """nats-py's publisher."""

    async def main() -> None:
        client = await nats.connect(url)
        stream, payload = client.jetstream(), bytes(MESSAGE_BYTES)
        window = asyncio.Semaphore(IN_FLIGHT)
        async with asyncio.TaskGroup() as group:
            for _ in range(count):
                await window.acquire()
                publishing = group.create_task(stream.publish("plain.x", payload, timeout=60))
                publishing.add_done_callback(lambda _: window.release())
        await client.close()

    asyncio.run(main())


def nats_py_mb_per_s(server: NatsServer, storage: str, messages: int) -> float:
    """Megabytes of messages a second, once the first have come."""

    async def main() -> float:
        client = await nats.connect(server.url(None))
        stream = client.jetstream()
        await stream.add_stream(name="plain", subjects=["plain.>"], storage=storage.lower(), retention="workqueue")
        subscription = await stream.pull_subscribe("plain.>", durable="plain", stream="plain")
        publisher = _start(publish, server.url(None), messages + IN_FLIGHT)
        received, began = 0, 0.0
        while received < messages + IN_FLIGHT:
            for message in await subscription.fetch(IN_FLIGHT, timeout=60):
                await message.ack()
                received += 1
                if received == IN_FLIGHT:
                    began = time.perf_counter()
        seconds = time.perf_counter() - began
        publisher.join()
        await stream.delete_stream("plain")
        await client.close()
        return messages * MESSAGE_BYTES / seconds / 1e6

    return asyncio.run(main())


def _start(function: object, url: str, count: int) -> BaseProcess:
    process = multiprocessing.get_context("spawn").Process(target=function, args=(url, count))  # type: ignore[arg-type]
    process.start()
    return process


def main() -> None:
    """Measure in turn and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="one round of few batches")
    arguments = parser.parse_args()
    rounds, batches = (1, 5) if arguments.quick else (arguments.rounds, 20)
    messages = batches * 30  # about as many bytes
    print("| storage | Rollfleet, MB/s | nats-py, MB/s | ratio |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder, asyncio.Runner() as runner:
        server = runner.run(start_nats_server(subjects_of(job("File")), Path(folder)))
        for storage in STORAGES:
            ours, theirs = [], []
            for _ in range(rounds):
                ours.append(rollfleet_mb_per_s(server, storage, batches))
                theirs.append(nats_py_mb_per_s(server, storage, messages))
            here, there = statistics.median(ours), statistics.median(theirs)
            print(f"| {storage} | {here:,.0f} | {there:,.0f} | {here / there:.2f} |", flush=True)
        runner.run(server.child.stop(2.0))


if __name__ == "__main__":
    main()
