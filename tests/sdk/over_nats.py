"""Collectors of jobs on a real nats-server."""

import threading
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, ClassVar

import torch
from tests.job_server import Server
from tests.sdk.given_keywords import keywords_of
from tests.sdk.places import Collect

from rollfleet import Collector
from rollfleet.learner.construction import construct
from rollfleet.nats.job_source import JobOwner
from rollfleet.nats.link import Link
from rollfleet.nats.transport import NatsTransport
from rollfleet.nats.worker_transport import NatsWorkerTransport
from rollfleet.transports.workload import Workload
from rollfleet.worker.worker import Worker, failure
from rollfleet_api.job import Metadata, Vectorization
from rollfleet_api.messages import WorkerStatus
from rollfleet_api.permissions import Role

MAKING_S = 3.0


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
        owner = self._link()
        owner.call(JobOwner(owner, job).start(), timeout_s=60)
        transports = [NatsWorkerTransport(self._link(Role.WORKER), index, job) for index in range(job.spec.workers)]
        workers = [_InThread(each, construction.workload, index) for index, each in enumerate(transports)]
        if job.spec.env.vectorization is Vectorization.ASYNC:
            # Before a worker runs: a process of environments is a fork, and would wait forever for a lock that another
            # worker's thread holds at that moment, such as torch's while it seeds.
            for worker in workers:
                worker.make()
        for worker in workers:
            self._stack.callback(worker.join)
            worker.start()
        device = torch.device(keywords["device"]) if "device" in keywords else None
        no_cuda_sync = keywords.get("no_cuda_sync", False)
        learner = NatsTransport(self._link(Role.LEARNER), job, device=device, no_cuda_sync=no_cuda_sync)
        options = {name: construction.options[name] for name in ("postproc", "replay_buffer", "weight_scheme")}
        return self._kept(Collector.over(learner, job, policy, **options))

    def _link(self, role: Role | None = None) -> Link:
        link = Link(self._server.address(role), role=role, timeout_s=60)
        self._links.callback(link.close)
        return link


class _InThread(threading.Thread):
    """A worker, made and run in a thread; its error reaches the learner."""

    def __init__(self, transport: NatsWorkerTransport, workload: Workload, index: int) -> None:
        super().__init__(daemon=True)
        self._transport, self._workload, self._index = transport, workload, index
        self._worker: Worker | None = None
        self._made = threading.Event()

    def make(self) -> Worker:
        self._worker = self._worker or Worker(self._transport, self._workload, self._index)
        return self._worker

    def start(self) -> None:
        """Start it, and wait until the worker is made, unless its environment waits for what the test does later.

        Threads that make TensorDict's modules or TorchRL's environments disturb each other.
        """
        super().start()
        self._made.wait(MAKING_S)

    def run(self) -> None:
        try:
            worker = self.make()
            self._made.set()
            worker.run()
        except Exception as error:
            none = WorkerStatus(worker=self._index, incarnation=self._transport.incarnation)
            status = self._worker.failed(error) if self._worker else failure(none, error)
            self._transport.report(replace(status, fatal=True))  # no one restarts it here
        finally:
            self._made.set()
            if self._worker:
                self._worker.close()
            self._transport.close()

    def join(self, timeout_s: float | None = 60) -> None:
        super().join(timeout_s)
        assert not self.is_alive(), "a worker did not leave"
