"""docs/slurm.md, followed step by step, without Slurm: the test starts the tasks of the array."""

import subprocess
from contextlib import ExitStack
from pathlib import Path
from textwrap import dedent

import pytest
import yaml
from tests.api.job_data import job_data
from tests.job_server import Server
from tests.pages import blocks, environ
from tests.running import running

WORKERS = 3
COLLECT = {"framesPerBatch": 96, "totalFrames": 960}
JOB = job_data(workers=WORKERS, mode="Sync", policy={"random": {}}, collect=COLLECT)
LEARNER = """
import rollfleet

with rollfleet.connect() as collector:
    workers = {int(id) >> 47 for batch in collector for id in batch["collector", "traj_ids"].flatten()}
    print(collector.frames, "frames of workers", sorted(workers))
"""
PATIENCE_S = 180


@pytest.mark.slow
@pytest.mark.timeout(2 * PATIENCE_S)
def test_the_page_can_be_followed(repository: Path, server: Server, tmp_path: Path) -> None:
    page = (repository / "docs/slurm.md").read_text()
    steps = [dedent(step) for step in blocks(page, "sh", "bash")]
    submit, worker, learner = (step.replace("nats://learner.example:4222", server.url()) for step in steps)
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(JOB))
    (tmp_path / "learner.py").write_text(LEARNER)
    kept = {name: value for name, value in environ().items() if not name.startswith("ROLLFLEET_")}

    with ExitStack() as stack:

        def start(script: str, **variables: str) -> "subprocess.Popen[str]":
            options = {"cwd": tmp_path, "env": kept | variables, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
            return stack.enter_context(running("bash", "-c", script, **options))

        programs = [start(f"exec {submit}")]
        programs += [start(worker, SLURM_ARRAY_TASK_ID=str(index)) for index in range(WORKERS)]
        output = start(learner).communicate(timeout=PATIENCE_S)[0]
        assert output.splitlines()[-1:] == ["960 frames of workers [0, 1, 2]"], output
        outputs = [program.communicate(timeout=PATIENCE_S)[0] for program in programs]
        assert [program.returncode for program in programs] == [0] * len(programs), outputs
    shown = outputs[0]
    assert f"default/cartpole is published on nats://{server.host_port} until its learner has completed it" in shown
    assert f"workers, 0 to 2: rollfleet worker --nats nats://{server.host_port} --job default/cartpole" in shown
    assert "cartpole: 960 frames" in shown
