"""Rigs of the transports: how each is made, how one more worker joins, and how it breaks."""

from multiprocessing import active_children
from typing import Any

from tests.faults.proxy import Proxy
from tests.job_server import Server, WorkerThread, join_all

from rollfleet.errors import LearnerReplaced, RollfleetError, WorkerFailed
from rollfleet.nats.transport import NatsTransport
from rollfleet.processes.inline import InlineTransport
from rollfleet.processes.transport import ProcessesTransport
from rollfleet.testing import Rig, marked_workload, small_job
from rollfleet.testing.rig import receive, run, send, small_spec
from rollfleet_api.job import CollectorJob
from rollfleet_api.messages import LearnerPhase
from rollfleet_api.permissions import Role


class InlineRig:
    """One worker, in this process."""

    in_background = joins_as_member = False

    def __init__(self, job: CollectorJob) -> None:
        self.transport = InlineTransport(marked_workload(job))

    def join(self) -> int:
        raise NotImplementedError("there is one worker, and it is here")

    def break_down(self) -> type[RollfleetError]:
        raise NotImplementedError("nothing runs in the background")

    def close(self) -> None:
        self.transport.close()


class ProcessesRig:
    in_background, joins_as_member = True, False

    def __init__(self, job: CollectorJob, workers: int) -> None:
        assert job.spec.workers == workers + 1, "one more worker may join"
        fewer = job.model_copy(update={"spec": job.spec.model_copy(update={"workers": workers})})
        others = active_children()
        self.transport = ProcessesTransport(marked_workload(fewer), start_method="fork")
        self._workers = [process for process in active_children() if process not in others]

    def join(self) -> int:
        (index,) = self.transport.add_workers(1)
        return index

    def break_down(self) -> type[RollfleetError]:
        self._workers[0].kill()
        return WorkerFailed

    def close(self) -> None:
        self.transport.close()


class NatsRig:
    in_background = joins_as_member = True

    def __init__(self, server: Server, job: CollectorJob, workers: int) -> None:
        self._server, self._job = server, job
        self.workers: list[WorkerThread] = []
        self.transport = NatsTransport(server.link(Role.LEARNER), job)
        for _ in range(workers):
            self.join()

    def join(self) -> int:
        index = len(self.workers)
        self.workers.append(WorkerThread(self._server, self._job, index, workload=marked_workload(self._job)))
        return index

    def break_down(self) -> type[RollfleetError]:
        NatsTransport(self._server.link(Role.LEARNER), self._job).close()
        return LearnerReplaced

    def close(self) -> None:
        self.transport.close()
        last = NatsTransport(self._server.link(Role.LEARNER), self._job)  # the transport under test may be broken
        run(last, version=1000, round=1000, phase=LearnerPhase.COMPLETE)
        join_all(self.workers)
        last.close()


class FarRig(NatsRig):
    """Each process is 40 ms away from NATS, on a link of 2 MB/s."""

    def __init__(self, server: Server, job: CollectorJob, workers: int) -> None:
        self._proxy = Proxy([server.host_port])
        self._proxy.delay_s, self._proxy.bytes_per_s = 0.04, 2e6
        server.way = self._proxy.host_port
        super().__init__(server, job, workers)

    def close(self) -> None:
        super().close()
        self._server.way = self._server.host_port
        self._proxy.close()


class NamesakeRig(NatsRig):
    """Learner and workers of a deleted job of the same name talk on, with the credentials."""

    def __init__(self, server: Server, job: CollectorJob, workers: int) -> None:
        plain = server.own(**small_spec(workers=workers + 1))
        metadata = plain.metadata.model_copy(update={"uid": "earlier"})
        earlier = server.own_job(plain.model_copy(update={"metadata": metadata}))
        self._others = NatsRig(server, earlier, workers)
        send(self._others.transport, 7)
        run(self._others.transport, version=7, round=7)
        receive(self._others.transport)
        super().__init__(server, server.own_job(job), workers)

    def close(self) -> None:
        super().close()
        for each in self._others.workers:
            each.transport.close()
        self._others.transport.close()


NATS_RIGS = {"nats": NatsRig, "nats, far away": FarRig, "nats, with a namesake": NamesakeRig}


def make_rig(kind: str, server: Server | None, workers: int, spec: dict[str, Any]) -> Rig:
    """Make a rig of a kind (`inline`, `processes` or of `NATS_RIGS`) with this many workers; one more may join."""
    if server:
        return NATS_RIGS[kind](server, server.own(**small_spec(workers=workers + 1, **spec)), workers)
    if kind == "inline":
        return InlineRig(small_job(**spec))
    return ProcessesRig(small_job(workers=workers + 1, **spec), workers)
