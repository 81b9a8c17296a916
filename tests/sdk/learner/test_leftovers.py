"""A learner and its workers leave nothing behind, however the program ends."""

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from itertools import product
from pathlib import Path

import psutil
import pytest
import torch
from tests.job_server import Server, actor_critic
from tests.running import alive, running
from tests.waiting import wait_until

import rollfleet
from rollfleet import Collector, ReplayBuffer
from rollfleet.errors import JobEnded, WeightMismatch
from rollfleet.nats import transport
from rollfleet.nats.link import Link
from rollfleet_api.messages import WorkerState
from rollfleet_api.permissions import Role

INTERRUPT, KILL = "os.kill(os.getpid(), signal.SIGINT)", "os.kill(os.getpid(), signal.SIGKILL)"
ENDS = {
    "shut down": "collector.shutdown()",
    "dropped": "del collector\ngc.collect()",
    "forgotten": "",
    "kept in a cycle": "collector.itself = collector",
    "left by an error": "raise ValueError('so')",
    "left by an exit": "sys.exit(0)",
    "left by an exit at once": "os._exit(0)",
    "interrupted": f"{INTERRUPT}\ntime.sleep(60)",
    "interrupted in an iteration": f"{INTERRUPT}\nlist(collector)",
    "terminated": "os.kill(os.getpid(), signal.SIGTERM)\nlist(collector)",
    "killed": KILL,
    "iterated by a thread": "threading.Thread(target=lambda: list(collector), daemon=True).start()",
    "made by a thread, and killed": KILL,
}
# Python ends by the signal itself, or with 1 if another thread ran `exec` on a text meanwhile, as torch does.
INTERRUPTED = (-signal.SIGINT, 1)
CODES = dict.fromkeys(("shut down", "dropped", "forgotten", "kept in a cycle", "left by an exit"), (0,)) | {
    "left by an error": (1,),
    "interrupted": INTERRUPTED,
    "interrupted in an iteration": INTERRUPTED,
}
"""The exit codes of the ends that Python chooses itself."""

HERE = 'rollfleet.Collector("CartPole-v1", num_envs=2, frames_per_batch=16, replay_buffer=buffer'
PROCESSES = (
    'rollfleet.Collector("Mine-v0", act, num_envs=2, frames_per_batch=16, workers=2, vectorization="async", '
    'processes=rollfleet.Processes(start_method="{}"))'
)
MADE = {
    "here": f"{HERE})",
    "in processes of environments": f'{HERE}, vectorization="async")',
    "nats": 'rollfleet.connect("default/test", policy, address=sys.argv[1], replay_buffer=buffer)',
    "fork": PROCESSES.format("fork"),
    "spawn": PROCESSES.format("spawn"),
}
PROGRAM = """
import gc, os, signal, sys, threading, time
import gymnasium, psutil, rollfleet
from rollfleet.testing import CountingEnv

class Mine(CountingEnv):
    pass

class Buffer:
    def extend(self, frames): pass

def act(observation):
    return observation[:, 0].gt(0).long()

def make():
    global collector
    collector = {made}

gymnasium.register("Mine-v0", entry_point=Mine)
buffer, env = Buffer(), gymnasium.make("CartPole-v1")
policy = rollfleet.ActorCritic(env.observation_space, env.action_space)
{make}
{use}
print(*(child.pid for child in psutil.Process().children(recursive=True)), flush=True)
{end}
"""
"""It has no `if __name__ == "__main__"`, and registers an environment."""
IN_A_THREAD = "maker = threading.Thread(target=make)\nmaker.start(); maker.join()"
ITERATED, STARTED = "next(collector)", "collector.start()"
OF_LEARNERS = ("shut down", "dropped", "forgotten", "left by an exit", "interrupted")
OF_PROCESSES = [end for end in ENDS if end not in ("shut down", "dropped", "interrupted")]
CASES = [
    *product(("here", "in processes of environments", "nats"), OF_LEARNERS, (ITERATED, STARTED)),
    *product(("fork",), OF_PROCESSES, (ITERATED,)),
    *product(("spawn",), ("forgotten", "killed"), (ITERATED,)),
]


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
@pytest.mark.parametrize(("where", "end", "use"), CASES)
def test_nothing_outlives_a_program_whose_collector_was(
    where: str, end: str, use: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    before, script, url = shared(), tmp_path / "learner.py", ""
    if where == "nats":
        server: Server = request.getfixturevalue("server")
        server.start_workers()
        url = server.url(Role.LEARNER)
    make = IN_A_THREAD if end.startswith("made by a thread") else "make()"
    script.write_text(PROGRAM.format(made=MADE[where], make=make, use=use, end=ENDS[end]))
    command = (sys.executable, "-P", str(script), url)
    with running(*command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, process_group=0) as learner:
        try:
            output, errors = learner.communicate(timeout=100)
            children = [int(pid) for pid in output.split()]
            assert len(children) >= {"here": 0, "nats": 0}.get(where, 2), errors
            wait_until(lambda: not any(map(alive, children)), 10)
            assert not in_group(learner.pid)
            assert not {name for name in shared() - before if str(learner.pid) in name}
        finally:
            with suppress(ProcessLookupError):
                os.killpg(learner.pid, signal.SIGKILL)
    assert learner.returncode in CODES.get(end, (learner.returncode,)), errors
    if end != "iterated by a thread":
        assert ("Traceback" in errors) == (end == "left by an error" or end.startswith("interrupted")), errors
        assert ("KeyboardInterrupt" in errors) == end.startswith("interrupted"), errors
    if where == "spawn":
        assert errors == ""


LONG_BATCH = """
import threading, time, gymnasium, rollfleet, torch

class Buffer:
    def extend(self, frames): pass

def work(batch):
    begun.set()
    until = time.monotonic() + 5.0
    while time.monotonic() < until:
        torch.rand(600, 600) @ torch.rand(600, 600)
    return batch

begun, env = threading.Event(), gymnasium.make("CartPole-v1")
policy = rollfleet.ActorCritic(env.observation_space, env.action_space)
keywords = {"num_envs": 2, "frames_per_batch": 16, "replay_buffer": Buffer(), "postproc": work}
collector = rollfleet.Collector("CartPole-v1", policy, **keywords)
collector.start()
begun.wait()
collector.shutdown()
"""
"""A batch on its way into the buffer takes longer than `shutdown` waits for it."""


@pytest.mark.slow
def test_a_program_exits_after_the_batch_that_a_shutdown_has_left_behind() -> None:
    """During torch's work it would be aborted."""
    done = subprocess.run((sys.executable, "-Pc", LONG_BATCH), capture_output=True, timeout=100, text=True)
    assert (done.returncode, done.stderr) == (0, "")


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


def test_a_fork_of_a_learner_over_nats_neither_waits_nor_ends_the_job(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.start_workers()
    monkeypatch.setattr(transport, "FLUSH_TIMEOUT_S", 90.0)  # a fork that waits takes longer than a busy machine
    monkeypatch.setattr(transport, "END_TIMEOUT_S", 90.0)
    monkeypatch.setattr(Link.close, "__kwdefaults__", {"flush_timeout_s": 90.0})
    gc.freeze()  # the child collects what is made from here on
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
            os._exit(int(time.monotonic() - began > 45.0))
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
