"""On a real API server: whatever is edited in whatever order, a job becomes what a fresh one would be."""

import random
from typing import Any

import pytest
from tests.control.api_server.lab import Lab
from tests.waiting import wait_until

from rollfleet_api.kubernetes_names import JOB_LABEL
from rollfleet_operator.manifest import Manifest

pytestmark = pytest.mark.cluster

CHOICES: dict[str, list[Any]] = {
    "workers": [1, 2, 5],
    "suspend": [True, False],
    "image": [None, "a:1", "a:2"],
    "resources": [None, {"gpu": {"count": 1}}, {"requests": {"cpu": "500m"}}],
    "template": [None, {"spec": {"nodeSelector": {"a": "b"}}}, {"spec": {"containers": "wrong"}}],
    "learner": [None, {"template": {}}, {"template": {"spec": {"containers": [{"name": "l", "image": "l:1"}]}}}],
    "failure": [None, {"maxRestartsPerWorker": 3}, {"pendingDeadlineSeconds": 60}],
    "collect": [{"framesPerBatch": 64}, {"framesPerBatch": 64, "totalFrames": 1000}, {"framesPerBatch": 128}],
    "weights": [None, {"interval": 2}, {"maxLag": 1}],
    "source": [None, {"configMap": "code"}],
    "ttlSecondsAfterFinished": [None, 3600],
}
"""Each also takes what is wrong: what an edit breaks, the next must mend."""

_THEIRS = (
    "uid",
    "resourceVersion",
    "creationTimestamp",
    "managedFields",
    "generation",
    "ownerReferences",
    "annotations",
)


def content(lab: Lab, job: str) -> dict[str, Any]:
    """What the job's children say, without what differs between two jobs."""
    found = {}
    for kind in ("Job", "ServiceAccount", "NetworkPolicy"):
        for child in lab.all(kind):
            if child["metadata"]["labels"][JOB_LABEL] == job:
                found[kind + child["metadata"]["name"].replace(job, "")] = comparable(child, job)
    return found


def comparable(child: Manifest, job: str) -> str:
    metadata = {key: value for key, value in child["metadata"].items() if key not in _THEIRS}
    spec = {key: value for key, value in (child.get("spec") or {}).items() if key != "selector"}
    template = spec.get("template", {}).get("metadata", {}).get("labels", {})
    for label in [label for label in template if "uid" in label]:
        del template[label]
    return str({"metadata": metadata, "spec": spec}).replace(job, "")


@pytest.mark.parametrize("edits", [30, pytest.param(100, marks=pytest.mark.slow)])
def test_random_edits_converge_to_what_a_fresh_apply_gives(lab: Lab, edits: int) -> None:
    lab.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "code"}, "data": {"a.py": ""}})
    chance = random.Random(0)
    spec: dict[str, Any] = {}
    for transition in range(edits):
        field = chance.choice(sorted(CHOICES))
        spec[field] = chance.choice(CHOICES[field])
        lab.apply("edited", **spec)
        if transition % 10 == 9:
            spec["template"] = chance.choice(CHOICES["template"][:2])
            lab.apply("edited", **spec)
            lab.apply(f"fresh{transition}", **spec)
            wait_until(lambda job=f"fresh{transition}": settled(lab, job) and settled(lab, "edited"))  # type: ignore[misc]
            assert content(lab, "edited") == content(lab, f"fresh{transition}"), spec


def settled(lab: Lab, job: str) -> bool:
    found: Any = lab.get("CollectorJob", job)
    status = found.get("status") or {}
    known = {each["type"]: each for each in status.get("conditions", [])}
    if status.get("observedGeneration") != found["metadata"]["generation"] or "Degraded" not in known:
        return False
    rolling = known["Progressing"]["reason"] == "Rolling"
    return known["Degraded"]["status"] == "False" and not rolling
