"""The health of jobs as tools read it: kstatus (Flux, Helm) by its library, Argo CD by the script of its page."""

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.control.chart.helm import find
from tests.control.pure.scene import Scene, scene
from tests.pages import blocks

from rollfleet_api.state.problems import Problem
from rollfleet_api.state.status import INVALID, not_reconciled, status
from rollfleet_api.status import UNSEEN

READS = scene().running(0, 1)
RUNS = READS.with_heartbeats(READS.beat(0), READS.beat(1))
FAILED = scene().crashed(code=2).ended("Failed")
BAD = Problem("QuotaExceeded", "no room")
UNREAD = {"observedGeneration": UNSEEN}


def written(found: Scene, problem: Problem | None = None) -> Any:
    return status(replace(found.snapshot, problem=problem)).model_dump(mode="json", by_alias=True, exclude_none=True)


def refused(reason: str) -> Any:
    found = not_reconciled(UNREAD, 1, reason, "why", 0.0)
    assert found
    return found.model_dump(mode="json", by_alias=True, exclude_none=True)


STATES: dict[str, tuple[Any, str, str]] = {
    "no operator has seen it": (UNREAD, "InProgress", "Progressing"),
    "it was edited": (written(RUNS) | {"observedGeneration": 0}, "InProgress", "Progressing"),
    "workers start": (written(scene()), "InProgress", "Progressing"),
    "no node has room": (written(scene().unplaced(0, why="0/1 nodes are available")), "InProgress", "Progressing"),
    "all workers run": (written(RUNS), "Current", "Healthy"),
    "Kueue holds it": (
        written(scene(labels={"kueue.x-k8s.io/queue-name": "gpus"}).suspended()),
        "InProgress",
        "Progressing",
    ),
    "it is suspended": (written(RUNS.edited(suspend=True)) | {"observedGeneration": 1}, "Current", "Suspended"),
    "it cannot be suspended": (
        written(RUNS.edited(suspend=True), BAD) | {"observedGeneration": 1},
        "InProgress",
        "Progressing",
    ),
    "it is complete": (written(scene(learner={"template": {}}).exited()), "Current", "Healthy"),
    "it has failed": (written(FAILED), "Failed", "Degraded"),
    "it tries again": (
        written(FAILED.later(1).edited(workers=3)) | {"observedGeneration": 1},
        "InProgress",
        "Progressing",
    ),
    "it is invalid": (refused(INVALID), "Failed", "Degraded"),
    "the operator has a defect": (refused("OperatorError"), "InProgress", "Progressing"),
}


def test_tools_agree_about_the_health_of_a_job(repository: Path, tmp_path: Path) -> None:
    program = find("health")
    if program is None:
        pytest.skip("no health: Go and `tests/control/health/build FOLDER` build it; put it on the PATH")
    (script,) = blocks((repository / "docs/install.md").read_text(), "lua")
    (tmp_path / "health.lua").write_text(script)
    kind = {"apiVersion": "rollfleet.dev/v1alpha1", "kind": "CollectorJob", "metadata": {"name": "a", "generation": 1}}
    lines = "\n".join(json.dumps(kind | {"status": found}) for found, _, _ in STATES.values())
    done = subprocess.run([program, tmp_path / "health.lua"], input=lines, capture_output=True, text=True, check=True)
    assert dict(zip(STATES, done.stdout.splitlines(), strict=True)) == {
        name: f"{by_kstatus} {by_argo}" for name, (_, by_kstatus, by_argo) in STATES.items()
    }
