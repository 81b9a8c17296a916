"""Collectors of jobs on a real nats-server."""

import threading
from contextlib import ExitStack
from dataclasses import fields, replace
from typing import Any, ClassVar

import torch
from tests.job_server import Server
from tests.sdk.given_keywords import keywords_of
from tests.sdk.places import Collect

from rollfleet import Collector
from rollfleet.learner.construction import construct
from rollfleet.nats.link import Link
from rollfleet.nats.streams import deprovision, provision
from rollfleet.nats.transport import NatsTransport
from rollfleet.nats.worker_transport import NatsWorkerTransport
from rollfleet.transports.workload import Workload
from rollfleet.worker.worker import Worker, failure
from rollfleet_api.job import Metadata, Vectorization
from rollfleet_api.messages import WorkerStatus
from rollfleet_api.permissions import Role

MAKING_S = 10.0  # a worker takes so long at most to be made, unless its environment waits


class CollectOverNats(Collect):
    """Two workers of a job on a real nats-server, each a thread of this process."""

    workers = 2
    alone: ClassVar[dict[str, Any]] = {"workers": 1}

    def __init__(self, stack: ExitStack, server: Server) -> None:
        super().__init__(stack)
        self._server = server

    def __call__(self, env: Any, policy: Any = None, **keywords: Any) -> Collector:
        """Make a collector of a job with these keywords. Shuts down the last one first."""
        self._stack.close()
        self._links = self._stack.enter_context(ExitStack())  # closed last
        keywords.setdefault("workers", self.workers)
        construction = construct(env, policy, keywords_of(**keywords))
        job = construction.workload.job
        spec = job.spec.model_copy(update={"delivery": job.spec.delivery.model_copy(update={"max_bytes": "64Mi"})})
        metadata = Metadata(name=self._server.subjects.job, namespace=self._server.subjects.namespace)
        job = job.model_copy(update={"metadata": metadata, "spec": spec})
        admin = self._link()
        admin.call(deprovision(admin), timeout_s=60)
        admin.call(provision(admin, job), timeout_s=60)
        # One after another: threads that make TensorDict's modules or TorchRL's environments disturb each other. A
        # process of environments is a fork, and would wait for ever for a lock that another thread holds at that
        # moment, such as torch's while it seeds. The last ones may wait for what comes later in a test.
        forks = job.spec.env.vectorization is Vectorization.ASYNC
        for index in range(job.spec.workers):
            made = threading.Event()
            transport = NatsWorkerTransport(self._link(Role.WORKER), index)
            arguments = (transport, construction.workload, index, made)
            thread = threading.Thread(target=_work, args=arguments, daemon=True)
            self._stack.callback(_join, thread)
            thread.start()
            if forks or index < job.spec.workers - 1:
                made.wait(MAKING_S)
        device = torch.device(keywords["device"]) if "device" in keywords else None
        no_cuda_sync = keywords.get("no_cuda_sync", False)
        learner = NatsTransport(self._link(Role.LEARNER), job, device=device, no_cuda_sync=no_cuda_sync)
        options: Any = {each.name: getattr(construction.options, each.name) for each in fields(construction.options)}
        return self._kept(Collector.over(learner, job, policy, **options))

    def _link(self, role: Role | None = None) -> Link:
        link = Link(self._server.address(role), role=role, timeout_s=60)
        self._links.callback(link.close)
        return link


def _work(transport: NatsWorkerTransport, workload: Workload, index: int, made: threading.Event) -> None:
    worker = None
    try:
        worker = Worker(transport, workload, index)
        made.set()
        worker.run()
    except Exception as error:
        none = WorkerStatus(worker=index, incarnation=transport.incarnation)
        status = worker.failed(error) if worker else failure(none, error)
        transport.report(replace(status, fatal=True))  # no one restarts it here
    finally:
        made.set()
        if worker:
            worker.close()
        transport.close()


def _join(thread: threading.Thread) -> None:
    thread.join(60)
    assert not thread.is_alive(), "a worker did not leave"
