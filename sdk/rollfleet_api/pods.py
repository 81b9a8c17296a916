"""A pod of a job, parsed: what operator, command line and page say about pods, they say from here."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from sys import intern
from typing import Any, Self

from rollfleet_api.kubernetes_names import INDEX_LABEL, ROLE_LABEL
from rollfleet_api.permissions import Role
from rollfleet_api.quantity import parse_bytes
from rollfleet_api.text import last_line
from rollfleet_api.times import parse_time

_SCHEDULER = "default-scheduler"
MOST_TEXT = 1024
"""The most kept characters of each message of a pod: thousands of pods are in memory."""


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
        role: The role of its process.
        index: The index among the workers, or among the evaluation workers; 0 for a learner.
        phase: Its phase in Kubernetes, such as `Pending`.
        running: Whether its container runs.
        node: The name of its node; empty: it has none yet.
        placed_s: Time at which it was assigned to a node; 0: not yet.
        unplaced: Why it has no node, in the scheduler's words; empty: it has one, or has not been tried yet.
        waiting: Why its container does not start: the kubelet's reason and message; None: it does.
        crash: Its container's failure; None: it has not failed.
        failed_init: The init container that failed, whose log says why; empty: none.
        disrupted: Whether the cluster removed it: a drain, a preemption, a lost node.
        devices: Requested devices: resource name and count.
    """

    name: str
    uid: str
    run: str
    role: Role
    index: int
    created_s: float
    deleting: bool
    running: bool
    phase: str
    node: str
    placed_s: float
    unplaced: str
    waiting: tuple[str, str] | None
    crash: Crash | None
    failed_init: str
    disrupted: bool
    devices: Mapping[str, int]

    @property
    def crashed_s(self) -> float:
        """The time of its container's failure; 0: it has not failed."""
        return (self.crash.finished_s or self.created_s) if self.crash else 0.0

    @property
    def finished(self) -> bool:
        """Whether it has ended."""
        return self.phase in ("Succeeded", "Failed")

    @property
    def failed(self) -> bool:
        """Whether it has ended with a failure of any kind."""
        return self.phase == "Failed"

    @property
    def worker(self) -> int | None:
        """The worker's index. None: the pod is the learner's, or an evaluation worker's."""
        return self.index if self.role is Role.WORKER else None

    @property
    def process(self) -> str:
        """The process in words: `worker 3`, `evaluation worker 0`, `learner`."""
        if self.role is Role.LEARNER:
            return str(Role.LEARNER)
        return f"{'evaluation ' * (self.role is Role.EVALUATION)}worker {self.index}"

    @property
    def state(self) -> str:
        """Its state in one or two words."""
        if self.deleting:
            return "Terminating"
        if self.phase == "Pending":
            return "Unschedulable" if self.unplaced else (self.waiting and self.waiting[0]) or "Pending"
        return f"Failed, code {self.crash.code}" if self.failed and self.crash else self.phase

    @property
    def message(self) -> str:
        """Why it does not run, from the cluster or its last output. Empty: it runs, or the reason is unknown."""
        if self.phase == "Pending":
            return self.unplaced or (self.waiting[1] if self.waiting else "")
        return (last_line(self.crash.message) or self.crash.reason) if self.crash else ""

    @classmethod
    def parse(cls, manifest: Mapping[str, Any]) -> Self:
        """Parse an object of the API server.

        Raises:
            ValueError: It is not a pod of workers or a learner.
            KeyError: It has no role.
        """
        metadata, spec, status = manifest["metadata"], manifest["spec"], manifest.get("status") or {}
        conditions = {each["type"]: each for each in status.get("conditions") or []}
        placed, scheduler = conditions.get("PodScheduled", {}), spec.get("schedulerName", _SCHEDULER)
        unseen = f"the scheduler `{scheduler}` has not answered; check `schedulerName`, and that it runs"
        unseen = "" if placed or spec.get("nodeName") or scheduler == _SCHEDULER else unseen
        containers = [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]
        states = [each.get("state") or {} for each in containers]
        waiting = next((state["waiting"] for state in states if state.get("waiting")), None)
        crashed = next((each for state in states if (each := state.get("terminated")) and each["exitCode"] != 0), None)
        phase = status.get("phase") or "Pending"
        return cls(
            name=metadata["name"],
            uid=metadata["uid"],
            run=_run_of(manifest),
            role=Role(metadata["labels"][ROLE_LABEL]),
            index=int((metadata.get("annotations") or {}).get(INDEX_LABEL, 0)),
            created_s=parse_time(metadata["creationTimestamp"]),
            deleting="deletionTimestamp" in metadata,
            running=phase == "Running" and all("running" in state for state in states[-1:]),
            phase=intern(phase),
            node=intern(spec.get("nodeName", "")),  # thousands of pods share few nodes
            placed_s=_since(placed) if placed.get("status") == "True" else 0.0,
            unplaced=placed.get("message", "")[:MOST_TEXT] if placed.get("status") == "False" else unseen,
            waiting=(waiting.get("reason", ""), waiting.get("message", "")[:MOST_TEXT])
            if waiting and phase == "Pending"
            else None,
            crash=_crash(crashed) if crashed else None,
            failed_init=_failed_init(status),
            disrupted=conditions.get("DisruptionTarget", {}).get("status") == "True",
            devices=dict(devices(spec)),
        )


def _run_of(pod: Mapping[str, Any]) -> str:
    """Return the UID of the Kubernetes Job of a pod; empty: it has none."""
    owners = pod["metadata"].get("ownerReferences") or []
    return next((str(owner["uid"]) for owner in owners if owner["kind"] == "Job"), "")


def _since(condition: Mapping[str, Any]) -> float:
    return parse_time(condition["lastTransitionTime"]) if condition.get("lastTransitionTime") else 0.0


def _failed_init(status: Mapping[str, Any]) -> str:
    def ends(kind: str) -> dict[str, Any]:
        return {each.get("name", ""): (each.get("state") or {}).get("terminated") for each in status.get(kind) or []}

    failed = (name for name, end in ends("initContainerStatuses").items() if end and end["exitCode"])
    return "" if any(ends("containerStatuses").values()) else next(failed, "")


def _crash(terminated: Mapping[str, Any]) -> Crash:
    return Crash(
        code=terminated["exitCode"],
        reason=terminated.get("reason", ""),
        message=terminated.get("message", "")[-MOST_TEXT:],  # the end of a log
        finished_s=parse_time(terminated["finishedAt"]) if terminated.get("finishedAt") else 0.0,
    )


def devices(spec: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """Yield the devices of a pod's containers: extended resources have a domain in their name, and a whole number.

    Raises:
        ValueError: An amount is not a quantity.
    """
    for container in spec.get("containers") or []:
        for resource, amount in ((container.get("resources") or {}).get("limits") or {}).items():
            if "/" in resource and amount is not None:  # 8, `8000m` and `8e0` are the same
                yield resource, parse_bytes(str(amount).removeprefix("+"))
