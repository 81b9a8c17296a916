"""Fixtures: collectors on each transport."""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
import torch

from rollfleet import Collector
from rollfleet.learner.construction import construct
from rollfleet.nats.link import Link
from rollfleet.nats.streams import deprovision, provision
from rollfleet.nats.transport import NatsTransport
from rollfleet.nats.worker_transport import NatsWorkerTransport
from rollfleet.transports.workload import Workload
from rollfleet.worker.worker import Worker
from rollfleet_api.job import CollectorJob, Metadata
from rollfleet_api.permissions import Role

if TYPE_CHECKING:
    from tests.job_server import Server
from tests.sdk.collector.given_keywords import keywords_of
from tests.sdk.collector.places import FORKED, Collect, CollectInProcesses


class CollectOverNats(Collect):
    """Two workers of a job on a real nats-server, each a thread of this process."""

    workers = 2
    alone: ClassVar[dict[str, Any]] = {"workers": 1}

    def __init__(self, stack: ExitStack, server: "Server") -> None:
        super().__init__(stack)
        self._server = server

    def __call__(self, env: Any, policy: Any = None, **keywords: Any) -> Collector:
        """Make a collector of a job with these keywords. Shuts down the last one first."""
        self._stack.close()
        keywords.setdefault("workers", self.workers)
        construction = construct(env, policy, keywords_of(**keywords))
        job = construction.workload.job
        spec = job.spec.model_copy(update={"delivery": job.spec.delivery.model_copy(update={"max_bytes": "64Mi"})})
        metadata = Metadata(name=self._server.subjects.job, namespace=self._server.subjects.namespace)
        job = job.model_copy(update={"metadata": metadata, "spec": spec})
        admin = self._server.link()
        admin.call(deprovision(admin), timeout_s=10)
        admin.call(provision(admin, job), timeout_s=10)
        for index in range(job.spec.workers):
            link = self._server.link(Role.WORKER)
            thread = threading.Thread(target=partial(_work, link, job, construction.workload, index), daemon=True)
            self._stack.callback(_join, thread)
            thread.start()
        device = torch.device(keywords["device"]) if "device" in keywords else None
        no_cuda_sync = keywords.get("no_cuda_sync", False)
        transport = NatsTransport(self._server.link(Role.LEARNER), job, device=device, no_cuda_sync=no_cuda_sync)
        options: Any = {each.name: getattr(construction.options, each.name) for each in fields(construction.options)}
        return self._kept(Collector.over(transport, job, policy, **options))


def _work(link: Link, job: CollectorJob, workload: Workload, index: int) -> None:
    transport = NatsWorkerTransport(link, index)
    worker = Worker(transport, workload, index)
    try:
        worker.run()
    except Exception as error:
        transport.report(replace(worker.failed(error), fatal=True))  # no one restarts it here
    finally:
        worker.close()
        transport.close()


def _join(thread: threading.Thread) -> None:
    thread.join(20)
    assert not thread.is_alive(), "a worker did not leave"


def _place(request: pytest.FixtureRequest, stack: ExitStack) -> Collect:
    if request.param == "nats":
        return CollectOverNats(stack, request.getfixturevalue("server"))
    return CollectInProcesses(stack) if request.param == "processes" else Collect(stack)


PROCESSES = pytest.param("processes", marks=FORKED)


@pytest.fixture(params=["here", PROCESSES, "nats"])
def collect(request: pytest.FixtureRequest) -> Iterator[Collect]:
    """Makes collectors on each transport in turn."""
    with ExitStack() as stack:
        yield _place(request, stack)


@pytest.fixture(params=[PROCESSES, "nats"])
def apart(request: pytest.FixtureRequest) -> Iterator[Collect]:
    """Makes collectors with two workers outside of the learner, on each such transport in turn."""
    with ExitStack() as stack:
        yield _place(request, stack)


@pytest.fixture
def here() -> Iterator[Callable[..., Collector]]:
    """Makes collectors in this process only."""
    with ExitStack() as stack:
        yield Collect(stack)


@pytest.fixture
def processes() -> Iterator[Collect]:
    """Makes collectors of two worker processes."""
    with ExitStack() as stack:
        yield CollectInProcesses(stack)
