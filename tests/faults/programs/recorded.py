"""A real worker and a real learner that also log events: batches collected, handed over.

At SIGUSR1 their clocks jump: an hour forward, then an hour back. The learner is slow at times, and its receipts get
lost, come late, or come twice. A third program attacks NATS, a fourth is the learner of another job of this name.
"""

import asyncio
import json
import logging
import multiprocessing
import os
import random
import signal
import sys
import time
from contextlib import suppress
from itertools import count, cycle, groupby
from typing import Any

import torch
from nats.aio.client import Client
from tests.attacks import ATTACKS

import rollfleet
from rollfleet.cli import worker_program
from rollfleet.envs.factory import make_one
from rollfleet.errors import JobEnded, LearnerReplaced
from rollfleet.learner import gathering
from rollfleet.nats.link import Link
from rollfleet.nats.transport import NatsTransport
from rollfleet.nats.worker_transport import NatsWorkerTransport
from rollfleet.policies.factory import make_policy
from rollfleet_api.address import THREADS, WORKER, Address
from rollfleet_api.permissions import Role
from rollfleet_api.subjects import Subjects
from rollfleet_api.versions import count_of

PAUSE_S, LONG_PAUSE_S = 0.01, 0.5  # the learner pauses between two batches
LATE_S = 0.1


def work(log: str, url: str, job: str, index: int, *, variables: dict[str, str]) -> None:
    _begin(log)
    os.environ |= {WORKER: str(index)} | variables
    multiprocessing.current_process().daemon = False  # its environments have processes
    send, numbers = NatsWorkerTransport.send, count()

    def recorded(self: NatsWorkerTransport, fragment: Any, meta: Any) -> Any:
        identity = f"{index}.{self.incarnation}.{next(numbers)}"
        rows = _rows(fragment.steps["observation",], fragment.steps["collector", "traj_ids"])
        version = count_of(meta.version)
        _write(log, event="collected", identity=identity, round=meta.round, version=version, rows=rows)
        return send(self, fragment, meta)

    NatsWorkerTransport.send = recorded  # type: ignore[method-assign]
    sys.exit(worker_program.main(Address(url=url, job=job), index, evaluation=False, threads=0, timeout_s=60.0))


def learn(log: str, url: str, job: str) -> None:
    _begin(log)
    hand_over, publish = gathering.Gatherer.hand_over, Link.publish

    def handed_over(self: gathering.Gatherer, *, stored: bool) -> None:
        fragments = [
            {
                "identity": _key(each),
                "round": each.meta.round,
                "version": count_of(each.meta.version),
                "rows": _rows(each.batch["observation"], each.batch["collector", "traj_ids"]),
                "faults": _faults(each.batch),
            }
            for each in self.under_way
        ]
        _write(
            log,
            event="handed over",
            fragments=fragments,
            version=self.status().version,
            round=self.director.run_state.round,
        )
        hand_over(self, stored=stored)

    async def unreliable(self: Link, subject: str, data: Any) -> None:
        receipt = "taken" in subject.split(".")
        fate = random.choices(("once", "never", "late", "twice"), (17, 1, 1, 1))[0] if receipt else "once"
        if fate == "late":
            self.begin(_later(publish(self, subject, data)))
        for _ in range({"once": 1, "twice": 2}.get(fate, 0)):
            await publish(self, subject, data)

    gathering.Gatherer.hand_over = handed_over  # type: ignore[method-assign]
    Link.publish = unreliable  # type: ignore[method-assign]
    collector = rollfleet.connect(job, address=url)
    policy = _policy(collector.job)
    _write(log, event="connected", version=collector.version)
    module = isinstance(policy, torch.nn.Module)
    try:
        if module:
            collector.update_policy_weights_(policy)
        for _ in collector:
            time.sleep(random.choices((PAUSE_S, LONG_PAUSE_S), (200, 1))[0])
            if module:
                collector.update_policy_weights_(policy)
            _write(log, event="stats", stats=str(collector.stats()), memory=_memory())
    except LearnerReplaced:
        _write(log, event="replaced")


def _policy(job: rollfleet.CollectorJob) -> Any:
    env = make_one(job.spec.env)
    return make_policy(job.spec.policy, env.single_observation_space, env.single_action_space)


async def _later(sending: Any) -> None:
    await asyncio.sleep(LATE_S)
    await sending


def haunt(log: str, url: str, job: rollfleet.CollectorJob) -> None:
    """Be the learner of a job that was deleted, with the job as its pod had it."""
    _begin(log)
    link = Link(Address(url=url, job=job.key), role=Role.LEARNER)
    with suppress(JobEnded), rollfleet.Collector.over(NatsTransport(link, job), job, _policy(job)) as collector:
        next(collector)


def attack(log: str, url: str, job: str) -> None:
    """Make all attacks of a hostile worker of another job, again and again, until killed."""
    _begin(log)
    asyncio.run(_attack(log, url, Subjects.parse(job)))


async def _attack(log: str, url: str, subjects: Subjects) -> None:
    client = Client()
    await client.connect(url.split(","), max_reconnect_attempts=-1, reconnect_time_wait=0)
    for number in count():
        for each, _ in ATTACKS:
            await each(client, subjects, number)
        if number % 10 == 0:
            await client.flush()
            _write(log, event="attacked", times=number)


def _begin(log: str) -> None:
    os.environ[THREADS] = "1"  # threads of several processes would wait for each other on few cores
    torch.set_num_threads(1)
    output = os.open(f"{log}.out", os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    os.dup2(output, 1)
    os.dup2(output, 2)
    real, hours, shift = time.time, cycle((3600.0, 0.0)), [0.0]
    time.time = lambda: real() + shift[0]
    signal.signal(signal.SIGUSR1, lambda *_: shift.__setitem__(0, next(hours)))
    _write(log, event="began")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(process)d %(name)s: %(message)s")


def _write(log: str, **event: Any) -> None:
    """Write one line at once: a process may be killed next."""
    line = json.dumps({"pid": os.getpid(), "s": time.monotonic()} | event) + "\n"
    file = os.open(log, os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    os.write(file, line.encode())
    os.close(file)


def _key(of: Any) -> str:
    return f"{of.worker}.{of.incarnation}.{of.sequence}"


def _rows(observations: torch.Tensor, ids: torch.Tensor) -> list[dict[str, Any]]:
    """Return for each environment its identity, its first and last frame, and the trajectory ids of its episodes.

    An environment that replaces another is one of its own.
    """
    rows = []
    for row in zip(observations.tolist(), ids.tolist(), strict=True):
        for of, part in groupby(zip(*row, strict=True), key=lambda frame: frame[0][:2]):
            seen, owner = zip(*part, strict=True)
            episodes = {(owner[t], frame[2]) for t, frame in enumerate(seen)}
            rows.append({"of": of, "frames": [seen[0][4], seen[-1][4]], "ids": sorted(episodes)})
    return rows


def _faults(batch: Any) -> list[str]:
    seen, then, done = batch["observation"], batch["next", "observation"], batch["next", "done"][..., 0]
    found = []
    if not (then[..., :3] == seen[..., :3]).all():
        found.append("a transition from one episode, or environment, to another")
    if not (then[..., 3:] == seen[..., 3:] + 1).all():
        found.append("a transition over more than a step")
    follows = (seen[:, 1:] == then[:, :-1]).all(-1)
    if not (follows | done[:, :-1]).all():
        found.append("a frame does not follow the one before it")
    if (seen[:, 1:, 3][done[:, :-1]] != 0).any():
        found.append("an episode does not begin at its beginning")
    return found


def _memory() -> int:
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) << 10 for line in status if line.startswith("VmHWM"))
