"""However a learner ends, nothing of it stays. (Of worker processes: tests/sdk/test_processes_end.py.)"""

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from textwrap import dedent
from typing import TYPE_CHECKING, Any

import pytest

from rollfleet_api.permissions import Role

if TYPE_CHECKING:
    from tests.sdk.conftest import Server
    from tests.sdk.keywords.conftest import Collect

ENDS = {
    "shut down": "collector.shutdown()",
    "dropped": "del collector\ngc.collect()",
    "forgotten": "",
    "raised": "raise SystemExit(0)",
    "interrupted": "os.kill(os.getpid(), signal.SIGINT)\ntime.sleep(60)",
}

# Python ends by the signal itself, or with 1 where another thread ran `exec` on a text meanwhile, as torch does.
CODES = {end: (-signal.SIGINT, 1) if end == "interrupted" else (0,) for end in ENDS}

BEFORE = {
    "here": """
        collector = rollfleet.Collector("CartPole-v1", num_envs=2, frames_per_batch=16, replay_buffer=buffer)
        """,
    "in processes of environments": """
        collector = rollfleet.Collector(
            "CartPole-v1", num_envs=2, frames_per_batch=16, vectorization="async", replay_buffer=buffer
        )
        """,
    "nats": """
        collector = rollfleet.connect("default/test", policy, address=sys.argv[1], replay_buffer=buffer)
        """,
}


class Learner:
    """A program that makes a collector, begins to use it, and ends in its own way."""

    def __init__(self, where: str, use: str, end: str, folder: Path, url: str) -> None:
        script = folder / "learner.py"
        parts = [
            "import gc, os, signal, sys, time",
            "import gymnasium, rollfleet",
            "class Buffer:\n    def extend(self, frames): pass",
            "buffer = Buffer()",
            'env = gymnasium.make("CartPole-v1")',
            "policy = rollfleet.ActorCritic(env.observation_space, env.action_space)",
            dedent(BEFORE[where]),
            use,
            'print("ready", flush=True)',
            ENDS[end],
            'print("end", flush=True)',
        ]
        script.write_text("\n".join(parts))
        self.process = subprocess.Popen(
            [sys.executable, str(script), url],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            process_group=0,
        )

    def wait(self) -> tuple[int, str]:
        """Its exit code and what it wrote to standard error."""
        _, errors = self.process.communicate(timeout=100)
        return self.process.returncode, errors

    def left(self) -> list[int]:
        """Processes of its group."""
        found = []
        for folder in Path("/proc").iterdir():
            if folder.name.isdecimal():
                try:
                    group = int((folder / "stat").read_text().rpartition(")")[2].split()[2])
                except OSError:
                    continue
                if group == self.process.pid:
                    found.append(int(folder.name))
        return found

    def kill(self) -> None:
        """All that is left."""
        for pid in self.left():
            os.kill(pid, signal.SIGKILL)
        self.process.wait(20)


def shared() -> set[str]:
    folder = Path("/dev/shm")
    return set(os.listdir(folder)) if folder.exists() else set()


@pytest.mark.slow
@pytest.mark.parametrize("use", ["next(collector)", "collector.start()"], ids=["iterated", "started"])
@pytest.mark.parametrize("end", list(ENDS))
@pytest.mark.parametrize("where", ["here", "in processes of environments"])
def test_nothing_outlives_a_program_whose_collector_was(where: str, end: str, use: str, tmp_path: Path) -> None:
    before = shared()
    learner = Learner(where, use, end, tmp_path, "")
    try:
        code, errors = learner.wait()
        assert not learner.left()
        assert not {name for name in shared() - before if str(learner.process.pid) in name}
    finally:
        learner.kill()
    assert code in CODES[end], errors
    assert ("KeyboardInterrupt" in errors) == (end == "interrupted"), errors


def test_a_collector_over_nats_that_nobody_holds_closes_its_connection_and_ends_its_threads(collect: "Collect") -> None:
    before = {thread.name for thread in threading.enumerate()}
    keywords: dict[str, Any] = {"num_envs": 1, "frames_per_batch": 8}
    threads = threading.active_count()
    collector = collect("CartPole-v1", **keywords)
    next(collector)
    collector.shutdown()
    del collector
    gc.collect()
    end = time.monotonic() + 20
    while threading.active_count() > threads and time.monotonic() < end:
        time.sleep(0.05)
    left = {thread.name for thread in threading.enumerate()} - before
    assert not {name for name in left if name == "rollfleet-decode"}
    assert "rollfleet-filling" not in left


@pytest.mark.slow
@pytest.mark.parametrize("end", list(ENDS))
def test_a_learner_over_nats_ends_however_it_does(end: str, server: "Server", tmp_path: Path) -> None:
    server.provision()
    learner = Learner("nats", "", end, tmp_path, server.url(Role.LEARNER))
    try:
        code, errors = learner.wait()
        assert not learner.left()
    finally:
        learner.kill()
    assert code in CODES[end], errors
