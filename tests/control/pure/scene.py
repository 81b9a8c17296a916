"""A job and its state in a cluster, built up step by step."""

from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any

from tests.api.job_data import SMALLEST, job_data

from rollfleet_api.job import CollectorJob
from rollfleet_api.kubernetes_names import INDEX_LABEL, JOB_LABEL, ROLE_LABEL
from rollfleet_api.messages import LearnerPhase, LearnerStatus, WorkerState, WorkerStatus
from rollfleet_api.permissions import Role
from rollfleet_api.pods import Pod
from rollfleet_api.state.processes import Heartbeats
from rollfleet_api.state.snapshot import Snapshot
from rollfleet_api.state.status import status
from rollfleet_api.state.verdict import Stage, Verdict, verdict
from rollfleet_api.status import CollectorJobStatus, Condition
from rollfleet_api.times import format_time
from rollfleet_api.validation import parse_job
from rollfleet_operator.desired import access_objects, runs
from rollfleet_operator.installation_key import KEY_BYTES, InstallationKey
from rollfleet_operator.manifest import Manifest, Ref, overlay, ref
from rollfleet_operator.nats_access import Login, NatsAccess
from rollfleet_operator.observed import Observed, observe, parsed
from rollfleet_operator.plan import plan_runs
from rollfleet_operator.settings import Settings

NOW_S = 1_800_000_000.0
OWN = NatsAccess(key=InstallationKey(bytes(KEY_BYTES)))
"""Each job has a server of its own."""

SHARED = NatsAccess(key=OWN.key, external=Login(url="nats://nats.lab:4222", credentials=b"user:password"))
"""All jobs share an organisation's NATS."""

UID = "0b5e0000-0000-4000-8000-000000000001"


def a_job(
    name: str = "cartpole", *, labels: dict[str, str] | None = None, generation: int = 1, **spec: Any
) -> CollectorJob:
    """A job as the API server would give it, with these fields of its spec (in YAML's words) instead of the usual."""
    metadata = {"name": name, "namespace": "lab", "uid": UID, "generation": generation, "labels": labels or {}}
    data = job_data(metadata | {"creationTimestamp": format_time(NOW_S - 100)})
    return parse_job(data | {"spec": overlay(SMALLEST | {"workers": 2}, spec)})


def wanted(job: CollectorJob, **settings: Any) -> dict[Ref, Manifest]:
    """Return the desired children of a live job."""
    chosen = replace(Settings(worker_image="worker:1"), **settings)
    objects = access_objects(job, chosen, OWN, server=True, public_host="nats.example")
    return {ref(manifest): manifest for manifest in [*objects, *runs(job, chosen)]}


@dataclass(frozen=True)
class Scene:
    """The state of a job: each method returns another scene with one more fact.

    Attributes:
        children: Its children, as the API server would return them.
        heartbeats: Its last heartbeats.
        now_s: The time.
    """

    job: CollectorJob
    children: tuple[Manifest, ...] = ()
    pods: tuple[Manifest, ...] = ()
    heartbeats: Heartbeats = field(default_factory=Heartbeats)
    refused_pods: str = ""
    now_s: float = NOW_S

    def with_children(self) -> "Scene":
        return replace(self, children=tuple(map(_stored, wanted(self.job).values())))

    def run(self, role: Role = Role.WORKER) -> Manifest:
        return next(
            child
            for child in self.children
            if child["kind"] in ("Job", "Deployment") and child["metadata"]["labels"]["rollfleet.dev/role"] == role
        )

    def changed(self, which: Ref, change: Manifest) -> "Scene":
        """A child is otherwise than it was created."""
        children = tuple(overlay(child, change) if ref(child) == which else child for child in self.children)
        return replace(self, children=children)

    def run_changed(self, change: Manifest, role: Role = Role.WORKER) -> "Scene":
        return self.changed(ref(self.run(role)), change)

    def ended(self, condition: str, role: Role = Role.WORKER, *, reason: str = "", message: str = "") -> "Scene":
        ended = {"type": condition, "status": "True", "reason": reason, "message": message}
        return self.run_changed({"status": {"conditions": [ended]}}, role)

    def suspended(self, suspend: bool = True) -> "Scene":
        change = {"spec": {"suspend": suspend}}
        return replace(
            self, children=tuple(overlay(each, change) if each["kind"] == "Job" else each for each in self.children)
        )

    def pod(self, index: int = 0, *, role: Role = Role.WORKER, age_s: float = 60, **state: Any) -> "Scene":
        """A pod of the run, in this state (the pod's `status`, in YAML's words)."""
        run, number = self.run(role), len(self.pods)
        stored = {"name": f"{run['metadata']['name']}-{index}-{number}", "namespace": "lab", "uid": f"pod-{number}"}
        stored |= {"resourceVersion": "7", "creationTimestamp": format_time(self.now_s - age_s)}
        return replace(self, pods=(*self.pods, overlay(pod_of(run, index), {"metadata": stored, "status": state})))

    def running(self, *indices: int) -> "Scene":
        scene = self
        for index in indices:
            scene = scene.pod(index, phase="Running", containerStatuses=[{"name": "worker", "state": {"running": {}}}])
        return scene

    def crashed(
        self, index: int = 0, *, code: int = 1, log: str = "", ago_s: float = 5, role: Role = Role.WORKER
    ) -> "Scene":
        ended = {"exitCode": code, "reason": "Error", "message": log, "finishedAt": format_time(self.now_s - ago_s)}
        return self.pod(
            index, role=role, phase="Failed", containerStatuses=[{"name": "worker", "state": {"terminated": ended}}]
        )

    def exited(
        self, code: int = 0, *, role: Role = Role.LEARNER, phase: str = "Succeeded", beside: Any = None, **status: Any
    ) -> "Scene":
        """The pod of a role whose own container has exited; `beside` is the state of another one."""
        states = {role.value: {"terminated": {"exitCode": code}}} | ({"a-sidecar": beside} if beside else {})
        containers = [{"name": name, "state": state} for name, state in states.items()]
        return self.pod(role=role, phase=phase, containerStatuses=containers, **status)

    def unplaced(self, index: int = 0, *, why: str, age_s: float = 60) -> "Scene":
        unscheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": why}
        return self.pod(index, age_s=age_s, phase="Pending", conditions=[unscheduled])

    def waiting(self, index: int = 0, *, reason: str, message: str = "") -> "Scene":
        """A pod whose container does not start."""
        state = {"waiting": {"reason": reason, "message": message}}
        return self.pod(index, age_s=60, phase="Pending", containerStatuses=[{"name": "worker", "state": state}])

    def deleted(self) -> "Scene":
        """The last pod is being deleted."""
        *others, last = self.pods
        gone = overlay(last, {"metadata": {"deletionTimestamp": format_time(self.now_s)}})
        return replace(self, pods=(*others, gone))

    def with_heartbeats(
        self, *workers: WorkerStatus, learner: LearnerStatus | None = None, phase: LearnerPhase | None = None
    ) -> "Scene":
        said = replace(learner or LearnerStatus(session=1), phase=phase) if phase else learner
        found = Heartbeats(workers={each.worker: each for each in workers}, learner=said)
        return replace(self, heartbeats=found)

    def beat(self, index: int, state: WorkerState = WorkerState.COLLECTING, **fields: Any) -> WorkerStatus:
        return WorkerStatus(worker=index, state=state, **{"incarnation": 0, "time_s": self.now_s - 1} | fields)

    def refusing_pods(self, why: str) -> "Scene":
        return replace(self, refused_pods=why)

    def later(self, seconds: float) -> "Scene":
        """The status is written now, and some time passes."""
        written = status(self.snapshot)
        return replace(self, job=self.job.model_copy(update={"status": written}), now_s=self.now_s + seconds)

    def edited(self, **spec: Any) -> "Scene":
        data: Any = self.job.dump()
        data["spec"] = overlay(data["spec"], spec)
        data["metadata"]["generation"] += 1
        return replace(self, job=parse_job(data))

    @property
    def observed(self) -> Observed:
        pods = [pod for manifest in self.pods if (pod := parsed(Pod.parse, manifest))]
        return observe(self.job, self.children, pods, refused_pods=self.refused_pods)

    def planned(self, stage: Stage = Stage.LIVE) -> list[Any]:
        """Return what is to be done with the runs."""
        runs = [each for which, each in wanted(self.job).items() if which.kind == "Job"]
        return plan_runs(self.job, runs, self.observed, stage)

    @property
    def verdict(self) -> Verdict:
        return verdict(self.job, self.observed, self.heartbeats, self.now_s)

    @property
    def snapshot(self) -> Snapshot:
        return Snapshot(
            job=self.job,
            observed=self.observed,
            heartbeats=self.heartbeats,
            verdict=self.verdict,
            problem=None,
            frames_per_second=0.0,
            now_s=self.now_s,
        )


def condition(found: CollectorJobStatus, kind: str) -> Condition:
    return next(each for each in found.conditions if each.type == kind)


def scene(**spec: Any) -> Scene:
    """Return a scene in which all children of a job with this spec were created."""
    return Scene(a_job(**spec)).with_children()


def pod_of(run: Manifest, index: int = 0, *, node: str | None = "n") -> Manifest:
    """Return a pod of a run, as the controller of the run would make it."""
    template, owner = run["spec"]["template"], {"name": run["metadata"]["name"], "uid": run["metadata"]["uid"]}
    metadata = {
        "labels": template["metadata"]["labels"],
        "annotations": template["metadata"]["annotations"] | {INDEX_LABEL: str(index)},
        "ownerReferences": [{"apiVersion": run["apiVersion"], "kind": run["kind"], "controller": True, **owner}],
    }
    spec = {**deepcopy(template["spec"]), "nodeName": node}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def stored_pod(index: int, version: int = 7) -> Manifest:
    """Return the pod of a worker as the API server stores it, on a node with the name of its version."""
    metadata = {
        "name": f"cartpole-{index}",
        "namespace": "lab",
        "uid": f"uid-{index}",
        "resourceVersion": str(version),
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "labels": {JOB_LABEL: "cartpole", ROLE_LABEL: "worker"},
        "annotations": {INDEX_LABEL: str(index)},
    }
    return {"kind": "Pod", "metadata": metadata, "spec": {"containers": [], "nodeName": str(version)}}


def _stored(manifest: Manifest) -> Manifest:
    """Return a manifest as the API server would return it."""
    added = {"uid": f"uid of {manifest['metadata']['name']}", "creationTimestamp": format_time(NOW_S - 90)}
    status = {"status": {"readyReplicas": 1}} if manifest["kind"] == "Deployment" else {}
    return {**deepcopy(manifest), "metadata": {**manifest["metadata"], **added}, **status}
