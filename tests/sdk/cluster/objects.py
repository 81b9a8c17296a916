"""Jobs, pods and events of a cluster, as the API server returns them; only the fields that matter."""

import io
from datetime import UTC, datetime, timedelta
from typing import Any

from rich.console import Console, RenderableType

from rollfleet_api.kubernetes_names import CONTAINER
from rollfleet_api.pods import Pod
from rollfleet_api.views import EventView, JobView

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)


def ago(seconds: float) -> str:
    return (NOW - timedelta(seconds=seconds)).isoformat()


def condition(kind: str, status: str = "True", reason: str = "", message: str = "", since_s: float = 60) -> Any:
    found = {"type": kind, "status": status, "reason": reason, "message": message}
    return found | {"lastTransitionTime": ago(since_s)}


def job(name: str = "cartpole", *, generation: int = 1, **status: Any) -> JobView:
    named = {"name": name, "namespace": "lab", "uid": name}
    return JobView.model_validate(
        {
            "metadata": named | {"generation": generation, "creationTimestamp": ago(7200)},
            "spec": {"workers": 2, "mode": "Sync", "collect": {"totalFrames": 100_000}, "fieldOfTomorrow": 1},
            "status": {"observedGeneration": 1, **status},
        },
        by_alias=True,
    )


def pod(
    index: int | None = 0,
    *,
    role: str = "worker",
    age_s: float = 60,
    node: str = "node-1",
    scheduler: str = "default-scheduler",
    **status: Any,
) -> Pod:
    named = {"name": f"pod-{index}-{age_s:g}", "uid": f"{index}-{age_s:g}", "creationTimestamp": ago(age_s)}
    labels = {"rollfleet.dev/role": "learner" if index is None else role}
    annotations = {"batch.kubernetes.io/job-completion-index": str(index or 0), CONTAINER: "worker"}
    metadata = named | {"labels": labels, "annotations": annotations}
    return Pod.parse({"metadata": metadata, "spec": {"nodeName": node, "schedulerName": scheduler}, "status": status})


def crash(index: int, code: int, message: str, *, age_s: float) -> Pod:
    state = {"terminated": {"exitCode": code, "reason": "Error", "message": message}}
    return pod(index, age_s=age_s, phase="Failed", containerStatuses=[{"state": state}])


def waiting(index: int, reason: str, message: str) -> Pod:
    state = {"waiting": {"reason": reason, "message": message}}
    return pod(index, phase="Pending", containerStatuses=[{"state": state}])


def event(reason: str, message: str = "", *, kind: str = "Warning", age_s: float = 5) -> EventView:
    return EventView.model_validate(
        {
            "metadata": {"name": reason, "creationTimestamp": ago(age_s)},
            "involvedObject": {"kind": "Pod", "name": "pod-0", "uid": "0"},
            "type": kind,
            "reason": reason,
            "message": message,
            "lastTimestamp": ago(age_s),
        },
        by_alias=True,
    )


def text(seen: RenderableType, *, width: int = 300) -> list[str]:
    console = Console(file=io.StringIO(), width=width)
    console.print(seen)
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


RUNNING: Any = {
    "phase": "Running",
    "workers": {"desired": 2, "ready": 1},
    "frames": 12_800,
    "framesPerSecond": 1234.5,
    "publishedVersion": 7,
    "appliedVersion": 5,
    "batches": {"delivered": 100, "dropped": 3},
    "conditions": [condition("Progressing", reason="Collecting", message="workers are collecting")],
}
