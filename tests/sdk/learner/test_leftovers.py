"""A learner leaves nothing behind, however it ends. (Worker processes: tests/sdk/processes/test_endings.py.)"""

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
import torch
from tests.job_server import Server, actor_critic
from tests.running import running
from tests.waiting import wait_until

import rollfleet
from rollfleet import Collector, ReplayBuffer
from rollfleet.errors import JobEnded, WeightMismatch
from rollfleet_api.messages import WorkerState
from rollfleet_api.permissions import Role

ENDS = {
    "shut down": "collector.shutdown()",
    "dropped": "del collector\ngc.collect()",
    "forgotten": "",
    "raised": "raise SystemExit(0)",
    "interrupted": "os.kill(os.getpid(), signal.SIGINT)\ntime.sleep(60)",
}

# Python ends by the signal itself, or with 1 if another thread ran `exec` on a text meanwhile, as torch does.
CODES = {end: (-signal.SIGINT, 1) if end == "interrupted" else (0,) for end in ENDS}

HERE = 'rollfleet.Collector("CartPole-v1", num_envs=2, frames_per_batch=16, replay_buffer=buffer'
BEFORE = {
    "here": f"{HERE})",
    "in processes of environments": f'{HERE}, vectorization="async")',
    "nats": 'rollfleet.connect("default/test", policy, address=sys.argv[1], replay_buffer=buffer)',
}


def program(where: str, use: str, end: str) -> str:
    """Return the text of a program that makes a collector, begins to use it, and ends."""
    parts = [
        "import gc, os, signal, sys, time",
        "import gymnasium, rollfleet",
        "class Buffer:\n    def extend(self, frames): pass",
        "buffer = Buffer()",
        'env = gymnasium.make("CartPole-v1")',
        "policy = rollfleet.ActorCritic(env.observation_space, env.action_space)",
        f"collector = {BEFORE[where]}",
        use,
        ENDS[end],
    ]
    return "\n".join(parts)


def in_group(number: int) -> list[int]:
    found = []
    for pid in psutil.pids():
        with suppress(ProcessLookupError):
            if os.getpgid(pid) == number:
                found.append(pid)
    return found


def shared() -> set[str]:
    folder = Path("/dev/shm")
    return set(os.listdir(folder)) if folder.exists() else set()


@pytest.mark.slow
@pytest.mark.parametrize("use", ["next(collector)", "collector.start()"], ids=["iterated", "started"])
@pytest.mark.parametrize("end", list(ENDS))
@pytest.mark.parametrize("where", BEFORE)
def test_nothing_outlives_a_program_whose_collector_was(
    where: str, end: str, use: str, server: Server, tmp_path: Path
) -> None:
    before, script = shared(), tmp_path / "learner.py"
    if where == "nats":
        server.start_workers()
    script.write_text(program(where, use, end))
    command = (sys.executable, str(script), server.url(Role.LEARNER))
    with running(*command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, process_group=0) as learner:
        try:
            _, errors = learner.communicate(timeout=100)
            assert not in_group(learner.pid)
            assert not {name for name in shared() - before if str(learner.pid) in name}
        finally:
            with suppress(ProcessLookupError):
                os.killpg(learner.pid, signal.SIGKILL)
    assert learner.returncode in CODES[end], errors
    assert ("KeyboardInterrupt" in errors) == (end == "interrupted"), errors


@pytest.mark.parametrize("use", ["iterated", "started", "limited"])
def test_a_dropped_collector_over_nats_closes_its_connection_and_ends_its_threads(server: Server, use: str) -> None:
    job = server.own(policy={"random": {}})
    server.start_worker(job, 0).wait_for(WorkerState.WAITING_FOR_LEARNER)  # its job exists
    before = held_for(server)
    buffer = ReplayBuffer(1000)
    url = server.url(Role.LEARNER)
    collector: Collector | None = rollfleet.connect(server.subjects.key, address=url, replay_buffer=buffer)
    assert collector is not None
    if use == "iterated":
        next(collector)
    else:
        collector.start(frames_per_sample=1 if use == "limited" else None)
        wait_until(lambda: len(buffer) > 0)
        buffer.sample(1)  # from now on, the limited fill waits
    assert any(isinstance(each, int) for each in held_for(server) - before)
    collector = None
    wait_until(lambda: held_for(server) <= before)


def test_a_fork_of_a_learner_over_nats_neither_waits_nor_ends_the_job(server: Server) -> None:
    server.start_workers()
    gc.freeze()  # the child collects what is made from here on: all objects would take it seconds on a busy machine
    collector: Collector | None = rollfleet.connect(
        server.subjects.key, actor_critic(), address=server.url(Role.LEARNER), timeout_s=10
    )
    assert collector is not None
    next(collector)
    if (child := os.fork()) == 0:
        began = time.monotonic()
        try:
            with suppress(JobEnded), collector:
                next(collector)
            collector.shutdown()
            collector = None  # closes it, as the end of the program does
            gc.collect()
        finally:
            os._exit(int(time.monotonic() - began > 2.0))
    gc.unfreeze()
    assert os.waitpid(child, 0)[1] == 0
    next(collector)
    collector.detach()


def test_a_learner_that_cannot_be_made_closes_its_connection_and_ends_its_threads(server: Server) -> None:
    server.own(policy={"random": {}})
    before = held_for(server)
    with pytest.raises(WeightMismatch):
        rollfleet.connect(server.subjects.key, {"weight": torch.eye(2).to_sparse()}, address=server.url(Role.LEARNER))
    wait_until(lambda: held_for(server) <= before)


def held_for(server: Server) -> set[object]:
    """Return the threads, and the local ports of connections to NATS."""
    gc.collect()
    port = int(server.host_port.rpartition(":")[2])
    connections = psutil.Process().net_connections("tcp")
    return {
        *threading.enumerate(),
        *(each.laddr.port for each in connections if each.raddr and each.raddr.port == port),
    }
