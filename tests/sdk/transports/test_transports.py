"""What the collector relies on, of every transport alike (`rigs` makes one of each kind)."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import gymnasium
import pytest
import torch
from tests.sdk.transports.rigs import (
    ENVS,
    PATIENCE_S,
    STEPS,
    Marked,
    OverProcesses,
    Rig,
    job_of,
    made,
    receive,
    run,
    send,
    wait_for,
)

from rollfleet.errors import NoWeights
from rollfleet.processes.inline import InlineTransport
from rollfleet.schemes import Whole
from rollfleet.transports.workload import Workload
from rollfleet.weights.layout import POLICY, Snapshot, WeightLayout, state_of
from rollfleet_api.messages import Control, LearnerPhase, WorkerState

MakeRig = Callable[..., Rig]


def _maker(request: pytest.FixtureRequest, stack: ExitStack) -> MakeRig:
    server = request.getfixturevalue("server") if request.param == "nats" else None

    def make(workers: int = 2, **spec: Any) -> Rig:
        rig = made(request.param, server, workers, spec)
        stack.callback(rig.close)
        return rig

    return make


@pytest.fixture(params=["inline", "processes", "nats"])
def rig(request: pytest.FixtureRequest) -> Iterator[MakeRig]:
    """Makes a rig of so many workers, here of one, with room for one more; more of the job's spec may be said."""
    with ExitStack() as stack:
        yield _maker(request, stack)


@pytest.fixture(params=["processes", "nats"])
def apart(request: pytest.FixtureRequest) -> Iterator[MakeRig]:
    """The same, of workers that go on while the learner does something else."""
    with ExitStack() as stack:
        yield _maker(request, stack)


def test_the_first_learner_finds_no_past(rig: MakeRig) -> None:
    resumed = rig(1).transport.resumed
    assert (resumed.session, resumed.version, resumed.round) == (1, 0, 0)


def test_each_workers_batches_come_in_order_and_without_a_gap(rig: MakeRig) -> None:
    transport = rig().transport
    send(transport, 1)
    run(transport)
    arrivals = receive(transport, 12)
    for worker in {arrival.worker for arrival in arrivals}:
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


def test_no_batch_is_begun_on_a_version_older_than_control_asks_for(apart: MakeRig) -> None:
    transport = apart().transport
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


def test_who_joins_late_gets_the_newest_weights_and_control(apart: MakeRig) -> None:
    given = apart(1)
    transport = given.transport
    for version in (1, 2):
        send(transport, version)
    run(transport, version=2)
    receive(transport, 2)
    late = given.join()
    arrivals = iter(lambda: receive(transport)[0], None)
    (first,) = [next(arrival for arrival in arrivals if arrival is not None and arrival.worker == late)]
    assert (first.sequence, first.meta.version) == (0, 2)
    assert first.batch["mark"].unique().tolist() == [2.0]


@pytest.mark.parametrize("ahead", [1, 3])
def test_a_worker_waits_when_so_many_batches_wait_for_the_learner(apart: MakeRig, ahead: int) -> None:
    transport = apart(1, delivery={"maxBatchesAhead": ahead}).transport
    send(transport, 1)
    run(transport)
    wait_for(transport, 0, WorkerState.WAITING_FOR_LEARNER, batches=ahead + 1)
    time.sleep(0.3)  # and no more come, although there is time
    assert transport.workers()[0].batches == ahead + 1


def test_to_receive_makes_no_room_and_to_take_does(apart: MakeRig) -> None:
    transport = apart(1).transport
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
    given = rig(1)
    transport = given.transport
    send(transport, 1)
    run(transport)
    before = receive(transport, 3)
    run(transport, phase=LearnerPhase.PAUSE)
    while arrival := transport.receive(timeout_s=0.5):  # what had been begun
        transport.take(arrival)
        before.append(arrival)
    if given.in_background:
        wait_for(transport, 0, WorkerState.PAUSED)
    assert transport.receive(timeout_s=0.3) is None
    run(transport)
    after = receive(transport, 3)
    assert [arrival.sequence for arrival in before + after] == list(range(len(before) + 3))


def test_a_round_that_is_closed_cuts_what_is_still_collected_for_it(apart: MakeRig) -> None:
    frames = 2_000_000
    transport = apart(1, mode="Sync", collect={"framesPerBatch": frames}).transport
    send(transport, 1)
    run(transport, round=1)
    wait_for(transport, 0, WorkerState.COLLECTING)
    run(transport, round=1, closed=1)
    (arrival,) = receive(transport)
    assert arrival.meta.round == 1
    assert 0 < arrival.batch.numel() < frames // 2


def test_workers_of_a_complete_job_end(apart: MakeRig) -> None:
    transport = apart().transport
    send(transport, 1)
    run(transport)
    receive(transport, 2)
    run(transport, phase=LearnerPhase.COMPLETE)
    while arrival := transport.receive(timeout_s=0.2):
        transport.take(arrival)
    for worker in (0, 1):
        wait_for(transport, worker, WorkerState.COMPLETE)


def test_members_are_those_that_there_should_be(apart: MakeRig) -> None:
    given = apart(2)
    expected = {0, 1} if isinstance(given, OverProcesses) else {0, 1, 2}
    assert given.transport.members() == frozenset(expected)
    given.join()
    assert given.transport.members() == {0, 1, 2}


def test_what_goes_wrong_in_the_background_is_raised_by_the_next_call_and_those_after_it(apart: MakeRig) -> None:
    given = apart(1)
    transport = given.transport
    send(transport, 1)
    run(transport)
    receive(transport)
    expected = given.break_down()
    until = time.monotonic() + PATIENCE_S
    while True:
        try:
            transport.control(Control(session=1, phase=LearnerPhase.RUN, round=0, version=1))
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


# Where the one worker is here, it collects when somebody receives.


@pytest.fixture
def inline() -> Iterator[MakeRig]:
    """Makes a rig whose worker is here."""
    with ExitStack() as stack:

        def make(**spec: Any) -> Rig:
            rig = made("inline", None, 1, spec)
            stack.callback(rig.close)
            return rig

        yield make


def test_a_worker_that_is_here_collects_one_batch_of_a_round_when_somebody_receives(inline: MakeRig) -> None:
    transport = inline(mode="Sync").transport
    assert transport.receive(timeout_s=0) is None  # nobody has said what to do
    send(transport, 1)
    run(transport, round=1)
    assert transport.workers()[0].state is WorkerState.STARTING
    (arrival,) = receive(transport)
    assert (arrival.meta.round, arrival.sequence) == (1, 0)
    assert transport.receive(timeout_s=0) is None
    run(transport, round=2)
    assert receive(transport)[0].sequence == 1
    run(transport, round=3, phase=LearnerPhase.COMPLETE)
    assert transport.receive(timeout_s=0) is None
    assert transport.members() == {0}


def test_a_worker_that_is_here_says_at_once_that_nobody_has_sent_weights(inline: MakeRig) -> None:
    transport = inline().transport
    run(transport)
    with pytest.raises(NoWeights, match=r"call update_policy_weights_\(\) before iterating"):
        transport.receive(timeout_s=0)
    send(transport, 1)
    assert receive(transport)[0].meta.version == 1


def test_a_worker_that_is_here_raises_its_errors_as_they_are(inline: MakeRig) -> None:
    class Broken(gymnasium.Wrapper[Any, Any, Any, Any]):
        def step(self, action: Any) -> Any:
            raise ArithmeticError("the simulator broke")

    def make_envs(_: int) -> Any:
        make = lambda: Broken(gymnasium.make("CartPole-v1"))  # noqa: E731
        return gymnasium.vector.SyncVectorEnv([make], autoreset_mode=gymnasium.vector.AutoresetMode.DISABLED)

    job = job_of(1, env={"id": "CartPole-v1", "numEnvs": 1})
    transport = InlineTransport(Workload(job=job, make_env=make_envs, make_policy=lambda *_: Marked(), scheme=Whole()))
    send(transport, 1)
    run(transport)
    with pytest.raises(ArithmeticError, match="the simulator broke"):
        transport.receive(timeout_s=0)
    transport.close()
