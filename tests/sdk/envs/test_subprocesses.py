"""Environments in separate processes: the same numbers, and no process left behind."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from gymnasium.spaces import Box, Dict
from gymnasium.vector import AutoresetMode
from tests.running import gone
from tests.sdk.rollout.robot import OBSERVATIONS, Robot
from tests.waiting import wait_until

from rollfleet.envs import server_process
from rollfleet.envs.factory import VectorEnv
from rollfleet.envs.failures import FAILURES
from rollfleet.envs.places import Place
from rollfleet.envs.serial import SerialVectorEnv
from rollfleet.envs.server_process import ServerProcess
from rollfleet.envs.space_tree import SpaceTree
from rollfleet.envs.subprocesses import ProcessVectorEnv
from rollfleet.envs.vector import ServedVectorEnv
from rollfleet.errors import EnvironmentFailed
from rollfleet_api.placement import EnvironmentFailuresSpec


class WithNothing(Robot):
    """Has a leaf without elements, too."""

    observation_space = Dict({**OBSERVATIONS, "nothing": Box(0, 1, (0,))})

    def _seen(self) -> dict[str, Any]:
        return super()._seen() | {"nothing": np.zeros(0, np.float32)}


class Fragile(Robot):
    """Breaks at its third step, in the given way."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self._how, self._steps = how, 0

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        if self._steps == 3:
            if self._how == "raise":
                raise RuntimeError("the arm came off")
            if self._how == "sleep":
                time.sleep(3600)
            os._exit(7)
        return super().step(action)


class Simulated(Robot):
    """Starts a process, and closes more slowly than a process that hangs may; then it leaves a file behind."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self._file, simulator = file, multiprocessing.get_context("fork").Process(target=os.getpid)
        simulator.start()
        simulator.join()

    def close(self) -> None:
        time.sleep(server_process.GRACE_S + 0.5)
        self._file.touch()


class Computing(Robot):
    """Computes with numpy and torch. Returns the CPU time of its process, over that of the thread that calls it."""

    def compute(self) -> float:
        numbers = np.ones((300, 300))
        tensor = torch.ones(300, 300)
        all_s, own_s = time.process_time(), time.thread_time()
        for _ in range(30):
            numbers @ numbers, tensor @ tensor
        return (time.process_time() - all_s) / (time.thread_time() - own_s)


class Wordy(Robot):
    """Answers with as many bytes as it is asked for, and not at all if it is shy."""

    def __init__(self, *, shy: bool) -> None:
        super().__init__()
        self._shy = shy

    def say(self, text: bytes, nbytes: int) -> bytes:
        if self._shy and nbytes:
            raise RuntimeError("no")
        return bytes(nbytes)


def three_steps(env: VectorEnv) -> None:
    for _ in range(3):
        env.step(env.action_space.sample())


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2, 5])
def test_numbers_do_not_depend_on_the_number_of_processes(processes: int) -> None:
    ours, serial = ProcessVectorEnv([WithNothing] * 5, processes), SerialVectorEnv([WithNothing] * 5)
    assert len(ours.processes) == processes
    assert ours.single_observation_space == WithNothing.observation_space
    tree = SpaceTree(WithNothing.observation_space)
    seeds: list[int | None] = [4, 5, 6, 7, 8]
    actions = ours.action_space
    actions.seed(0)
    seen = [env.reset(seed=seeds)[0] for env in (ours, serial)]
    for _ in range(60):
        for one, other in zip(tree.split(seen[0]), tree.split(seen[1]), strict=True):
            np.testing.assert_array_equal(one, other)
            assert one.dtype == other.dtype
        action = actions.sample()
        (*mine, _), (*theirs, _) = ours.step(action), serial.step(action)
        for one, other in zip(mine[1:], theirs[1:], strict=True):
            np.testing.assert_array_equal(one, other)
        done = mine[2] | mine[3]
        seen = [mine[0], theirs[0]]
        if done.any():
            seen = [env.reset(options={"reset_mask": done.copy()})[0] for env in (ours, serial)]
    ours.close()


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("raise", r"environments 1 to 2: Traceback(.|\n)*RuntimeError: the arm came off"),
        ("exit", r"environments 1 to 2 \(pid {pid}\) ended: exit code 7"),
    ],
)
def test_a_failure_names_its_environments_and_nothing_is_left_after_close(how: str, message: str) -> None:
    env = ProcessVectorEnv([Robot, Robot, partial(Fragile, how)], 2)
    env.reset(seed=0)
    pids = [process.pid or 0 for process in env.processes]
    with pytest.raises(EnvironmentFailed, match=message.format(pid=pids[1])):
        three_steps(env)
    env.close()
    assert gone(pids)


def test_an_environment_computes_with_one_thread_of_numpy_and_torch(request: pytest.FixtureRequest) -> None:
    request.addfinalizer(partial(torch.set_num_threads, torch.get_num_threads()))
    torch.set_num_threads(2)
    Computing().compute()  # a fork of a process with torch's threads would wait for its own
    env = ProcessVectorEnv([Computing], 1)
    (share,) = env.call("compute")
    env.close()
    assert share < 1.2


def test_a_long_answer_that_an_error_left_unread_blocks_no_long_request() -> None:
    env = ProcessVectorEnv([partial(Wordy, shy=True), partial(Wordy, shy=False)], 2)
    with pytest.raises(EnvironmentFailed, match="RuntimeError: no"):
        env.call("say", b"", 10**7)
    assert env.call("say", bytes(10**7), 0) == (b"", b"")
    env.close()


class Lengthy(Robot):
    """Says more in a step than a pipe holds."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        *outcome, _ = super().step(action)
        return *outcome, {"text": bytes(10**7)}


@pytest.fixture
def in_mid_answer() -> Iterator[tuple[ServedVectorEnv, ServerProcess]]:
    """A vector, and its server, which has sent the beginning of an answer."""
    servers: list[ServerProcess] = []

    def launch(*arguments: Any) -> ServerProcess:
        servers.append(ServerProcess(*arguments))
        return servers[-1]

    mode = AutoresetMode.NEXT_STEP
    envs = ServedVectorEnv([Lengthy], Place(1, launch), sample=Lengthy, batch_size=1, mode=mode)
    envs.reset(seed=0)
    envs.send(envs.action_space.sample())
    assert servers[0].pipe.poll(60)
    yield envs, servers[0]
    envs.close()


def test_a_server_whose_answer_is_interrupted_is_replaced(
    in_mid_answer: tuple[ServedVectorEnv, ServerProcess],
) -> None:
    envs, server = in_mid_answer
    pid = server.process.pid or 0
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED)

    def stop(*_: object) -> None:
        if not server.pipe.poll():  # `recv` waits for the rest
            raise RuntimeError("enough")
        signal.setitimer(signal.ITIMER_REAL, 0.1)

    before = signal.signal(signal.SIGALRM, stop)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(RuntimeError, match="enough"):
            envs.recv()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert gone([pid]), "what it sends next would be no answer"
    envs.reset(seed=0)


def test_a_server_killed_in_mid_answer_is_lost(in_mid_answer: tuple[ServedVectorEnv, ServerProcess]) -> None:
    envs, server = in_mid_answer
    server.kill()
    with pytest.raises(EnvironmentFailed, match="ended: killed by SIGKILL"):
        envs.recv()
    envs.reset(seed=0)


def test_a_server_killed_in_mid_answer_is_a_failure_of_its_environments(
    in_mid_answer: tuple[ServedVectorEnv, ServerProcess],
) -> None:
    envs, server = in_mid_answer
    server.kill()
    envs.reset_on_request()
    envs.failures = EnvironmentFailuresSpec()
    _, infos = envs.reset(options={"reset_mask": np.ones(1, np.bool_)})
    assert [failure.name for failure in infos[FAILURES][0]] == ["ChildProcessError"]


def test_a_process_killed_between_two_steps_is_named() -> None:
    env = ProcessVectorEnv([Robot] * 4, 2)
    env.reset(seed=0)
    os.kill(env.processes[0].pid or 0, signal.SIGKILL)
    env.processes[0].join()
    with pytest.raises(EnvironmentFailed, match=r"environments 0 to 1 .* ended: killed by SIGKILL"):
        env.step(env.action_space.sample())
    env.close()


def test_a_failed_build_in_a_process_is_reported_and_leaves_no_process_behind(
    started: Callable[[], list[psutil.Process]],
) -> None:
    def breaks() -> Robot:
        raise RuntimeError("no second licence")

    with pytest.raises(EnvironmentFailed, match="no second licence"):
        ProcessVectorEnv([Robot, breaks], 2)
    assert not started()


def test_close_does_not_wait_for_a_step_that_does_not_end() -> None:
    def stop(*_: object) -> None:
        raise TimeoutError

    env = ProcessVectorEnv([Robot, partial(Fragile, "sleep")], 2)
    env.reset(seed=0)
    pids = [process.pid or 0 for process in env.processes]
    before = signal.signal(signal.SIGALRM, stop)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.5)
        with pytest.raises(TimeoutError):
            three_steps(env)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    env.close()
    assert gone(pids)


def test_environments_may_start_processes_and_close_slowly(tmp_path: Path) -> None:
    ProcessVectorEnv([partial(Simulated, tmp_path / "closed")], 1, sample=Robot).close()
    assert (tmp_path / "closed").exists()


def test_the_error_of_a_program_without_a_main_guard_names_it(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import multiprocessing, rollfleet\nmultiprocessing.set_start_method('spawn', force=True)\n"
        "rollfleet.Collector('CartPole-v1', num_envs=2, vectorization='async', frames_per_batch=4)\n"
    )
    done = subprocess.run(
        [sys.executable, "-P", str(program)], capture_output=True, text=True, timeout=100, check=False
    )
    assert 'makes its environments under `if __name__ == "__main__":`' in done.stderr.splitlines()[-1]


PROGRAM = """
import multiprocessing, os, signal, sys
from functools import partial
import gymnasium
from rollfleet.envs.subprocesses import ProcessVectorEnv

if __name__ == "__main__":
    multiprocessing.set_start_method(sys.argv[1])
    env = ProcessVectorEnv([partial(gymnasium.make, "CartPole-v1")] * 3, 3)
    env.reset(seed=[1, 2, 3])
    env.step([0, 1, 0])
    print(*(process.pid for process in env.processes), flush=True)
    if sys.argv[2] != "none":
        os.killpg(0, signal.SIGINT) if sys.argv[2] == "SIGINT" else os.kill(os.getpid(), signal.SIGKILL)
        signal.pause()
"""


@pytest.mark.parametrize(
    ("method", "end"),
    [("fork", "none"), ("fork", "SIGINT"), ("fork", "SIGKILL"), ("spawn", "none"), ("spawn", "SIGKILL")],
)
def test_the_processes_end_with_the_one_that_started_them(method: str, end: str, tmp_path: Any) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, "-P", str(program), method, end],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        start_new_session=True,
    )
    pids = [int(pid) for pid in done.stdout.split()]
    assert len(pids) == 3, done.stderr
    assert gone(pids)
    noise = [
        line for line in done.stderr.splitlines() if line and not line.startswith((" ", "Traceback", "KeyboardInt"))
    ]
    assert not noise  # neither output of the processes nor warnings of the resource tracker


def test_the_program_of_a_process_does_not_import_torch() -> None:
    program = "import sys, rollfleet.envs.subprocesses; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-P", "-c", program], check=False, timeout=60).returncode == 0
