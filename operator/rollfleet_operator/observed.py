"""What is there: a job's children, parsed. Behind this file nobody looks into what the API server sent."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Self

from rollfleet_api.permissions import Role
from rollfleet_operator import names
from rollfleet_operator.clock import parse_time
from rollfleet_operator.manifest import Manifest, Ref, ref

_INDEX: Final = "batch.kubernetes.io/job-completion-index"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """Why a Kubernetes Job failed."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A Kubernetes Job of ours: one revision of the workers, or of the learner.

    Attributes:
        name: Job, role and revision.
        uid: Unique over the cluster's life.
        pods: How many there should be.
        suspended: By us or by Kueue.
        complete: All its pods exited with 0.
        failed: It was given up.
        deleting: It is about to vanish.
        created_s: When it was made.
        restarts: Pods that failed.
    """

    name: names.Workload
    uid: str
    pods: int
    suspended: bool
    complete: bool
    failed: Ending | None
    deleting: bool
    created_s: float
    restarts: int

    @property
    def finished(self) -> bool:
        """Whether it will start no more pods."""
        return self.complete or self.failed is not None

    @classmethod
    def parse(cls, manifest: Manifest) -> Self:
        """From what the API server sent.

        Raises:
            ValueError: It is no Job of ours.
        """
        metadata, spec, status = manifest["metadata"], manifest["spec"], manifest.get("status") or {}
        held = {each["type"]: each for each in status.get("conditions") or [] if each["status"] == "True"}
        failed = held.get("Failed")
        return cls(
            name=names.Workload.parse(metadata["name"]),
            uid=metadata["uid"],
            pods=spec.get("parallelism", 1),
            suspended=spec.get("suspend", False),
            complete="Complete" in held,
            failed=Ending(reason=failed.get("reason", ""), message=failed.get("message", "")) if failed else None,
            deleting="deletionTimestamp" in metadata,
            created_s=parse_time(metadata["creationTimestamp"]),
            restarts=status.get("failed", 0),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Crash:
    """How a container ended."""

    code: int
    reason: str
    message: str
    finished_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """A pod of a run.

    Attributes:
        run: UID of the Kubernetes Job that it belongs to.
        role: Worker or learner.
        index: Of a worker; 0 for a learner.
        running: Its container runs.
        placed_s: When a node took it; 0: none has.
        unplaced: Why no node takes it; empty: one does, or it was not tried yet.
        waiting: Why its container does not start, as the kubelet's word and its message; None: it does.
        crash: Its container's end, if it was no good one.
        disrupted: The cluster took it away: a drain, a preemption, a lost node.
        devices: What it asks for besides CPUs and memory.
        finalizers: Who must agree before it is gone.
    """

    name: str
    uid: str
    resource_version: str
    run: str
    role: Role
    index: int
    created_s: float
    deleting: bool
    running: bool
    finished: bool
    placed_s: float
    unplaced: str
    waiting: tuple[str, str] | None
    crash: Crash | None
    disrupted: bool
    devices: Mapping[str, int]
    finalizers: tuple[str, ...]

    @classmethod
    def parse(cls, manifest: Manifest) -> Self:
        """From what the API server sent."""
        metadata, spec, status = manifest["metadata"], manifest["spec"], manifest.get("status") or {}
        conditions = {each["type"]: each for each in status.get("conditions") or []}
        placed = conditions.get("PodScheduled", {})
        containers = [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]
        states = [each.get("state") or {} for each in containers]
        waiting = next((state["waiting"] for state in states if state.get("waiting")), None)
        crashed = next((each for state in states if (each := state.get("terminated")) and each["exitCode"] != 0), None)
        phase = status.get("phase")
        return cls(
            name=metadata["name"],
            uid=metadata["uid"],
            resource_version=metadata["resourceVersion"],
            run=next((owner["uid"] for owner in metadata.get("ownerReferences") or [] if owner["kind"] == "Job"), ""),
            role=Role(metadata["labels"][names.ROLE]),
            index=int(metadata.get("annotations", {}).get(_INDEX, 0)),
            created_s=parse_time(metadata["creationTimestamp"]),
            deleting="deletionTimestamp" in metadata,
            running=phase == "Running" and all("running" in state for state in states[-1:]),
            finished=phase in ("Succeeded", "Failed"),
            placed_s=_since(placed) if placed.get("status") == "True" else 0.0,
            unplaced=placed.get("message", "") if placed.get("status") == "False" else "",
            waiting=(waiting.get("reason", ""), waiting.get("message", "")) if waiting and phase == "Pending" else None,
            crash=_crash(crashed) if crashed else None,
            disrupted=conditions.get("DisruptionTarget", {}).get("status") == "True",
            devices=dict(_devices(spec)),
            finalizers=tuple(metadata.get("finalizers") or ()),
        )


def _since(condition: Manifest) -> float:
    return parse_time(condition["lastTransitionTime"]) if condition.get("lastTransitionTime") else 0.0


def _crash(terminated: Manifest) -> Crash:
    return Crash(
        code=terminated["exitCode"],
        reason=terminated.get("reason", ""),
        message=terminated.get("message", ""),
        finished_s=parse_time(terminated["finishedAt"]) if terminated.get("finishedAt") else 0.0,
    )


def _devices(spec: Manifest) -> Iterator[tuple[str, int]]:
    """Extended resources have a domain in their name, and are whole numbers."""
    for container in spec["containers"]:
        for resource, amount in ((container.get("resources") or {}).get("limits") or {}).items():
            if "/" in resource and str(amount).isdecimal():
                yield resource, int(amount)


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """A job's children.

    Attributes:
        children: What is owned by the job itself, as it is.
        runs: Those of the children that are Kubernetes Jobs, the oldest first.
        pods: Of these runs.
        refused_pods: Why a run cannot make pods (quota, Pod Security), in the API server's words; empty: it can.
        source_digest: Of the files in the ConfigMap that `source` names; empty: it names none.
    """

    children: Mapping[Ref, Manifest] = field(default_factory=dict)
    runs: tuple[Run, ...] = ()
    pods: tuple[Pod, ...] = ()
    refused_pods: str = ""
    source_digest: str = ""

    def run(self, name: names.Workload) -> Run | None:
        """The run of that name, unless it is about to vanish."""
        return next((run for run in self.runs if run.name == name and not run.deleting), None)

    def pods_of(self, run: Run | None) -> list[Pod]:
        """The pods of a run."""
        return [pod for pod in self.pods if run is not None and pod.run == run.uid]


def observe(
    children: Iterable[Manifest], pods: Iterable[Manifest], *, refused_pods: str = "", source_digest: str = ""
) -> Observed:
    """Parse what the API server sent of a job's children, and of pods that may be theirs."""
    found = {ref(child): child for child in children}
    runs = sorted((Run.parse(child) for kind, child in found.items() if kind.kind == "Job"), key=_age)
    uids = {run.uid for run in runs}
    return Observed(
        children=found,
        runs=tuple(runs),
        pods=tuple(sorted((pod for pod in map(Pod.parse, pods) if pod.run in uids), key=lambda pod: pod.index)),
        refused_pods=refused_pods,
        source_digest=source_digest,
    )


def _age(run: Run) -> tuple[float, str]:
    return run.created_s, run.uid
