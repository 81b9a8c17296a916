"""A real nats-server with the users, permissions and stream of the job `default/test`, and workers in threads."""

import asyncio
import json
import logging
import signal
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

import gymnasium
import torch
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from tests.api.job_data import job_data
from tests.waiting import wait_until
from torch import nn

from rollfleet import ActorCritic, Collector
from rollfleet.nats.embedded_server import CONFIG, NatsServer, start_nats_server
from rollfleet.nats.job_source import JobOwner
from rollfleet.nats.link import Link
from rollfleet.nats.transport import NatsTransport
from rollfleet.nats.worker_transport import NatsWorkerTransport
from rollfleet.transports.workload import Workload
from rollfleet.worker.evaluation import EvaluationWorker
from rollfleet.worker.worker import Worker
from rollfleet_api.address import Address
from rollfleet_api.job import CollectorJob
from rollfleet_api.messages import Control, WorkerState, WorkerStatus
from rollfleet_api.permissions import Role
from rollfleet_api.ranks import ALONE, Rank
from rollfleet_api.subjects import Ask, Subjects
from rollfleet_api.validation import parse_job

T = TypeVar("T")

log = logging.getLogger(__name__)

STOP_GRACE_S = 2.0


class Server:
    """The fixture `server`: a nats-server for one job.

    Attributes:
        subjects: The subjects of `default/test`, the one job that its users may use.
        folder: The folder of the server's files.
        way: `host:port` by which processes reach the server from now on.
    """

    def __init__(self, folder: Path) -> None:
        self.subjects = Subjects(namespace="default", job="test")
        self.folder = folder
        self._loop = asyncio.Runner()  # the server's process needs an existing loop, not a running one
        self._links = ExitStack()
        self._owner: Link | None = None
        self._job: CollectorJob | None = None
        self._running: NatsServer = self._loop.run(start_nats_server(self.subjects, folder))
        self.way = self.host_port

    @property
    def pid(self) -> int:
        return self._running.child.pid

    @property
    def host_port(self) -> str:
        return self._running.host_port

    @property
    def passwords(self) -> Mapping[str, str]:
        return self._running.passwords

    def url(self, role: Role | None = None) -> str:
        """Return the URL for a role; None: for the job's owner, with all permissions."""
        return self._running.url(role).replace(self.host_port, self.way)

    def address(self, role: Role | None = None) -> Address:
        """Return the address for a role, as a process reads it."""
        return Address(url=self.url(role), job=self.subjects.key)

    def link(self, role: Role | None = None) -> Link:
        """Return a connection that is closed after the test."""
        link = Link(self.address(role), role=role, timeout_s=60)
        self._links.callback(link.close)
        return link

    def own(self, **spec: object) -> CollectorJob:
        """Be the owner of a small job `default/test` with these fields of its spec, in camelCase."""
        job = parse_job(job_data({"name": self.subjects.job, "namespace": self.subjects.namespace}, **spec))
        return self.own_job(job)

    def own_job(self, job: CollectorJob) -> CollectorJob:
        """Be the owner of this job."""
        if self._owner:
            self._owner.close()
        self._owner, self._job = self.link(), job
        self._job_owner = JobOwner(self._owner, job)
        self._owner.call(self._job_owner.start(), timeout_s=60)
        return job

    def disown(self) -> None:
        """Let the job's owner end."""
        assert self._owner
        self._owner.close()

    def delete(self) -> None:
        """Delete the owned job."""
        assert self._owner
        self._owner.call(self._job_owner.delete(), timeout_s=60)

    def learner_transport(self, link: Link | None = None, rank: Rank = ALONE) -> NatsTransport:
        """Take the owned job over. The transport, for `Collector.over`, ends at the latest when this server does."""
        assert self._job
        transport = NatsTransport(link or self.link(Role.LEARNER), self._job, rank=rank)
        self._links.callback(transport.close)
        return transport

    def hear_control(self) -> list[Control]:
        """Return the control messages from the newest one on; the list grows."""
        link, heard = self.link(), list[Control]()
        link.call(link.listen(link.subjects.control, Control, heard.append), timeout_s=60)
        link.call(link.ask(Ask.CONTROL), timeout_s=60)
        return heard

    def hear(self, subject: str, kind: type[T]) -> list[T]:
        """Return the messages on a subject from now on; the list grows."""
        link, heard = self.link(), list[T]()
        link.call(link.listen(subject, kind, heard.append), timeout_s=60)
        return heard

    def heard(self, subject: str, matches: Callable[[bytes], object]) -> threading.Event:
        """Return an event that is set when a matching message comes."""
        link, event = self.link(), threading.Event()

        async def hear(message: Msg) -> None:
            if matches(message.data):
                event.set()

        link.call(link.client.subscribe(subject, cb=hear))
        link.call(link.flush())
        return event

    def worker_transport(self, index: int, link: Link | None = None) -> NatsWorkerTransport:
        """Join the owned job as a worker that does nothing by itself. It ends when this server does."""
        assert self._job
        return NatsWorkerTransport(link or self.link(Role.WORKER), index, self._job)

    def start_worker(
        self, job: CollectorJob, index: int, *, evaluates: bool = False, link: Link | None = None
    ) -> "WorkerThread":
        """Start a worker or an evaluation worker of a provisioned job. It ends at the latest when this server does."""
        return WorkerThread(self, job, index, evaluates=evaluates, link=link)

    def start_workers(self, **spec: object) -> "list[WorkerThread]":
        """Own a job with these fields of its spec, and start all of its workers."""
        job = self.own(**spec)
        return [WorkerThread(self, job, index) for index in range(job.spec.workers)]

    def kill(self) -> None:
        self._running.child.kill(signal.SIGKILL)
        self._loop.run(self._running.child.wait())

    def start_again(self, **changes: object) -> None:
        """Start it after `kill`: on the same port, with the same users and these changes of its settings, and empty."""
        config = self.folder / CONFIG
        config.write_text(json.dumps(json.loads(config.read_text()) | changes))
        self._loop.run(self._running.start_again())

    def restart(self, **changes: object) -> None:
        """Kill it, and start it again."""
        self.kill()
        self.start_again(**changes)

    def stop(self) -> None:
        try:
            self._links.close()
        finally:
            self._loop.run(self._running.child.stop(STOP_GRACE_S))
            self._loop.close()


class WorkerThread:
    """A worker of a job in a thread: the program's loop, without the seconds that a process takes to start.

    Attributes:
        error: The error that ended it; None: it ended without one, or still runs.
    """

    def __init__(
        self,
        server: Server,
        job: CollectorJob,
        index: int,
        *,
        evaluates: bool = False,
        workload: Workload | None = None,
        link: Link | None = None,
    ) -> None:
        link = link or server.link(Role.WORKER)
        self.transport = NatsWorkerTransport(link, index, job, evaluates=evaluates)
        self.error: BaseException | None = None
        self._kind: type[Worker | EvaluationWorker] = EvaluationWorker if evaluates else Worker
        self._job, self._workload, self._index = job, workload, index
        self._built: Future[Worker | EvaluationWorker] = Future()
        link.after_close(lambda: self._built.add_done_callback(lambda built: built.result().leave()))
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def wait_for(self, state: WorkerState, timeout_s: float = 60.0) -> None:
        """Wait until its heartbeat has this state."""
        wait_until(lambda: self.status and self.status.state is state, timeout_s)

    @property
    def status(self) -> WorkerStatus | None:
        return self._built.result().status if self._built.done() else None

    def leave(self, timeout_s: float = 60.0) -> None:
        """Leave as the program does on SIGTERM. Waits until the worker is built: it has a heartbeat before that."""
        self._built.result(timeout_s).leave()

    def join(self, timeout_s: float = 60.0) -> None:
        self._thread.join(timeout_s)
        assert not self._thread.is_alive(), f"the worker did not leave: {self.status}, {self.transport.control}"

    def _run(self) -> None:
        try:
            worker = self._kind(self.transport, self._workload or Workload.of(self._job), self._index)
            self._built.set_result(worker)
            try:
                worker.run()
            finally:
                worker.close()
        except BaseException as error:
            log.info("worker %d ended", self._index, exc_info=True)  # a test that waits in vain for it shows why
            self.error = error


def join_all(workers: Sequence[WorkerThread]) -> None:
    """Wait for the end of workers, and check that no error ended them."""
    for worker in workers:
        worker.join()
        assert worker.error is None


def actor_critic() -> ActorCritic:
    """Return a policy for the environment of `Server.provision`."""
    env = gymnasium.make("CartPole-v1")
    return ActorCritic(env.observation_space, env.action_space)


def always(policy: ActorCritic, action: int) -> ActorCritic:
    """Return parameters with which the policy takes this action on every observation, under `exploration: Mode`."""
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.zero_()
        head = policy.actor[-1]
        assert isinstance(head, nn.Linear)
        head.bias[action] = 1.0
    return policy


def lose_next(link: Link, kind: str, count: int) -> list[str]:
    """Lose the next messages of a kind that a connection publishes. Returns the subjects of those that were lost."""
    publish, lost = link.publish, list[str]()

    async def publish_or_lose(subject: str, data: Any) -> None:
        if kind in subject.split(".") and len(lost) < count:
            lost.append(subject)
        else:
            await publish(subject, data)

    link.publish = publish_or_lose  # type: ignore[method-assign]
    return lost


def hearing(link: Link) -> threading.Event:
    """Let a connection handle messages only while this event is set, as a process that SIGSTOP may stop. It is set."""
    hears, subscribe = threading.Event(), link.client.subscribe
    hears.set()

    async def subscribe_and_hold(subject: str, *, cb: Callable[[Msg], Awaitable[None]], **limits: Any) -> Subscription:
        async def handle(message: Msg) -> None:
            while not hears.is_set():  # noqa: ASYNC110 (another thread sets it)
                await asyncio.sleep(0.01)
            await cb(message)

        return await subscribe(subject, cb=handle, **limits)

    link.client.subscribe = subscribe_and_hold  # type: ignore[method-assign, assignment]
    return hears


Connect = Callable[..., Collector]
