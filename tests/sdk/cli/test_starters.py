"""`rollfleet init`: what it writes runs here as it is, and is valid for a cluster."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from tests.running import output_of
from tests.sdk.cli.program import Workplace
from typer.testing import CliRunner, Result

from rollfleet.cli.main import app
from rollfleet.cli.starters import STARTERS


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Run a command in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: CliRunner().invoke(app, [*arguments])


@pytest.mark.parametrize("starter", STARTERS)
def test_a_starter_is_a_valid_job_with_its_code_in_a_config_map(run: Callable[..., Result], starter: str) -> None:
    shown = run("init", "new", "--example", starter).output
    assert "run it here:      cd new && rollfleet run job.yaml --learner learner.py" in shown
    folder = Path("new")
    names = {Path(file).name for file in STARTERS[starter]}
    assert {path.name for path in folder.iterdir()} == names
    assert run("validate", "new/job.yaml").exit_code == 0
    job = yaml.safe_load((folder / "job.yaml").read_text())
    kustomization = yaml.safe_load((folder / "kustomization.yaml").read_text())
    (code,) = kustomization["configMapGenerator"]
    assert code["name"] == job["spec"]["source"]["configMap"]
    assert set(code["files"]) == {name for name in names if name.endswith(".py")}


def test_nothing_is_overwritten(run: Callable[..., Result]) -> None:
    Path("learner.py").write_text("mine")
    result = run("init")
    assert result.exit_code == 1
    assert "learner.py exists already; name another folder" in result.output
    assert Path("learner.py").read_text() == "mine"
    assert not Path("job.yaml").exists()


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
@pytest.mark.parametrize("starter", STARTERS)
def test_kubectl_builds_the_objects_of_a_starter(run: Callable[..., Result], starter: str) -> None:
    run("init", "new", "--example", starter)
    objects = {each["kind"]: each for each in yaml.safe_load_all(output_of("kubectl", "kustomize", "new"))}
    assert set(objects) == {"ConfigMap", "CollectorJob"}
    assert objects["ConfigMap"]["metadata"]["name"] == objects["CollectorJob"]["spec"]["source"]["configMap"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("starter", "name", "frames", "mean_return"),
    [("ppo", "cartpole", 61_440, 150.0), ("custom-env", "custom-env", 30_720, -2.0)],
)
def test_a_starter_trains_and_its_policy_plays(
    workplace: Workplace, starter: str, name: str, frames: int, mean_return: float
) -> None:
    assert workplace.start("init", "--example", starter).wait() == 0
    job = yaml.safe_load((workplace.folder / "job.yaml").read_text())
    job["spec"]["collect"]["totalFrames"] = frames
    if starter == "ppo":
        job["spec"]["policy"] = {"mlp": {"hidden": [48, 48]}}  # the learner trains the policy of the job
    (workplace.folder / "job.yaml").write_text(yaml.safe_dump(job))
    program = workplace.run("--learner", "learner.py")
    assert program.wait(timeout_s=110) == 0, program.output
    assert f"trained: runs/{name}/checkpoint-" in program.output
    played = workplace.start("play", f"runs/{name}", "--job", "job.yaml", "--episodes", "1")
    assert played.wait() == 0, played.output
    assert "mean return" in played.output
    last = (workplace.folder / f"runs/{name}/curve.csv").read_text().splitlines()[-1].split(",")
    assert float(last[1]) > mean_return  # an untrained policy: about 20, and -10
