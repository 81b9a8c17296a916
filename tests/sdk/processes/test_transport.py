"""Worker processes: their failures, restarts and exits, membership, and start methods."""

import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import cloudpickle  # type: ignore[import-untyped]
import gymnasium
import psutil
import pytest
import torch
from tests.api.job_data import job_data
from tests.waiting import wait_until

from rollfleet.envs.factory import VectorEnv, make_env
from rollfleet.errors import JobInvalid, WorkerFailed
from rollfleet.processes.transport import ProcessesTransport
from rollfleet.processes.worker_handle import WorkerHandle
from rollfleet.schemes import Whole
from rollfleet.testing import CountingEnv, Marked
from rollfleet.testing.rig import ENVS, STEPS, TIMEOUT_S, run
from rollfleet.transports.learner_side import Arrival
from rollfleet.transports.workload import Workload
from rollfleet.weights.layout import POLICY, WeightLayout
from rollfleet_api.messages import WorkerState
from rollfleet_api.validation import parse_job

SMALLEST: dict[str, Any] = {
    "mode": "Async",
    "workers": 1,
    "env": {"id": "CartPole-v1", "numEnvs": ENVS},
    "collect": {"framesPerBatch": ENVS * STEPS},
}
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # as for a script: a worker cannot import a test

Start = Callable[..., ProcessesTransport]
Started = Callable[..., list[psutil.Process]]


class Faulty(CountingEnv):
    """Calls a function at its fifth step. Its episode does not end."""

    def __init__(self, fault: Callable[[], object]) -> None:
        super().__init__(episode_frames=1 << 30)
        self._fault = fault

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        result = super().step(action)
        if self.steps == 5:
            self._fault()
        return result


def of_entrypoint(make: Callable[[], Any]) -> VectorEnv:
    return gymnasium.vector.SyncVectorEnv([make] * ENVS, autoreset_mode=gymnasium.vector.AutoresetMode.DISABLED)


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts workers with the marked policy, by fork unless the test chooses; they end after the test.

    They collect on version 1, unless `begins` is false.
    """
    with ExitStack() as stack:

        def start(make: Any = None, *, spec: dict[str, Any] | None = None, begins: bool = True, **more: Any) -> Any:
            job = parse_job(job_data(**SMALLEST | (spec or {})))
            envs = (lambda _: make_env(job.spec.env)) if make is None else (lambda _: of_entrypoint(make))
            workload = Workload(job=job, make_env=envs, make_policy=lambda *_: Marked(), scheme=Whole())
            transport = ProcessesTransport(workload, **{"start_method": "fork"} | more)
            stack.callback(transport.close)
            if begins:
                begin(transport)
            return transport

        yield start


def send(transport: ProcessesTransport, version: int, *, workers: frozenset[int] | None = None) -> None:
    models = {POLICY: {"mark": torch.full((1,), float(version))}}
    transport.send_weights(version, WeightLayout(models), models, workers=workers)


def begin(transport: ProcessesTransport) -> None:
    send(transport, 1)
    run(transport)


def receive(
    transport: ProcessesTransport, wanted: Callable[[Arrival], bool] = lambda _: True, count: int = 1
) -> list[Arrival]:
    """Receive `count` batches that are wanted. All batches are taken."""
    arrivals: list[Arrival] = []
    until = time.monotonic() + TIMEOUT_S
    while len(arrivals) < count:
        assert time.monotonic() < until, f"{len(arrivals)} batches came; workers: {dict(transport.workers())}"
        arrival = transport.receive(timeout_s=0.2)
        if arrival:
            transport.take(arrival)
            arrivals += [arrival] if wanted(arrival) else []
    return arrivals


def failure(transport: ProcessesTransport) -> WorkerFailed:
    with pytest.raises(WorkerFailed) as raised:
        receive(transport, lambda _: False)
    return raised.value


def state(transport: ProcessesTransport, worker: int) -> WorkerState | None:
    status = transport.workers().get(worker)
    return status.state if status else None


# Failures.


def raise_in_a_step() -> None:
    raise ArithmeticError("the simulator broke")


def crash() -> None:
    signal.raise_signal(signal.SIGSEGV)


@pytest.mark.parametrize(
    ("fault", "start_method", "words"),
    [
        (partial(os._exit, 3), "fork", ["exit code 3"]),
        (crash, "fork", ["killed by SIGSEGV", "in crash"]),
        (raise_in_a_step, "spawn", ["in raise_in_a_step", "the simulator broke"]),
        (sys.exit, "fork", ["in step", "SystemExit"]),
    ],
    ids=["exits", "crashes", "raises", "calls sys.exit"],
)
def test_the_error_of_a_worker_says_how_it_ended(
    start: Start, fault: Callable[[], object], start_method: str, words: list[str]
) -> None:
    transport = start(partial(Faulty, fault), start_method=start_method)
    message = str(failure(transport))
    assert all(each in message for each in words)


def test_error_of_making_an_environment_keeps_its_text(start: Start) -> None:
    def never() -> None:
        raise FileNotFoundError("no assets")

    with pytest.raises(WorkerFailed, match="no assets"):
        receive(start(never, begins=False))


class Stubborn(CountingEnv):
    """Raises in each reset."""

    def reset(self, **_: Any) -> tuple[Any, dict[str, Any]]:
        raise ConnectionError("no simulator")


def test_environment_that_fails_its_first_reset_is_not_restarted(start: Start) -> None:
    transport = start(Stubborn, max_restarts_per_worker=10)
    assert "no simulator" in str(failure(transport))
    assert [status.incarnation for status in transport.workers().values()] == [0]


def test_weights_that_do_not_fit_are_named(start: Start) -> None:
    transport = start(begins=False, max_restarts_per_worker=5)
    models = {POLICY: {"mark": torch.zeros(2)}}
    transport.send_weights(1, WeightLayout(models), models)
    run(transport)
    message = str(failure(transport))
    assert "mark: the learner has float32 [2], the policy here has float32 [1]" in message


def test_killed_worker_restarts_as_often_as_allowed(start: Start, started: Started) -> None:
    transport = start(spec={"workers": 2}, max_restarts_per_worker=1)
    receive(transport, count=4)
    started()[1].kill()
    (first,) = receive(transport, lambda arrival: arrival.incarnation == 1)
    assert (first.worker, first.sequence) == (1, 0)
    assert first.batch["mark"].unique().tolist() == [1.0]
    assert transport.members() == {0, 1}
    started()[1].kill()
    error = failure(transport)
    assert error.worker == 1
    assert "killed by SIGKILL" in str(error)


def test_worker_that_raised_restarts_with_other_seeds(start: Start) -> None:
    transport = start(partial(Faulty, raise_in_a_step), max_restarts_per_worker=2)
    arrivals = receive(transport, count=3)
    assert [(arrival.incarnation, arrival.sequence) for arrival in arrivals] == [(0, 0), (1, 0), (2, 0)]
    ids = [set(arrival.batch["collector", "traj_ids"].flatten().tolist()) for arrival in arrivals]
    assert len(set.union(*ids)) == 3 * ENVS
    assert "simulator broke" in str(failure(transport))


def test_batches_sent_before_a_workers_death_still_arrive(start: Start, started: Started) -> None:
    transport = start(spec={"delivery": {"maxBatchesAhead": 3}})
    wait_until(lambda: state(transport, 0) is WorkerState.WAITING_FOR_LEARNER)
    started()[0].kill()
    wait_until(lambda: not started())
    arrivals = [transport.receive(timeout_s=1) for _ in range(3)]
    assert [arrival.sequence for arrival in arrivals if arrival] == [0, 1, 2]
    assert all(arrival.batch["mark"].eq(1).all() for arrival in arrivals if arrival)
    with pytest.raises(WorkerFailed):
        transport.receive(timeout_s=1)


# Membership.


def test_removed_worker_sends_its_frames_so_far(start: Start) -> None:
    frames = 2_000_000
    transport = start(spec={"workers": 2, "collect": {"framesPerBatch": frames}})
    wait_until(lambda: state(transport, 1) is WorkerState.COLLECTING)
    transport.remove_workers({1})
    (arrival,) = receive(transport)
    assert arrival.worker == 1
    assert 0 < arrival.batch.numel() < frames // 2


def test_only_members_can_be_removed(start: Start) -> None:
    transport = start(spec={"workers": 2}, begins=False)
    transport.remove_workers([1])
    with pytest.raises(JobInvalid, match=r"no workers \[1, 7\]; there are \[0\]"):
        transport.remove_workers([0, 1, 7])
    assert transport.members() == {0}


def test_weights_for_some_workers_reach_only_them(start: Start) -> None:
    transport = start(spec={"workers": 2})
    for sent in range(2, 9):  # many more than slots
        send(transport, sent, workers=frozenset({1}))
        (newest,) = receive(transport, lambda arrival, sent=sent: arrival.meta.version == sent)  # type: ignore[misc]
        assert (newest.worker, newest.batch["mark"].unique().tolist()) == (1, [sent])
    (others,) = receive(transport, lambda arrival: arrival.worker == 0)
    assert others.batch["mark"].unique().tolist() == [1.0]
    (late,) = transport.add_workers(1)
    (joined,) = receive(transport, lambda arrival: arrival.worker == late)
    assert joined.batch["mark"].unique().tolist() == [1.0]


class Refused(WorkerHandle):
    """The system starts no worker 2, and no worker again."""

    def __init__(self, method: Any, seat: Any, incarnation: int, *more: Any) -> None:
        if seat.index == 2 or incarnation:
            raise BlockingIOError("no process is left")
        super().__init__(method, seat, incarnation, *more)


def test_workers_that_started_before_another_one_could_not_are_members(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rollfleet.processes.supervisor.WorkerHandle", Refused)
    transport = start()
    with pytest.raises(BlockingIOError):
        transport.add_workers(3)
    assert transport.members() == {0, 1}
    receive(transport, lambda arrival: arrival.worker == 1)


def test_a_restart_that_the_system_refuses_is_an_error_of_its_worker(
    start: Start, started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rollfleet.processes.supervisor.WorkerHandle", Refused)
    transport = start(max_restarts_per_worker=1)
    receive(transport)
    started()[0].kill()
    assert str(failure(transport)) == "worker 0 failed: it cannot be started again: no process is left"


# Two threads, as with a background fill.


@pytest.fixture
def restarting(start: Start, started: Started, monkeypatch: pytest.MonkeyPatch) -> Iterator[ProcessesTransport]:
    """Workers 0 and 1, which have versions 1 and 2. Another thread starts worker 1 again, for half a second or more."""
    starting = threading.Event()

    class Slow(WorkerHandle):
        def __init__(self, method: Any, seat: Any, incarnation: int, *more: Any) -> None:
            super().__init__(method, seat, incarnation, *more)
            if incarnation:
                starting.set()
                time.sleep(0.5)

    def listen() -> None:
        while not starting.is_set():
            transport.workers()

    monkeypatch.setattr("rollfleet.processes.supervisor.WorkerHandle", Slow)
    transport = start(spec={"workers": 2}, max_restarts_per_worker=1)
    send(transport, 2, workers=frozenset({1}))
    receive(transport, lambda arrival: arrival.meta.version == 2)
    wait_until(lambda: [state(transport, worker) for worker in (0, 1)] == [WorkerState.WAITING_FOR_LEARNER] * 2)
    started()[1].kill()
    other = threading.Thread(target=listen)
    other.start()
    assert starting.wait(TIMEOUT_S)
    yield transport
    other.join()


def test_weights_reach_a_worker_that_another_thread_restarts(restarting: ProcessesTransport) -> None:
    send(restarting, 3, workers=frozenset({1}))
    (arrival,) = receive(restarting, lambda arrival: arrival.meta.version == 3)
    assert (arrival.worker, arrival.incarnation) == (1, 1)


def test_weights_of_a_worker_that_another_thread_restarts_stay_as_they_are(restarting: ProcessesTransport) -> None:
    send(restarting, 3, workers=frozenset({0}))
    (arrival,) = receive(restarting, lambda arrival: arrival.incarnation == 1)
    assert (arrival.meta.version, arrival.batch["mark"].unique().tolist()) == (2, [2.0])


def test_a_worker_that_another_thread_restarts_can_be_removed(restarting: ProcessesTransport, started: Started) -> None:
    restarting.remove_workers([1])
    assert restarting.members() == {0}
    receive(restarting, lambda _: len(started()) == 1)


# Processes.


def test_worker_ignores_ctrl_c(start: Start, started: Started) -> None:
    transport = start()
    receive(transport)
    (worker,) = started()
    worker.send_signal(signal.SIGINT)
    assert os.getpgid(worker.pid) == worker.pid != os.getpgid(0)
    receive(transport, count=5)


def test_workers_hide_warnings_unless_quiet_is_false(start: Start, capfd: pytest.CaptureFixture[str]) -> None:
    def warn() -> None:
        warnings.warn("this is odd", stacklevel=1)
        gymnasium.logger.warn("so is this")

    # The quiet one is a fork of these tests, in which warnings are errors.
    for options, expected in (({"quiet": True}, False), ({"quiet": False, "start_method": "spawn"}, True)):
        transport = start(partial(Faulty, warn), **options)
        receive(transport, count=3)
        transport.close()
        output = capfd.readouterr().err
        assert ("this is odd" in output, "so is this" in output) == (expected, expected)


def test_workers_share_cpus(start: Start, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    def print_threads() -> None:
        print(f"{torch.get_num_threads()} threads", file=sys.stderr, flush=True)

    monkeypatch.setattr("rollfleet.processes.supervisor.available_cpus", lambda: 6)
    transport = start(partial(Faulty, print_threads), spec={"workers": 2}, start_method="spawn")
    receive(transport, lambda arrival: arrival.sequence == 3)
    assert "3 threads" in capfd.readouterr().err


def test_fork_does_not_wait_for_missing_threads_of_torch(start: Start, request: pytest.FixtureRequest) -> None:
    request.addfinalizer(partial(torch.set_num_threads, torch.get_num_threads()))
    torch.set_num_threads(2)
    product = torch.rand(512, 512)
    _ = product @ product  # now torch has threads here
    receive(start(lambda: Faulty(lambda: product @ product)), count=3)


def test_workload_that_cannot_be_pickled_is_refused_before_any_start(start: Start, started: Started) -> None:
    lock = threading.Lock()
    with pytest.raises(JobInvalid, match=r'cannot pickle.*choose start_method="fork"'):
        start(partial(Faulty, lock.locked), start_method="spawn")
    assert not started()
    receive(start(partial(Faulty, lock.locked), start_method="fork"), count=2)
