"""What the collector relies on, of every transport alike.

A transport is put to these tests by a `Rig`: how it is made, how one more worker joins, and how it breaks.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Protocol

import psutil
import pytest
import torch
from torch import Tensor, nn

from rollfleet.envs import make_env
from rollfleet.errors import LearnerReplaced, RollfleetError, WorkerFailed
from rollfleet.schemes import Whole
from rollfleet.transports.nats import NatsTransport
from rollfleet.transports.processes import ProcessesTransport
from rollfleet.transports.transport import Arrival, Transport
from rollfleet.transports.worker_port import WorkerPort
from rollfleet.weights import POLICY, Snapshot, WeightLayout, state_of
from rollfleet.worker import Worker
from rollfleet.workload import Workload
from rollfleet_api.job import API_VERSION, KIND, CollectorJob
from rollfleet_api.messages import Control, Phase, WorkerState
from rollfleet_api.permissions import Role
from rollfleet_api.validation import parse_job

if TYPE_CHECKING:
    from tests.sdk.conftest import Server

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

    @property
    def transport(self) -> Transport: ...
    def join(self) -> int: ...
    def break_down(self) -> type[RollfleetError]: ...
    def close(self) -> None: ...


class OverProcesses:
    def __init__(self, job: CollectorJob, workers: int) -> None:
        assert job.spec.workers == workers + 1, "a place is kept for whoever joins"
        fewer = job.model_copy(update={"spec": job.spec.model_copy(update={"workers": workers})})
        self.transport = ProcessesTransport(workload(fewer), start_method="fork")

    def join(self) -> int:
        (index,) = self.transport.add_workers(1)
        return index

    def break_down(self) -> type[RollfleetError]:
        psutil.Process().children()[0].kill()
        return WorkerFailed

    def close(self) -> None:
        self.transport.close()


class OverNats:
    def __init__(self, server: "Server", job: CollectorJob, workers: int) -> None:
        self._server, self._job = server, job
        self._joined = 0
        self._threads: list[threading.Thread] = []
        self.transport = NatsTransport(server.link(Role.LEARNER), job)
        for _ in range(workers):
            self.join()

    def join(self) -> int:
        port = WorkerPort(self._server.link(Role.WORKER), self._joined)
        self._threads.append(threading.Thread(target=self._work, args=(port, self._joined), daemon=True))
        self._threads[-1].start()
        self._joined += 1
        return self._joined - 1

    def break_down(self) -> type[RollfleetError]:
        NatsTransport(self._server.link(Role.LEARNER), self._job).close()
        return LearnerReplaced

    def close(self) -> None:
        self.transport.close()
        last = NatsTransport(self._server.link(Role.LEARNER), self._job)  # the one under test may be broken
        last.control(Control(session=last.resumed.session, phase=Phase.COMPLETE, round=1000, version=1000))
        for thread in self._threads:
            thread.join(PATIENCE_S)
        last.close()

    def _work(self, port: WorkerPort, index: int) -> None:
        worker = Worker(port, workload(self._job), index)
        worker.run()
        worker.close()


@pytest.fixture(params=["processes", "nats"])
def rig(request: pytest.FixtureRequest) -> Iterator[Callable[..., Rig]]:
    """Makes a rig of so many workers, with room for one more; more of the job's spec may be said."""
    server = request.getfixturevalue("server") if request.param == "nats" else None
    with ExitStack() as stack:

        def make(workers: int = 2, **spec: Any) -> Rig:
            said = spec_of(workers=workers + 1, **spec)
            made: Rig
            if server:
                made = OverNats(server, server.provision(**said), workers)
            else:
                metadata = {"name": "test"}
                job = parse_job({"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": said})
                made = OverProcesses(job, workers)
            stack.callback(made.close)
            return made

        yield make


def run(transport: Transport, version: int = 1, **more: Any) -> None:
    told: dict[str, Any] = {"phase": Phase.RUN, "round": 0, "version": version} | more
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


MakeRig = Callable[..., Rig]


def test_the_first_learner_finds_no_past(rig: MakeRig) -> None:
    resumed = rig(1).transport.resumed
    assert (resumed.session, resumed.version, resumed.round) == (1, 0, 0)


def test_each_workers_batches_come_in_order_and_without_a_gap(rig: MakeRig) -> None:
    transport = rig().transport
    send(transport, 1)
    run(transport)
    arrivals = receive(transport, 12)
    for worker in (0, 1):
        sequences = [arrival.sequence for arrival in arrivals if arrival.worker == worker]
        assert sequences == list(range(len(sequences)))
    assert {arrival.incarnation for arrival in arrivals} == {0}


def test_a_batch_is_that_of_its_meta(rig: MakeRig) -> None:
    transport = rig(1).transport
    send(transport, 3, mark=0.5)
    run(transport, version=3, round=0)
    (arrival,) = receive(transport)
    assert (arrival.meta.version, arrival.meta.session, arrival.meta.frames) == (3, 1, ENVS * STEPS)
    assert arrival.batch.shape == (ENVS, STEPS)
    assert arrival.batch["mark"].unique().tolist() == [0.5]
    assert arrival.batch["collector", "policy_version"].unique().tolist() == [3]
    assert arrival.nbytes > arrival.batch["observation"].nbytes
    assert arrival.episode_returns.dtype is torch.float64
    assert arrival.episode_lengths.shape == arrival.episode_returns.shape


def test_a_batch_stays_as_it_is_while_its_worker_goes_on(rig: MakeRig) -> None:
    transport = rig(1).transport
    send(transport, 1)
    run(transport)
    (first,) = receive(transport)
    before = first.batch.clone()
    assert receive(transport, 6)[-1].sequence == 6
    assert (first.batch == before).all()


def test_of_several_versions_the_newest_acts(rig: MakeRig) -> None:
    transport = rig().transport
    for version in (1, 2, 3):
        send(transport, version)
    run(transport, version=3)
    for arrival in receive(transport, 4):
        assert arrival.meta.version == 3
        assert arrival.batch["mark"].unique().tolist() == [3.0]


def test_no_batch_is_begun_on_a_version_older_than_control_asks_for(rig: MakeRig) -> None:
    transport = rig().transport
    run(transport, version=0)
    for worker in (0, 1):
        wait_for(transport, worker, WorkerState.WAITING_FOR_WEIGHTS)
    send(transport, 1)
    receive(transport, 2)
    run(transport, version=9)
    for worker in (0, 1):
        wait_for(transport, worker, WorkerState.WAITING_FOR_WEIGHTS, drain=True)
    send(transport, 9)
    newest = [arrival for arrival in receive(transport, 8) if arrival.meta.version == 9]
    assert newest
    assert all(arrival.batch["mark"].unique().tolist() == [9.0] for arrival in newest)


def test_weights_go_out_before_the_control_that_asks_for_them(rig: MakeRig) -> None:
    transport = rig(1, mode="Sync").transport
    for round_ in range(1, 30):
        send(transport, round_)
        run(transport, version=round_, round=round_)
        (arrival,) = receive(transport)
        assert (arrival.meta.round, arrival.meta.version) == (round_, round_)
        assert arrival.batch["mark"].unique().tolist() == [float(round_)]


def test_snapshots_come_back_once_each_at_the_latest_when_there_is_a_newer_one(rig: MakeRig) -> None:
    transport = rig(1).transport
    models = {POLICY: state_of(Marked())}
    layout = WeightLayout(models)
    sent = [layout.snapshot(models) for _ in range(3)]
    back: list[Snapshot] = []
    for version, snapshot in enumerate(sent, start=1):
        transport.send_weights(version, snapshot)
    run(transport)
    receive(transport)
    until = time.monotonic() + PATIENCE_S
    while not set(map(id, sent[:-1])) <= set(map(id, back)) and time.monotonic() < until:
        back += transport.spent()
        time.sleep(0.01)
    assert sorted(map(id, back)) in (sorted(map(id, sent)), sorted(map(id, sent[:-1])))
    assert transport.spent() == []


def test_who_joins_late_gets_the_newest_weights_and_control(rig: MakeRig) -> None:
    made = rig(1)
    transport = made.transport
    for version in (1, 2):
        send(transport, version)
    run(transport, version=2)
    receive(transport, 2)
    late = made.join()
    arrivals = iter(lambda: receive(transport)[0], None)
    (first,) = [next(arrival for arrival in arrivals if arrival is not None and arrival.worker == late)]
    assert (first.sequence, first.meta.version) == (0, 2)
    assert first.batch["mark"].unique().tolist() == [2.0]


@pytest.mark.parametrize("ahead", [1, 3])
def test_a_worker_waits_when_so_many_batches_wait_for_the_learner(rig: MakeRig, ahead: int) -> None:
    transport = rig(1, delivery={"maxBatchesAhead": ahead}).transport
    send(transport, 1)
    run(transport)
    wait_for(transport, 0, WorkerState.WAITING_FOR_LEARNER, batches=ahead + 1)
    time.sleep(0.3)  # and no more come, although there is time
    assert transport.workers()[0].batches == ahead + 1


def test_to_receive_makes_no_room_and_to_take_does(rig: MakeRig) -> None:
    transport = rig(1).transport
    send(transport, 1)
    run(transport)
    wait_for(transport, 0, WorkerState.WAITING_FOR_LEARNER, batches=2)
    (first,) = receive(transport, take=False)
    assert transport.receive(timeout_s=0.3) is None
    assert transport.workers()[0].batches == 2
    transport.take(first)
    wait_for(transport, 0, WorkerState.WAITING_FOR_LEARNER, batches=3)
    assert [arrival.sequence for arrival in receive(transport, 2)] == [1, 2]


def test_a_pause_stops_workers_and_loses_nothing(rig: MakeRig) -> None:
    transport = rig(1).transport
    send(transport, 1)
    run(transport)
    before = receive(transport, 3)
    run(transport, phase=Phase.PAUSE)
    while arrival := transport.receive(timeout_s=0.5):  # what had been begun
        transport.take(arrival)
        before.append(arrival)
    wait_for(transport, 0, WorkerState.PAUSED)
    assert transport.receive(timeout_s=0.3) is None
    run(transport)
    after = receive(transport, 3)
    assert [arrival.sequence for arrival in before + after] == list(range(len(before) + 3))


def test_a_round_that_is_closed_cuts_what_is_still_collected_for_it(rig: MakeRig) -> None:
    frames = 2_000_000
    transport = rig(1, mode="Sync", collect={"framesPerBatch": frames}).transport
    send(transport, 1)
    run(transport, round=1)
    wait_for(transport, 0, WorkerState.COLLECTING)
    run(transport, round=1, closed=1)
    (arrival,) = receive(transport)
    assert arrival.meta.round == 1
    assert 0 < arrival.batch.numel() < frames // 2


def test_workers_of_a_complete_job_end(rig: MakeRig) -> None:
    transport = rig().transport
    send(transport, 1)
    run(transport)
    receive(transport, 2)
    run(transport, phase=Phase.COMPLETE)
    while arrival := transport.receive(timeout_s=0.2):
        transport.take(arrival)
    for worker in (0, 1):
        wait_for(transport, worker, WorkerState.COMPLETE)


def test_members_are_those_that_there_should_be(rig: MakeRig) -> None:
    made = rig(2)
    expected = {0, 1} if isinstance(made, OverProcesses) else {0, 1, 2}
    assert made.transport.members() == frozenset(expected)
    made.join()
    assert made.transport.members() == {0, 1, 2}


def test_what_goes_wrong_in_the_background_is_raised_by_the_next_call_and_those_after_it(rig: MakeRig) -> None:
    made = rig(1)
    transport = made.transport
    send(transport, 1)
    run(transport)
    receive(transport)
    expected = made.break_down()
    until = time.monotonic() + PATIENCE_S
    while True:
        try:
            transport.control(Control(session=1, phase=Phase.RUN, round=0, version=1))
        except expected:
            break
        assert time.monotonic() < until, "nothing was raised"
        time.sleep(0.01)
    with pytest.raises(expected):
        send(transport, 2)
    with pytest.raises(expected):
        receive(transport, 100)  # what had come before is still handed over


def test_closing_again_is_harmless(rig: MakeRig) -> None:
    transport = rig(1).transport
    send(transport, 1)
    run(transport)
    receive(transport)
    transport.close()
    transport.close()
    assert transport.spent() is not None
    assert transport.members()
