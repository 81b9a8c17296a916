"""The commands for a cluster, on a real API server; they need no kubectl."""

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.api.job_data import job_data
from tests.running import output_of
from tests.sdk.cluster.namespace import Namespace
from typer.testing import CliRunner, Result

from rollfleet import Jobs
from rollfleet.cli.main import app
from rollfleet_api.address import JOB as JOB_NAME
from rollfleet_api.address import URL

JOB = job_data()
Rollfleet = Callable[..., Result]


@pytest.fixture
def rollfleet(kubeconfig: Path, namespace: Namespace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Rollfleet:
    """Run a command in the test's namespace, with an empty PATH."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("KUBECONFIG", "")  # `fetch` sets it for its collector

    def run(*arguments: str, namespace: str = namespace.name) -> Result:
        where = (f"--kubeconfig={kubeconfig}", "--context=x", f"--namespace={namespace}")
        return CliRunner().invoke(app, [*arguments, *where])

    return run


def rows(result: Result) -> list[list[str]]:
    assert result.exit_code == 0, result.output
    return [line.split() for line in result.output.splitlines()[1:]]


def test_top_shows_the_jobs_or_the_workers_of_one_job(rollfleet: Rollfleet, jobs: Jobs, namespace: Namespace) -> None:
    jobs.submit(JOB)
    jobs.submit(JOB | {"metadata": {"name": "ant"}})
    namespace.report(phase="Running", workers={"desired": 2, "ready": 1}, frames=128, framesPerSecond=64)
    ant = [f"{namespace.name}/ant", "Unknown", "0/0", "0", "0"]
    cartpole = [f"{namespace.name}/cartpole", "Running", "1/2", "128", "64"]

    def shown(*arguments: str, **where: str) -> list[list[str]]:
        return [row[:5] for row in rows(rollfleet("top", *arguments, **where))]

    assert shown() == [ant, cartpole]
    assert cartpole in shown("--all-namespaces", namespace="default")
    assert shown(f"{namespace.name}/ant", "cartpole") == [ant, cartpole]
    namespace.pod(0)
    namespace.pod(7, job="ant")
    *_, worker, missing = rows(rollfleet("top", "cartpole"))
    assert (worker[:3], missing) == (["0", "Running", "node-0"], ["1", "workers", "have", "no", "pod"])


def test_record_asks_the_cluster_of_the_kubeconfig(kubeconfig: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (URL, JOB_NAME):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    result = CliRunner().invoke(app, ["record", "team-a/nothing", "--timeout", "1"])
    assert result.exit_code == 1
    assert "the cluster has no job team-a/nothing" in result.output


def test_describe_prints_the_description(rollfleet: Rollfleet, jobs: Jobs) -> None:
    jobs.submit(JOB)
    described = str(jobs.describe("cartpole")).splitlines()
    shown = [line.rstrip() for line in rollfleet("describe", "cartpole").output.splitlines()]
    assert [line for line in shown if "Age" not in line] == [line for line in described if "Age" not in line]


def test_scale_suspend_resume_and_delete_change_the_job(rollfleet: Rollfleet, jobs: Jobs, namespace: Namespace) -> None:
    key = f"{namespace.name}/{jobs.submit(JOB).metadata.name}"
    assert rollfleet("scale", key, "5", namespace="default").output == f"{key} scaled\n"
    assert jobs.get("cartpole").spec.workers == 5
    assert rollfleet("suspend", "cartpole").output == f"{key} suspended\n"
    assert rollfleet("resume", "cartpole").output == f"{key} resumed\n"
    assert jobs.get("cartpole").metadata.generation == 4
    assert rollfleet("delete", "cartpole").exit_code == 0
    assert jobs.list() == ()


def test_a_refusal_is_one_line(rollfleet: Rollfleet, jobs: Jobs, namespace: Namespace) -> None:
    jobs.submit(JOB)
    namespace.report(phase="Complete")
    refused = rollfleet("suspend", "cartpole")
    assert refused.exit_code == 1
    assert "the job is complete" in refused.output
    assert "cartpole keeps no files: submit it with `--keep 1Gi`" in rollfleet("fetch", "cartpole").output
    for command in ("describe", "top", "logs", "suspend", "fetch", "delete"):
        missing = rollfleet(command, "nobody")
        assert missing.exit_code == 1
        assert missing.output.startswith(f"the cluster has no job {namespace.name}/nobody")
        assert missing.output.count("\n") == 1


def test_kubectl_runs_the_command_as_its_plugin(kubeconfig: Path, jobs: Jobs, namespace: Namespace) -> None:
    jobs.submit(JOB)
    folder = Path(sys.executable).parent
    plugin = [str(folder / "kubectl-rollfleet")]
    if kubectl := shutil.which("kubectl"):
        plugin = [kubectl, "rollfleet"]
    where = [f"--namespace={namespace.name}", f"--kubeconfig={kubeconfig}"]
    shown = output_of(*plugin, "top", *where, env={"PATH": f"{folder}:/usr/bin:/bin"})
    assert f"{namespace.name}/cartpole" in shown
