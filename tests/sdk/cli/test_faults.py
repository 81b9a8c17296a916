"""`rollfleet run` when its workers die, or cannot start."""

import asyncio
import errno
import os
import re
from typing import Any

import pytest
from rich.console import Console
from tests.sdk.cli.program import Workplace

from rollfleet.cli import local
from rollfleet.cli.display import Display
from rollfleet.system import child_processes
from rollfleet_api.documents import read_job


@pytest.mark.slow
def test_child_processes_of_a_killed_worker_end_too(workplace: Workplace) -> None:
    workplace.write(
        "simulated.py",
        """
        import subprocess
        from gymnasium.envs.classic_control import CartPoleEnv

        class Simulated(CartPoleEnv):
            def __init__(self):
                super().__init__()
                subprocess.Popen(["sleep", "600"])  # a simulator that is never closed
        """,
    )
    env = {"entrypoint": "simulated:Simulated", "numEnvs": 2, "vectorization": "Async"}
    workplace.write_job(env=env, collect={"framesPerBatch": 64, "totalFrames": 0}, failure={"maxRestartsPerWorker": 0})
    program = workplace.run()
    program.wait_for(r"test: [1-9][\d,]* frames")
    assert ["sleep", "600"] in program.processes().values()
    program.kill_worker(0)
    assert program.wait() == 1
    assert "worker 0 ended: killed by SIGKILL" in program.output


@pytest.mark.slow
@pytest.mark.parametrize("code", [3, 4, 143])
def test_an_end_that_is_no_failure_uses_up_no_restart(workplace: Workplace, code: int) -> None:
    workplace.write(
        "once.py",
        f"""
        import os
        from pathlib import Path
        from gymnasium.envs.classic_control import CartPoleEnv

        def make():
            mark = Path(__file__).with_suffix(".mark")
            if "ROLLFLEET_WORKER" in os.environ and not mark.exists():  # the learner makes an environment, too
                mark.touch()
                os._exit({code})
            return CartPoleEnv()
        """,
    )
    workplace.write_job(env={"entrypoint": "once:make"}, failure={"maxRestartsPerWorker": 0})
    program = workplace.run()
    assert program.wait() == 0, program.output
    assert "worker 0 restarts (0 of 0)" in program.output


@pytest.mark.slow
def test_a_broken_environment_ends_the_run_after_the_restarts_that_the_job_allows(workplace: Workplace) -> None:
    workplace.write(
        "broken.py",
        """
        from gymnasium.envs.classic_control import CartPoleEnv

        class Broken(CartPoleEnv):
            def step(self, action):
                raise OSError("the simulator is gone")
        """,
    )
    workplace.write_job(env={"entrypoint": "broken:Broken"}, failure={"maxRestartsPerWorker": 1})
    program = workplace.run()
    assert program.wait() == 1
    cause = "worker 0 ended: exit code 1; its last line: OSError: the simulator is gone"
    assert program.output.count(cause) == 2
    assert program.output.count("worker 0 restarts (1 of 1)") == 1
    assert "after 1 restart worker 0 ended with code 1: OSError: the simulator is gone\n" in program.output


def test_a_start_that_fails_is_a_crash(
    workplace: Workplace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A start fails where the process has too many open files."""

    async def spawn(name: str, command: list[str], **options: Any) -> child_processes.Child:
        if name == "worker 0":
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return await child_processes.spawn(name, command, **options)

    monkeypatch.setattr(local, "spawn", spawn)
    job = read_job(workplace.write_job(failure={"maxRestartsPerWorker": 1}))
    settings = local.LocalRun(
        job=job, folder=workplace.folder, learner=(), nats_url=None, display=Display(Console(width=200))
    )
    assert asyncio.run(local.run(settings)) == 1
    output = capsys.readouterr().out
    assert output.count("worker 0 did not start: Too many open files") == 2
    assert output.count("worker 0 restarts (1 of 1)") == 1
    assert "after 1 restart worker 0 ended with code 1: Too many open files\n" in output


LEARNER = "import torch\nimport rollfleet\nwith rollfleet.connect(policy={policy}) as collector:\n    next(collector)\n"
STUBBORN = """
    from gymnasium.envs.classic_control import CartPoleEnv

    class Stubborn(CartPoleEnv):
        def reset(self, **_):
            raise OSError("the simulator is gone")
"""
MLP = {"mlp": {"hidden": [8]}}
CAUSES: dict[str, tuple[str, str, dict[str, Any], str]] = {
    "an environment without its module": (
        "learner.py",
        LEARNER.format(policy=None),
        {"workers": 2, "env": {"entrypoint": "nowhere:make"}},
        r"worker \d ended: exit code 2; its last line: .*environment entrypoint 'nowhere:make': module 'nowhere'",
    ),
    "an environment that cannot be built here": (
        "unbuilt.py",
        "def make():\n    raise OSError('no display here')\n",
        {"workers": 2, "env": {"entrypoint": "unbuilt:make"}, "policy": MLP},
        r"worker \d ended: .*environment entrypoint 'unbuilt:make'.* OSError: no display here",
    ),
    "a first reset that fails": (
        "stubborn.py",
        STUBBORN,
        {"env": {"entrypoint": "stubborn:Stubborn"}},
        "worker 0 ended: exit code 2; its last line: OSError: the simulator is gone",
    ),
    "weights that do not fit": (
        "learner.py",
        LEARNER.format(policy="torch.nn.Linear(3, 2)"),
        {"workers": 2, "policy": MLP},
        r"worker \d ended: exit code 2; its last line: .*(weight|bias): .*the policy here",
    ),
    "a policy that never worked": (
        "broken_policy.py",
        "def make(observation_space, action_space):\n    return lambda seen: seen.nonsense\n",
        {"policy": {"entrypoint": "broken_policy:make"}},
        r"the policy failed at its first call, .*: .* has no attribute 'nonsense' \(.*broken_policy.py, line 2\)",
    ),
}
OWN_TRACEBACK = {"a first reset that fails"}
"""Errors of code that ran before."""


@pytest.mark.slow
@pytest.mark.parametrize("name", CAUSES)
def test_what_a_restart_would_repeat_ends_the_run_at_once_with_its_cause(workplace: Workplace, name: str) -> None:
    file, text, spec, cause = CAUSES[name]
    workplace.write(file, text)
    workplace.write_job(**spec)
    program = workplace.run(*(["--learner", file] if file == "learner.py" else []))
    assert program.wait() == 1
    program.wait_for(cause)
    assert ("Traceback" in program.output) == (name in OWN_TRACEBACK)
    assert program.output.count("its last line:") == 1
    if name not in OWN_TRACEBACK:
        assert len(re.findall(cause.rpartition("its last line: ")[2], program.output)) == 1
    assert "restarts" not in program.output
