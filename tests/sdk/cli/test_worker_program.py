"""`rollfleet worker`, as a pod starts it."""

import signal
import socket
from collections.abc import Callable

import pytest
from tests.job_server import Server
from tests.sdk.cli.program import Workplace

from rollfleet.nats.transport import NatsTransport
from rollfleet.testing.rig import run
from rollfleet_api.address import JOB, JOB_COMPLETION_INDEX, URL
from rollfleet_api.exit_codes import EXIT_COMPLETE, EXIT_CRASHED, EXIT_GONE, EXIT_PERMANENT, EXIT_REPLACED
from rollfleet_api.messages import Control, LearnerPhase, WorkerState, WorkerStatus, pack, unpack
from rollfleet_api.permissions import Role
from rollfleet_api.subjects import Ask
from rollfleet_api.transfers import Receipt


def complete(server: Server, _: WorkerStatus) -> None:
    link = server.link(Role.LEARNER)
    control = Control(session=1, phase=LearnerPhase.COMPLETE, round=0, version=0)
    link.call(link.publish(link.subjects.control, pack(control)))


def delete(server: Server, _: WorkerStatus) -> None:
    server.delete()


def replace_worker(server: Server, status: WorkerStatus) -> None:
    link = server.link(Role.LEARNER)
    for process, incarnation in ((status.process, 0), ((status.process + 1) % 2**16, 1)):
        link.call(link.publish(link.subjects.taken(0), pack(Receipt(process=process, incarnation=incarnation))))


@pytest.mark.parametrize(
    ("workers", "environ", "code", "reason"),
    [
        (3, {}, EXIT_PERMANENT, "worker 3: job default/test has workers 0 to 2"),
        (0, {}, EXIT_GONE, "no owner of the job default/test answered on this NATS server within 2 s"),
        (0, {URL: "nats://127.0.0.1:1"}, EXIT_GONE, "127.0.0.1:1 did not accept us within 2 s"),
    ],
    ids=["too few workers", "no job", "no NATS"],
)
def test_a_worker_without_a_place_in_a_job_names_the_reason(
    workplace: Workplace, server: Server, workers: int, environ: dict[str, str], code: int, reason: str
) -> None:
    if workers:
        server.own(workers=workers)
    program = workplace.start_worker(server, "--index", "3", "--timeout", "2", **environ)
    assert program.wait() == code
    assert reason in program.output
    assert "Traceback" not in program.output


def test_a_worker_that_waits_for_its_job_stops_at_sigterm(workplace: Workplace, server: Server) -> None:
    asked = server.heard(server.subjects.ask(Ask.JOB), lambda _: True)
    program = workplace.start_worker(server, "--index", "0")
    assert asked.wait(60)
    assert program.stop_by(signal.SIGTERM) == 143  # at its timeout it would end with another code


def test_a_worker_that_waits_for_nats_stops_at_sigterm(workplace: Workplace) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        mute.settimeout(60)
        environ = {URL: f"nats://127.0.0.1:{mute.getsockname()[1]}", JOB: "test"}
        program = workplace.start("worker", "--index", "0", environ=environ)
        connection, _ = mute.accept()
        with connection:
            assert program.stop_by(signal.SIGTERM) == 143  # at its timeout it would end with another code


@pytest.mark.slow
@pytest.mark.parametrize(
    ("end", "code", "reason"),
    [
        (complete, EXIT_COMPLETE, ""),
        (delete, EXIT_GONE, "the job default/test was deleted"),
        (replace_worker, EXIT_REPLACED, "worker 0 was started again: that process is its incarnation 1"),
    ],
)
def test_each_end_of_a_job_has_its_exit_code(
    workplace: Workplace, server: Server, end: Callable[[Server, WorkerStatus], None], code: int, reason: str
) -> None:
    server.own(policy={"random": {}})
    heard = list[WorkerStatus]()

    def is_waiting(data: bytes) -> bool:
        heard.append(unpack(WorkerStatus, data))
        return heard[-1].state is WorkerState.WAITING_FOR_LEARNER

    waits = server.heard(server.subjects.worker(0), is_waiting)
    program = workplace.start_worker(server, "--index", "0")
    assert waits.wait(60)
    end(server, heard[-1])
    assert program.wait() == code
    assert reason in program.output
    assert "Traceback" not in program.output


@pytest.mark.slow  # it takes 10 s: after them, a worker that does not drain is ended
@pytest.mark.parametrize("vectorization", ["Sync", "Async"])
def test_sigterm_stops_a_worker_inside_of_a_step(workplace: Workplace, server: Server, vectorization: str) -> None:
    workplace.write(
        "sleepy.py",
        """
        import time
        from gymnasium.envs.classic_control import CartPoleEnv

        class Sleepy(CartPoleEnv):
            def step(self, action):
                print("a long step begins", flush=True)
                time.sleep(3600)
        """,
    )
    job = server.own(
        env={"entrypoint": "sleepy:Sleepy", "numEnvs": 2, "vectorization": vectorization}, policy={"random": {}}
    )
    learner = NatsTransport(server.link(Role.LEARNER), job)
    run(learner, version=0)
    states: list[WorkerState] = []

    def collecting(data: bytes) -> bool:
        states.append(unpack(WorkerStatus, data).state)
        return states[-1] is WorkerState.COLLECTING

    heard = server.heard(server.subjects.worker(0), collecting)
    program = workplace.start_worker(server, "--index", "0")
    program.wait_for("a long step begins")
    assert heard.wait(60)
    assert states[0] is WorkerState.STARTING
    assert program.stop_by(signal.SIGTERM) == 143
    program.assert_nothing_runs()
    learner.close()


@pytest.mark.parametrize(
    "asked", [{}, pytest.param({"PYTHONWARNINGS": "default"}, marks=pytest.mark.slow)], ids=["quiet", "asked for"]
)
def test_an_environment_knows_its_workers_index_and_its_warnings_are_hidden_unless_asked_for(
    workplace: Workplace, server: Server, asked: dict[str, str]
) -> None:
    workplace.write(
        "odd.py",
        """
        import os
        import warnings
        import gymnasium
        from gymnasium.envs.classic_control import CartPoleEnv

        class Odd(CartPoleEnv):
            def __init__(self):
                super().__init__()
                warnings.warn("this is odd")
                gymnasium.logger.warn("so is this")
                print("built for worker", os.environ["ROLLFLEET_WORKER"], flush=True)
        """,
    )
    server.own(workers=2, env={"entrypoint": "odd:Odd"}, policy={"random": {}})
    program = workplace.start_worker(server, **{JOB_COMPLETION_INDEX: "1"}, **asked)
    program.wait_for("built for worker 1")
    program.end_by(signal.SIGTERM)
    assert ("this is odd" in program.output, "so is this" in program.output) == (bool(asked), bool(asked))


def test_an_environment_that_exits_fails_its_worker(workplace: Workplace, server: Server) -> None:
    workplace.write(
        "leaving.py",
        """
        import sys
        from gymnasium.envs.classic_control import CartPoleEnv

        class Leaving(CartPoleEnv):
            def __init__(self):
                sys.exit()
        """,
    )
    server.own(env={"entrypoint": "leaving:Leaving"}, policy={"random": {}})
    program = workplace.start_worker(server, "--index", "0")
    assert program.wait() == EXIT_CRASHED
    assert "SystemExit" in program.output
