"""Transports as they are put to the test: how each is made, how one more worker joins, and how it breaks."""

import threading
import time
from multiprocessing import active_children
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn

from rollfleet.envs.factory import make_env
from rollfleet.errors import LearnerReplaced, RollfleetError, WorkerFailed
from rollfleet.nats.transport import NatsTransport
from rollfleet.nats.worker_transport import NatsWorkerTransport
from rollfleet.processes.inline import InlineTransport
from rollfleet.processes.transport import ProcessesTransport
from rollfleet.schemes import Whole
from rollfleet.transports.learner_side import Arrival, Transport
from rollfleet.transports.workload import Workload
from rollfleet.weights.layout import POLICY, WeightLayout, state_of
from rollfleet.worker.worker import Worker
from rollfleet_api.job import API_VERSION, KIND, CollectorJob
from rollfleet_api.messages import Control, LearnerPhase, WorkerState
from rollfleet_api.permissions import Role
from rollfleet_api.validation import parse_job

if TYPE_CHECKING:
    from tests.job_server import Server

ENVS, STEPS = 2, 4
PATIENCE_S = 30.0


class Marked(nn.Module):
    """Puts its one weight into the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.mark = nn.Parameter(torch.zeros(1))

    def forward(self, observation: Tensor) -> dict[str, Tensor]:
        envs = observation.shape[0]
        return {"action": torch.zeros(envs, dtype=torch.int64), "mark": self.mark.expand(envs, 1).clone()}


def workload(job: CollectorJob) -> Workload:
    return Workload(job=job, make_env=lambda _: make_env(job.spec.env), make_policy=lambda *_: Marked(), scheme=Whole())


def spec_of(**spec: Any) -> dict[str, Any]:
    return {
        "mode": "Async",
        "workers": 2,
        "env": {"id": "CartPole-v1", "numEnvs": ENVS},
        "policy": {"mlp": {}},
        "collect": {"framesPerBatch": ENVS * STEPS},
        "weights": {"maxLag": 0},
    } | spec


class Rig(Protocol):
    """A transport to be tested; one more worker may join; something may break in the background (with which error)."""

    in_background: bool
    """Whether workers go on while nobody receives."""

    @property
    def transport(self) -> Transport: ...
    def join(self) -> int: ...
    def break_down(self) -> type[RollfleetError]: ...
    def close(self) -> None: ...


class Inline:
    """One worker, in this process."""

    in_background = False

    def __init__(self, job: CollectorJob) -> None:
        self.transport = InlineTransport(workload(job))

    def join(self) -> int:
        raise NotImplementedError("there is one worker, and it is here")

    def break_down(self) -> type[RollfleetError]:
        raise NotImplementedError("nothing goes on in the background")

    def close(self) -> None:
        self.transport.close()


class OverProcesses:
    in_background = True

    def __init__(self, job: CollectorJob, workers: int) -> None:
        assert job.spec.workers == workers + 1, "a place is kept for whoever joins"
        fewer = job.model_copy(update={"spec": job.spec.model_copy(update={"workers": workers})})
        others = active_children()
        self.transport = ProcessesTransport(workload(fewer), start_method="fork")
        self._workers = [process for process in active_children() if process not in others]

    def join(self) -> int:
        (index,) = self.transport.add_workers(1)
        return index

    def break_down(self) -> type[RollfleetError]:
        self._workers[0].kill()
        return WorkerFailed

    def close(self) -> None:
        self.transport.close()


class OverNats:
    in_background = True

    def __init__(self, server: "Server", job: CollectorJob, workers: int) -> None:
        self._server, self._job = server, job
        self._joined = 0
        self._threads: list[threading.Thread] = []
        self.transport = NatsTransport(server.link(Role.LEARNER), job)
        for _ in range(workers):
            self.join()

    def join(self) -> int:
        transport = NatsWorkerTransport(self._server.link(Role.WORKER), self._joined)
        self._threads.append(threading.Thread(target=self._work, args=(transport, self._joined), daemon=True))
        self._threads[-1].start()
        self._joined += 1
        return self._joined - 1

    def break_down(self) -> type[RollfleetError]:
        NatsTransport(self._server.link(Role.LEARNER), self._job).close()
        return LearnerReplaced

    def close(self) -> None:
        self.transport.close()
        last = NatsTransport(self._server.link(Role.LEARNER), self._job)  # the one under test may be broken
        last.control(Control(session=last.resumed.session, phase=LearnerPhase.COMPLETE, round=1000, version=1000))
        for thread in self._threads:
            thread.join(PATIENCE_S)
        last.close()

    def _work(self, transport: NatsWorkerTransport, index: int) -> None:
        worker = Worker(transport, workload(self._job), index)
        worker.run()
        worker.close()


def job_of(workers: int, **spec: Any) -> CollectorJob:
    said = spec_of(workers=workers, **spec)
    return parse_job({"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": "test"}, "spec": said})


def made(place: str, server: "Server | None", workers: int, spec: dict[str, Any]) -> Rig:
    """A rig of so many workers in a place: `inline`, `processes`, or `nats`."""
    if server:
        return OverNats(server, server.provision(**spec_of(workers=workers + 1, **spec)), workers)
    return Inline(job_of(1, **spec)) if place == "inline" else OverProcesses(job_of(workers + 1, **spec), workers)


def run(transport: Transport, version: int = 1, **more: Any) -> None:
    told: dict[str, Any] = {"phase": LearnerPhase.RUN, "round": 0, "version": version} | more
    transport.control(Control(session=transport.resumed.session, **told))


def send(transport: Transport, version: int, mark: float | None = None) -> None:
    policy = Marked()
    nn.init.constant_(policy.mark, version if mark is None else mark)
    models = {POLICY: state_of(policy)}
    transport.send_weights(version, WeightLayout(models).snapshot(models))


def receive(transport: Transport, count: int = 1, *, take: bool = True) -> list[Arrival]:
    arrivals: list[Arrival] = []
    until = time.monotonic() + PATIENCE_S
    while len(arrivals) < count:
        assert time.monotonic() < until, f"{len(arrivals)} batches came; workers: {dict(transport.workers())}"
        arrival = transport.receive(timeout_s=0.2)
        if arrival:
            arrivals.append(arrival)
            if take:
                transport.take(arrival)
    return arrivals


def wait_for(
    transport: Transport, worker: int, state: WorkerState, *, batches: int | None = None, drain: bool = False
) -> None:
    """Wait until a worker says this of itself; `drain`: take what comes meanwhile."""
    until = time.monotonic() + PATIENCE_S
    while True:
        status = transport.workers().get(worker)
        if status and status.state is state and batches in (None, status.batches):
            return
        assert time.monotonic() < until, f"worker {worker} is not {state}: {status}"
        if drain and (arrival := transport.receive(timeout_s=0)):
            transport.take(arrival)
        time.sleep(0.01)
