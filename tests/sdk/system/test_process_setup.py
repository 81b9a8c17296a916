"""SIGTERM ends a learner or a worker that is the first process of its container."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from tests.job_server import Server
from tests.running import running

from rollfleet_api.permissions import Role

LEARNER = """
import os, signal, sys, rollfleet

def mine(*_):
    sys.exit(5)

if "own" in sys.argv:
    signal.signal(signal.SIGTERM, mine)
with rollfleet.connect() as collector:
    print("connected as process", os.getpid(), flush=True)
    signal.pause()
"""
ALONE = ["unshare", "--pid", "--fork", "--kill-child"]


@pytest.fixture
def alone() -> list[str]:
    """The command that runs another one as the first process of a new namespace, as in a container."""
    if not shutil.which("unshare") or subprocess.run([*ALONE, "true"], capture_output=True).returncode:
        pytest.skip("needs `unshare --pid`, of util-linux, and the right to use it: run it as root")
    return ALONE


@pytest.mark.parametrize(("argument", "code"), [("", 128 + signal.SIGTERM), ("own", 5)])
def test_learner_ends_at_sigterm_by_its_own_handler_or_at_once(
    argument: str, code: int, alone: list[str], server: Server, tmp_path: Path
) -> None:
    job = server.own(mode="Async", workers=1, env={"id": "CartPole-v1"}, collect={"framesPerBatch": 32})
    script = tmp_path / "learner.py"
    script.write_text(LEARNER)
    environ = os.environ | {"ROLLFLEET_NATS_URL": server.url(Role.LEARNER), "ROLLFLEET_JOB": job.key}
    with running(*alone, sys.executable, "-P", str(script), argument, env=environ, stdout=subprocess.PIPE) as outer:
        assert outer.stdout is not None
        assert outer.stdout.readline() == "connected as process 1\n"
        (learner,) = psutil.Process(outer.pid).children()
        learner.send_signal(signal.SIGTERM)
        assert outer.wait(30) == code


def test_worker_ends_at_sigterm_while_it_imports(alone: list[str]) -> None:
    program = [sys.executable, "-P", "-X", "importtime", "-m", "rollfleet", "worker"]
    options = ["--index", "0", "--job", "job", "--nats", "nats://127.0.0.1:9", "--timeout", "5"]
    with running(*alone, *program, *options, stderr=subprocess.PIPE) as outer:
        assert outer.stderr is not None
        next(line for line in outer.stderr if "| " in line and "torch." in line)
        (worker,) = psutil.Process(outer.pid).children()
        worker.send_signal(signal.SIGTERM)
        outer.communicate(timeout=60)
        assert outer.returncode == 128 + signal.SIGTERM
