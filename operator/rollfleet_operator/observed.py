"""A job's observed children, parsed. No other module reads the API server's objects."""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from sys import intern
from typing import Self, TypeVar

from rollfleet_api.kubernetes_names import INDEX_LABEL
from rollfleet_api.permissions import Role
from rollfleet_api.quantity import parse_bytes
from rollfleet_operator import names
from rollfleet_operator.clock import parse_time
from rollfleet_operator.manifest import Manifest, Ref, ref
from rollfleet_operator.scheduler import is_held

log = logging.getLogger(__name__)

P = TypeVar("P")

MOST_TEXT = 1024
"""The most kept characters of each message of a pod: thousands of pods are in memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """The failure of a Kubernetes Job."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A Kubernetes Job of a CollectorJob: one revision of its workers, or of its learner.

    Attributes:
        name: Its name: job, role and revision.
        uid: Its UID.
        pods: Number of pods that should run.
        suspended: Whether it is suspended: by the operator after the job's end, else by another client, such as Kueue.
        held: Whether a scheduler decides when its pods start.
        complete: Whether all pods exited with 0.
        failed: Its failure; None: it has not failed.
        deleting: Whether it is being deleted.
        created_s: Its creation time.
        restarts: Number of failed pods.
    """

    name: names.Workload
    uid: str
    pods: int
    suspended: bool
    held: bool
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
        """Parse an object of the API server.

        Raises:
            ValueError: It is not a Job of workers or a learner.
        """
        metadata, spec, status = manifest["metadata"], manifest["spec"], manifest.get("status") or {}
        held = {each["type"]: each for each in status.get("conditions") or [] if each["status"] == "True"}
        failed = held.get("Failed")
        return cls(
            name=names.Workload.parse(metadata["name"]),
            uid=metadata["uid"],
            pods=spec.get("parallelism", 1),
            suspended=spec.get("suspend", False),
            held=is_held(metadata.get("labels") or {}),
            complete="Complete" in held,
            failed=Ending(reason=failed.get("reason", ""), message=failed.get("message", "")) if failed else None,
            deleting="deletionTimestamp" in metadata,
            created_s=parse_time(metadata["creationTimestamp"]),
            restarts=status.get("failed", 0),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Crash:
    """The failed end of a container."""

    code: int
    reason: str
    message: str
    finished_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """A pod of a run.

    Attributes:
        run: UID of its Kubernetes Job.
        role: Worker or learner.
        index: The worker's index; 0 for a learner.
        running: Whether its container runs.
        node: The name of its node; empty: it has none yet.
        placed_s: Time at which it was assigned to a node; 0: not yet.
        unplaced: Why it has no node, in the scheduler's words; empty: it has one, or has not been tried yet.
        waiting: Why its container does not start: the kubelet's reason and message; None: it does.
        crash: Its container's failure; None: it has not failed.
        failed: Whether it has ended with a failure of any kind.
        disrupted: Whether the cluster removed it: a drain, a preemption, a lost node.
        devices: Requested devices: resource name and count.
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
    failed: bool
    node: str
    placed_s: float
    unplaced: str
    waiting: tuple[str, str] | None
    crash: Crash | None
    disrupted: bool
    devices: Mapping[str, int]

    @property
    def crashed_s(self) -> float:
        """The time of its container's failure; 0: it has not failed."""
        return (self.crash.finished_s or self.created_s) if self.crash else 0.0

    @classmethod
    def parse(cls, manifest: Manifest) -> Self:
        """Parse an object of the API server.

        Raises:
            ValueError: It is not a pod of workers or a learner.
            KeyError: It has no role.
        """
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
            run=_run_of(manifest),
            role=Role(metadata["labels"][names.ROLE]),
            index=int((metadata.get("annotations") or {}).get(INDEX_LABEL, 0)),
            created_s=parse_time(metadata["creationTimestamp"]),
            deleting="deletionTimestamp" in metadata,
            running=phase == "Running" and all("running" in state for state in states[-1:]),
            finished=phase in ("Succeeded", "Failed"),
            failed=phase == "Failed",
            node=intern(spec.get("nodeName", "")),  # thousands of pods share few nodes
            placed_s=_since(placed) if placed.get("status") == "True" else 0.0,
            unplaced=placed.get("message", "")[:MOST_TEXT] if placed.get("status") == "False" else "",
            waiting=(waiting.get("reason", ""), waiting.get("message", "")[:MOST_TEXT])
            if waiting and phase == "Pending"
            else None,
            crash=_crash(crashed) if crashed else None,
            disrupted=conditions.get("DisruptionTarget", {}).get("status") == "True",
            devices=dict(devices(spec)),
        )


def _run_of(pod: Manifest) -> str:
    """Return the UID of the Kubernetes Job of a pod; empty: it has none."""
    owners = pod["metadata"].get("ownerReferences") or []
    return next((str(owner["uid"]) for owner in owners if owner["kind"] == "Job"), "")


def _since(condition: Manifest) -> float:
    return parse_time(condition["lastTransitionTime"]) if condition.get("lastTransitionTime") else 0.0


def _crash(terminated: Manifest) -> Crash:
    return Crash(
        code=terminated["exitCode"],
        reason=terminated.get("reason", ""),
        message=terminated.get("message", "")[-MOST_TEXT:],  # the end of a log
        finished_s=parse_time(terminated["finishedAt"]) if terminated.get("finishedAt") else 0.0,
    )


def devices(spec: Manifest) -> Iterator[tuple[str, int]]:
    """Yield the devices of a pod's containers: extended resources have a domain in their name, and a whole number.

    Raises:
        ValueError: An amount is not a quantity.
    """
    for container in spec["containers"]:
        for resource, amount in ((container.get("resources") or {}).get("limits") or {}).items():
            if "/" in resource and amount is not None:  # 8, `8000m` and `8e0` are the same
                yield resource, parse_bytes(str(amount).removeprefix("+"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """The observed children of a job.

    Attributes:
        children: Objects owned by the job itself.
        runs: The Kubernetes Jobs among them, oldest first.
        pods: The pods of these runs.
        refused_pods: Why a run cannot create pods (quota, Pod Security), in the API server's words; empty: it can.
        source_digest: Digest of the files in the job's ConfigMap; empty: the job has none; None: unknown.
    """

    children: Mapping[Ref, Manifest] = field(default_factory=dict)
    runs: tuple[Run, ...] = ()
    pods: tuple[Pod, ...] = ()
    refused_pods: str = ""
    source_digest: str | None = ""

    def run(self, name: names.Workload) -> Run | None:
        """Return the run with this name, unless it is being deleted."""
        return next((run for run in self.runs if run.name == name and not run.deleting), None)

    def pods_of(self, run: Run | None) -> list[Pod]:
        """Return the pods of a run."""
        return [pod for pod in self.pods if run is not None and pod.run == run.uid]


def parsed_pod(manifest: Manifest) -> Pod | None:
    """Return a pod; None: it is not one of the operator's."""
    return _parsed(Pod.parse, manifest)


def observe(
    children: Iterable[Manifest], pods: Iterable[Pod], *, refused_pods: str = "", source_digest: str | None = ""
) -> Observed:
    """Parse a job's children, and pass over all objects and pods that do not belong to them.

    Example:
        >>> observe([], []).runs
        ()
    """
    parsed = [(child, _parsed(Run.parse, child) if child["kind"] == "Job" else None) for child in children]
    runs = sorted((run for _, run in parsed if run), key=_age)
    uids = {run.uid for run in runs}
    return Observed(
        children={ref(child): child for child, run in parsed if run or child["kind"] != "Job"},
        runs=tuple(runs),
        pods=tuple(sorted((pod for pod in pods if pod.run in uids), key=lambda pod: pod.index)),
        refused_pods=refused_pods,
        source_digest=source_digest,
    )


def _parsed(parse: Callable[[Manifest], P], manifest: Manifest) -> P | None:
    """Return a parsed object; None: it is not one of the operator's, or a user has changed it beyond recognition."""
    try:
        return parse(manifest)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        log.debug("ignored %s in %s: %r", ref(manifest), manifest["metadata"].get("namespace"), error)
        return None


def _age(run: Run) -> tuple[float, str]:
    return run.created_s, run.uid
