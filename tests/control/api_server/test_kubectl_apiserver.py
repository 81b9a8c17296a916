"""The commands that run kubectl, with a real kubectl and a real API server; nothing but kubelets is missing."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner, Result

from rollfleet.cli.kubectl import Kubectl
from rollfleet.cli.kubectl_objects import JobView
from rollfleet.cli.main import app
from rollfleet.errors import KubectlFailed
from rollfleet_api.job import KIND

if TYPE_CHECKING:
    from tests.control.api_server.lab import Lab
    from tests.control.kubernetes import ApiServer

ABSENT = "no kubectl: install it, or put it into a folder that KUBEBUILDER_ASSETS names"
Rollfleet = Callable[..., Result]


@pytest.fixture(autouse=True)
def path(monkeypatch: pytest.MonkeyPatch) -> None:
    """kubectl and its plugin are on the PATH."""
    folders = [os.environ.get("KUBEBUILDER_ASSETS", ""), str(Path(sys.executable).parent), os.environ["PATH"]]
    monkeypatch.setenv("PATH", os.pathsep.join(filter(None, folders)))
    if not shutil.which("kubectl"):
        pytest.skip(ABSENT)


@pytest.fixture
def kubeconfig(api_server: "ApiServer") -> Path:
    return api_server.kubeconfig()


@pytest.fixture
def rollfleet(kubeconfig: Path, own_lab: "Lab") -> Rollfleet:
    """A command in the test's namespace."""

    def run(*arguments: str, namespace: str = own_lab.namespace) -> Result:
        return CliRunner().invoke(
            app, [*arguments, f"--kubeconfig={kubeconfig}", "--context=x", f"--namespace={namespace}"]
        )

    return run


def tell(lab: "Lab", name: str = "cartpole", **status: Any) -> None:
    """Write a job's status, as the operator would."""
    lab.patch(KIND, name, {"status": {"observedGeneration": 1, **status}}, "status")


def pod(lab: "Lab", index: int, *, job: str = "cartpole", **status: Any) -> str:
    """A worker's pod, as the Job controller would make it."""
    created = lab.create(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "generateName": f"{job}-workers-{index}-",
                "labels": {
                    "rollfleet.dev/job": job,
                    "rollfleet.dev/role": "worker",
                    "batch.kubernetes.io/job-completion-index": str(index),
                },
            },
            "spec": {"nodeName": f"node-{index}", "containers": [{"name": "worker", "image": "worker:1"}]},
        }
    )
    name = str(created["metadata"]["name"])
    lab.patch("Pod", name, {"status": {"phase": "Running", **status}}, "status")
    return name


def rows(result: Result) -> list[list[str]]:
    assert result.exit_code == 0, result.output
    return [line.split() for line in result.output.splitlines()[1:]]


def test_top_shows_the_jobs_of_a_namespace_or_of_all(own_lab: "Lab", rollfleet: Rollfleet) -> None:
    own_lab.apply()
    own_lab.apply("ant", collect={"totalFrames": 640})
    tell(
        own_lab, phase="Running", workers={"desired": 2, "ready": 1}, frames=128, framesPerSecond=64, publishedVersion=2
    )
    ant = [f"{own_lab.namespace}/ant", "Unknown", "0/0", "0/640", "0", "-/-", "-", "0"]
    cartpole = [f"{own_lab.namespace}/cartpole", "Running", "1/2", "128", "64", "2/-", "-", "0"]
    assert rows(rollfleet("top")) == [ant, cartpole]
    assert cartpole in rows(rollfleet("top", "--all-namespaces", namespace="default"))
    assert rows(rollfleet("top", f"{own_lab.namespace}/ant", "cartpole")) == [ant, cartpole]


def test_top_shows_the_workers_of_the_given_job(own_lab: "Lab", rollfleet: Rollfleet) -> None:
    own_lab.apply()
    own_lab.apply("ant")
    tell(own_lab, phase="Running", workers={"desired": 3, "ready": 1})
    pod(own_lab, 0)
    pod(own_lab, 1, phase="Pending", containerStatuses=[_container({"waiting": {"reason": "ErrImagePull"}})])
    pod(own_lab, 7, job="ant")
    shown = rows(rollfleet("top", "cartpole"))
    assert [row[:3] for row in shown[3:5]] == [["0", "Running", "node-0"], ["1", "ErrImagePull", "node-1"]]
    assert shown[5:] == [["1", "workers", "have", "no", "pod"]]


def _container(state: dict[str, Any]) -> dict[str, Any]:
    return {"name": "worker", "image": "worker:1", "imageID": "", "ready": False, "restartCount": 0, "state": state}


def test_describe_begins_with_the_reason_and_shows_the_jobs_own_events(own_lab: "Lab", rollfleet: Rollfleet) -> None:
    created = own_lab.apply()
    now = created["metadata"]["creationTimestamp"]
    told = {"reason": "ImagePullFailed", "message": "worker 0 has no image: not found", "lastTransitionTime": now}
    tell(own_lab, phase="Pending", conditions=[{"type": "Degraded", "status": "True", **told}])
    for uid, message in ((created["metadata"]["uid"], "of this job"), ("of-an-earlier-life", "of another")):
        about = {"kind": KIND, "name": "cartpole", "namespace": own_lab.namespace, "uid": uid}
        own_lab.create(
            {
                "apiVersion": "v1",
                "kind": "Event",
                "metadata": {"generateName": "cartpole-"},
                "involvedObject": about,
                "type": "Warning",
                "reason": "ImagePullFailed",
                "message": message,
                "lastTimestamp": now,
            }
        )
    result = rollfleet("describe", "cartpole")
    lines = [line.strip() for line in result.output.splitlines()]
    assert lines[0] == f"{own_lab.namespace}/cartpole is Pending (ImagePullFailed)"
    assert lines[1] == "worker 0 has no image: not found"
    assert "imagePullSecrets" in lines[2]
    assert "of this job" in result.output
    assert "of another" not in result.output


def test_scale_suspend_and_resume_change_the_job(own_lab: "Lab", rollfleet: Rollfleet) -> None:
    own_lab.apply()

    def spec() -> Any:
        return (own_lab.get(KIND, "cartpole") or {})["spec"]

    assert rollfleet("scale", f"{own_lab.namespace}/cartpole", "5", namespace="default").exit_code == 0
    assert spec()["workers"] == 5
    assert rollfleet("suspend", "cartpole").exit_code == 0
    assert spec()["suspend"] is True
    assert rollfleet("resume", "cartpole").exit_code == 0
    assert spec()["suspend"] is False


def test_refusal_is_reported_in_the_api_servers_words(own_lab: "Lab", rollfleet: Rollfleet) -> None:
    own_lab.apply()
    tell(own_lab, phase="Complete")
    refused = rollfleet("suspend", "cartpole")
    assert refused.exit_code == 1
    assert "the job is complete" in refused.output
    for command in (("describe",), ("top",), ("logs",), ("suspend",)):
        missing = rollfleet(*command, "nobody")
        assert missing.exit_code == 1
        assert '"nobody" not found' in missing.output


def test_logs_of_a_job_without_pods_say_why_there_are_none(own_lab: "Lab", rollfleet: Rollfleet) -> None:
    own_lab.apply()
    now = "2026-11-21T12:00:00Z"
    told = {"reason": "Suspended", "message": "`spec.suspend` is true", "lastTransitionTime": now}
    tell(own_lab, phase="Suspended", conditions=[{"type": "Suspended", "status": "True", **told}])
    pod(own_lab, 0)
    for arguments, whose in ((("--worker=3",), "worker 3"), (("--learner",), "the learner")):
        result = rollfleet("logs", "cartpole", *arguments)
        assert result.exit_code == 1
        assert f"{whose} has no pod: {own_lab.namespace}/cartpole is Suspended. `spec.suspend` is true" in result.output


def test_the_plugin_requests_the_logs_of_the_given_worker(own_lab: "Lab", kubeconfig: Path) -> None:
    own_lab.apply()
    for index in range(2):
        pod(own_lab, index)
    where = [f"--namespace={own_lab.namespace}", f"--kubeconfig={kubeconfig}"]
    done = subprocess.run(
        ["kubectl", "rollfleet", "logs", "cartpole", "--worker=1", *where], capture_output=True, text=True
    )
    # No kubelet is there to have the log from, and the API server names the node that it asked.
    assert done.returncode == 1
    assert "node-1" in done.stderr
    assert "node-0" not in done.stderr


def test_the_doctor_sees_the_cluster_and_that_its_operator_is_missing(rollfleet: Rollfleet) -> None:
    result = rollfleet("doctor")
    lines = {line.split()[1]: line for line in result.output.splitlines()}
    assert [lines[part].split()[0] for part in ("kubectl", "cluster", "access", "operator")] == [
        "ok",
        "ok",
        "ok",
        "wrong",
    ]
    assert "install the chart" in lines["operator"]
    assert result.exit_code == 1


def test_a_cluster_without_rollfleet_says_how_to_install_it(kubeconfig: Path) -> None:
    # A group that nobody serves is what kubectl sees where the CRD is not installed.
    with pytest.raises(KubectlFailed, match=r"docs/install\.md"):
        Kubectl.find(kubeconfig=kubeconfig).get(JobView, "collectorjobs.nobody.example")


def test_without_kubectl_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    result = CliRunner().invoke(app, ["top"])
    assert result.exit_code == 1
    assert "needs kubectl" in result.output
