"""Large batches from one worker process to one learner over NATS on this machine, beside a simpler client.

`python -P benchmarks/delivery.py [--rounds N] [--quick]`

Rollfleet: a worker's port sends batches of 8 x 128 frames of 84 x 84 x 4 bytes as fast as the learner takes them. The
figure counts the bytes on the wire of the TensorDicts that the iterator yields. By hand: messages of 1 MB (8 in flight)
from one blocking socket to another through the server's core protocol: nothing is decoded. Both use the same server, in
turn. Figures are medians, the ratio is the median of the rounds' ratios.
"""

import argparse
import json
import multiprocessing
import socket
import sys
import time
from multiprocessing.process import BaseProcess
from pathlib import Path
from statistics import median
from urllib.parse import urlsplit

sys.path.append(str(Path(__file__).parent / "contenders"))

import torch

import nats_job
import rollfleet
from rollfleet.data.batch import EPISODES, Fragment
from rollfleet.nats.embedded_server import NatsServer
from rollfleet.nats.link import Link
from rollfleet.nats.worker_transport import NatsWorkerTransport
from rollfleet_api.address import Address
from rollfleet_api.permissions import Role
from rollfleet_api.transfers import BatchMeta

ENVS, STEPS, PIXELS = 8, 128, (84, 84, 4)
MESSAGE_BYTES, IN_FLIGHT = 1_000_000, 8


def job() -> rollfleet.CollectorJob:
    """Build the job of the batches."""
    return nats_job.job(
        env={"id": "CartPole-v1", "numEnvs": ENVS},
        policy={"random": {}},
        collect={"framesPerBatch": ENVS * STEPS},
        delivery={"maxBatchesAhead": 2},
    )


def noise() -> torch.Tensor:
    """Return observations [ENVS, STEPS, ...] that nothing makes smaller."""
    return torch.randint(255, (ENVS, STEPS, *PIXELS), dtype=torch.uint8)


def fragment_of(observations: torch.Tensor) -> Fragment:
    """Return a fragment [envs, T] of these observations, without ends of episodes."""
    envs, steps = observations.shape[:2]
    flags = torch.zeros(envs, steps, 1, dtype=torch.bool)
    return Fragment(
        steps={
            ("observation",): observations,
            ("action",): torch.zeros(envs, steps, dtype=torch.int64),
            ("next", "reward"): torch.ones(envs, steps, 1),
            ("next", "terminated"): flags,
            ("next", "truncated"): flags,
            ("collector", "traj_ids"): torch.zeros(envs, steps, dtype=torch.int64),
        },
        final={("observation",): observations[:, -1].clone()},
        episodes={name: torch.empty(0, *shape, dtype=dtype) for name, (dtype, shape) in EPISODES.items()},
        version=0,
    )


META = BatchMeta(session=1, round=0, version=0, frames=ENVS * STEPS)


def send(url: str, count: int) -> None:
    """Send the same batch again and again, like a worker without environments."""
    fragment = fragment_of(noise())
    port = NatsWorkerTransport(Link(Address(url=url, job=job().key), role=Role.WORKER), 0, job())
    for _ in range(count):
        sending = port.send(fragment, META)
        sending.admitted.result()
    sending.delivered.result()
    port.close()


def rollfleet_mb_per_s(server: NatsServer, batches: int) -> float:
    """Return the megabytes on the wire per second, without the first two batches."""
    sender = _start(send, server.url(Role.WORKER), batches + 2)
    with rollfleet.connect(job(), address=server.url(Role.LEARNER)) as collector:
        next(collector), next(collector)
        began, before = time.perf_counter(), collector.stats().bytes
        for _ in range(batches):
            next(collector)
        rate = (collector.stats().bytes - before) / (time.perf_counter() - began) / 1e6
    sender.join()
    return rate


class Blocking:
    """The shortest client of NATS's core protocol: a socket, subscribed to one subject."""

    def __init__(self, url: str, subject: str) -> None:
        where = urlsplit(url)
        self._socket = socket.create_connection((where.hostname, where.port), timeout=60)
        self._lines = self._socket.makefile("rb")
        self._lines.readline()  # the server's INFO line
        who = json.dumps({"user": where.username, "pass": where.password, "verbose": False})
        self.send(f"CONNECT {who}\r\nSUB {subject} 1\r\nPING\r\n".encode())
        if (line := self._lines.readline()) != b"PONG\r\n":
            raise ConnectionError(f"the server answered {line!r}")

    def send(self, commands: bytes) -> None:
        """Send commands of the protocol."""
        self._socket.sendall(commands)

    def receive(self, into: bytearray) -> None:
        """Receive the next message into `into`, which has space for it and the end of its line."""
        while not (line := self._lines.readline()).startswith(b"MSG"):
            if line != b"PING\r\n":
                raise ConnectionError(f"the server says {line!r}")
            self.send(b"PONG\r\n")
        self._lines.readinto(memoryview(into)[: int(line.split()[-1]) + 2])

    def close(self) -> None:
        """Close the socket."""
        self._lines.close()
        self._socket.close()


def publish_by_hand(url: str, count: int) -> None:
    """Publish with `IN_FLIGHT` messages in flight; an empty message confirms each arrival."""
    client, empty = Blocking(url, "room"), bytearray(2)
    message = b"PUB plain %d\r\n%b\r\n" % (MESSAGE_BYTES, bytes(MESSAGE_BYTES))
    for sent in range(count):
        if sent >= IN_FLIGHT:
            client.receive(empty)
        client.send(message)
    for _ in range(IN_FLIGHT):
        client.receive(empty)
    client.close()


def by_hand_mb_per_s(server: NatsServer, messages: int) -> float:
    """Return the megabytes of messages per second, from the first arrivals on."""
    client, message = Blocking(server.url(None), "plain"), bytearray(MESSAGE_BYTES + 2)
    publisher = _start(publish_by_hand, server.url(None), messages + IN_FLIGHT)
    for received in range(messages + IN_FLIGHT):
        if received == IN_FLIGHT:
            began = time.perf_counter()
        client.receive(message)
        client.send(b"PUB room 0\r\n\r\n")
    seconds = time.perf_counter() - began
    publisher.join()
    client.close()
    return messages * MESSAGE_BYTES / seconds / 1e6


def _start(function: object, *arguments: object) -> BaseProcess:
    process = multiprocessing.get_context("spawn").Process(target=function, args=arguments)  # type: ignore[arg-type]
    process.start()
    return process


def main() -> None:
    """Measure in turn and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="one round of few batches")
    arguments = parser.parse_args()
    rounds, batches = (1, 3) if arguments.quick else (arguments.rounds, 20)
    messages = batches * 30  # about as many bytes
    ours, by_hand = [], []
    for _ in range(rounds):
        with nats_job.nats_server(job()) as server:
            ours.append(rollfleet_mb_per_s(server, batches))
            by_hand.append(by_hand_mb_per_s(server, messages))
    ratio = median(here / there for here, there in zip(ours, by_hand, strict=True))
    print("| Rollfleet, MB/s | by hand, MB/s | ratio |\n|---|---|---|")
    print(f"| {median(ours):,.0f} | {median(by_hand):,.0f} | {ratio:.2f} |")


if __name__ == "__main__":
    main()
