"""`rollfleet run` of a job with evaluation: the returns of every other place, and faults that hold nothing up."""

import asyncio
import re
from typing import Any

import pytest
from tests.sdk.cli.program import Workplace

from rollfleet_ui.model import Happened
from rollfleet_ui.saved_runs import SavedRuns
from rollfleet_ui.token_guard import Everything

SPEC: dict[str, Any] = {"mode": "Sync", "env": {"id": "CartPole-v1", "numEnvs": 2}, "policy": {"mlp": {}}}
LEARNER = """
    import json, pathlib, time
    import gymnasium, torch
    import rollfleet
    from dataclasses import asdict

    torch.manual_seed(0)
    env = gymnasium.make("CartPole-v1")
    policy = rollfleet.ActorCritic(env.observation_space, env.action_space)
    with rollfleet.connect(policy=policy) as collector:
        for batch in collector:
            while collector.version == 3 and pathlib.Path("hold").exists():
                time.sleep(0.01)
            if collector.version == 4:
                while not collector.evaluations or collector.evaluations[-1].version < 4:
                    time.sleep(0.01)
                break
            with torch.no_grad():
                for parameter in policy.parameters():
                    parameter *= 1.5
        print("found", json.dumps(asdict(collector.evaluations[-1])))
    """


@pytest.mark.slow
def test_a_killed_evaluation_worker_starts_again_and_evaluates_the_next_version(workplace: Workplace) -> None:
    workplace.write_job(**SPEC | {"collect": {"framesPerBatch": 64}, "evaluation": {"every": 1, "episodes": 2}})
    workplace.write("learner.py", LEARNER)
    hold = workplace.write("hold", "")
    program = workplace.run("--learner", "learner.py")
    program.wait_for(r"evaluated [\d.]+ at version 3")
    (worker,) = (each for each, command in program.processes().items() if command[-1:] == ["--evaluation"])
    worker.kill()
    program.wait_for(r"evaluation worker 0 ended: killed by SIGKILL")
    hold.unlink()
    program.wait_for(r"evaluation worker 0 restarts \(1 of 10\)")
    assert program.wait() == 0, program.output
    assert '"version": 4' in program.wait_for(r"found (\{.*\})")[1]


@pytest.mark.slow
def test_an_evaluation_worker_that_gives_up_does_not_end_the_run(workplace: Workplace) -> None:
    workplace.write(
        "odd.py",
        """
        import sys
        from rollfleet import make_policy
        from rollfleet_api.job import MlpSpec, PolicySpec

        def make(observations, actions):
            if "--evaluation" in sys.argv:
                raise ValueError("no such level")
            return make_policy(PolicySpec(mlp=MlpSpec()), observations, actions)
        """,
    )
    workplace.write_job(**SPEC | {"policy": {"entrypoint": "odd:make"}, "evaluation": {"every": 1}})
    program = workplace.run("--ui")
    program.wait_for(r"evaluation worker 0 ended: .*no such level")
    assert program.wait() == 0, program.output
    assert "test: 640 frames (" in program.output
    runs = SavedRuns(workplace.folder / "runs")
    ((key, run),) = runs.jobs().items()
    (row,) = [each for each in run.workers() if each.process == "evaluation worker 0"]
    assert "no such level" in row.last_error
    told = asyncio.run(runs.logs(key, row.process, previous=False, tail=200, viewer=Everything()))
    assert "no such level" in told
    texts = [each.text for each in run.timeline() if each.kind == Happened.WORKER_ENDED]
    assert len(texts) == 1
    assert re.search(r"evaluation worker 0 ended with code 2: .*no such level", texts[0])
