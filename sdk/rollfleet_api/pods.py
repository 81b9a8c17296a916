"""A pod of a job, parsed: what operator, command line and page say about pods, they say from here."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from sys import intern
from typing import Any, Final, Self

from rollfleet_api.exit_codes import EXIT_TERMINATED, NO_FAILURE
from rollfleet_api.kubernetes_names import CONTAINER, INDEX_LABEL, ROLE_LABEL
from rollfleet_api.permissions import Role
from rollfleet_api.quantity import parse_bytes
from rollfleet_api.text import last_line
from rollfleet_api.times import parse_time

_SCHEDULER: Final = "default-scheduler"
END_NOW_S: Final = 1
"""The `activeDeadlineSeconds` by which the operator ends the containers beside a role's own; others are a user's."""

MOST_TEXT: Final = 1024
"""The most kept characters of each message of a pod: thousands of pods are in memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Crash:
    """The failed end of a pod: by the exit `code` of its container, or, without one, by the `reason` of its node."""

    code: int | None
    reason: str
    message: str
    finished_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """A pod of a run.

    Attributes:
        run: UID of its Kubernetes Job; empty: it has none, as the NATS server.
        role: The role of its process.
        index: The index among the pods of its role; 0 for a learner.
        phase: Its phase in Kubernetes, such as `Pending`.
        container: The name of the role's own container. It alone decides: templates and webhooks add others.
        running: Whether its container runs.
        done: Whether its container exited with 0 while nothing removed the pod.
        node: The name of its node; empty: it has none yet.
        placed_s: Time at which it was assigned to a node; 0: not yet.
        unplaced: Why it has no node, in the scheduler's words; empty: it has one, or has not been tried yet.
        waiting: Why a container does not start: the kubelet's reason and message; None: all do.
        crash: Its failure, or the last one of a container that starts again; None: it has not failed.
        failed_init: The init container that failed, whose log says why; empty: none.
        disrupted: Whether the cluster removed it: a drain, a preemption, a lost node.
        lost: Whether its node does not answer: then the cluster changes only one of its conditions, `Ready`.
        devices: Requested devices: resource name and count.
    """

    name: str
    uid: str
    run: str
    role: Role
    index: int
    created_s: float
    deleting: bool
    lost: bool
    container: str
    running: bool
    done: bool
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
    def counts(self) -> bool:
        """Whether its end counts as a restart: it failed, and neither the cluster nor SIGTERM removed it."""
        ignored = (EXIT_TERMINATED,) if self.role is Role.LEARNER else NO_FAILURE  # a learner is the user's program
        return self.crash is not None and self.crash.code not in ignored and not self.disrupted

    @property
    def crashed_s(self) -> float:
        """The time of its failure; 0: it has not failed."""
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
        """The worker's index. None: the pod is no worker's."""
        return self.index if self.role is Role.WORKER else None

    @property
    def process(self) -> str:
        """The process in words; see `Role.process`."""
        return self.role.process(self.index)

    @property
    def state(self) -> str:
        """Its state in one or two words."""
        if self.deleting:
            return "Terminating"
        if self.phase == "Pending" or (self.waiting and not self.running):
            return "Unschedulable" if self.unplaced else (self.waiting and self.waiting[0]) or "Pending"
        failure = self.crash and (self.crash.reason if self.crash.code is None else f"code {self.crash.code}")
        return f"Failed, {failure}" if failure else self.phase

    @property
    def message(self) -> str:
        """Why it does not run, from the cluster or its last output. Empty: it runs, or the reason is unknown."""
        if self.crash:
            return last_line(self.crash.message) or self.crash.reason
        return self.unplaced or (self.waiting[1] if self.waiting else "")

    @classmethod
    def of_process(
        cls,
        role: Role,
        index: int,
        *,
        started_s: float,
        node: str = "",
        devices: Mapping[str, int] | None = None,
        crash: Crash | None = None,
        ended: bool = False,
    ) -> Self:
        """Return a process on one machine as a pod of the run that has its role's name: it runs unless `ended`."""
        phase = ("Failed" if crash else "Succeeded") if ended else "Running"
        return cls(
            name=f"{role}-{index}",
            uid=f"{role}-{index}-{started_s}",
            run=str(role),
            role=role,
            index=index,
            created_s=started_s,
            deleting=False,
            lost=False,
            container="",
            running=not ended,
            done=ended and crash is None,
            phase=phase,
            node=node,
            placed_s=started_s,
            unplaced="",
            waiting=None,
            crash=crash,
            failed_init="",
            disrupted=False,
            devices=devices or {},
        )

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
        annotations = metadata.get("annotations") or {}
        container = annotations.get(CONTAINER, "")
        inits, others = status.get("initContainerStatuses") or [], status.get("containerStatuses") or []
        own = next((each for each in others if each.get("name") == container), others[-1] if others else {})
        state, *states = [each.get("state") or {} for each in (own, *inits, *others)]
        waits = [each["waiting"] for each in (state, *states) if each.get("waiting")]
        waiting = max(waits, key=lambda each: bool(each.get("message")), default=None)
        phase, deleting = status.get("phase") or "Pending", "deletionTimestamp" in metadata
        ends = [each.get("terminated") or {} for each in (state, *states[: len(inits) * (phase == "Failed")])]
        before = {} if own.get("ready") else (own.get("lastState") or {}).get("terminated") or {}
        ended = ends[0] or before or next((each for each in ends if each.get("exitCode")), {})
        crash = _crash(status, ended, spec.get("activeDeadlineSeconds"))
        disrupted = conditions.get("DisruptionTarget", {}).get("status") == "True"
        return cls(
            name=metadata["name"],
            uid=metadata["uid"],
            run=_run_of(manifest),
            role=Role(metadata["labels"][ROLE_LABEL]),
            index=int(annotations.get(INDEX_LABEL, 0)),
            created_s=parse_time(metadata["creationTimestamp"]),
            deleting=deleting,
            lost=[conditions.get(each, {}).get("status") for each in ("ContainersReady", "Ready")] == ["True", "False"],
            container=intern(container),
            running="running" in state if others else phase == "Running",
            done=ends[0].get("exitCode") == 0 and not (crash or disrupted or deleting),
            phase=intern(phase),
            node=intern(spec.get("nodeName", "")),  # thousands of pods share few nodes
            placed_s=_since(placed) if placed.get("status") == "True" else 0.0,
            unplaced=placed.get("message", "")[:MOST_TEXT] if placed.get("status") == "False" else unseen,
            waiting=(waiting.get("reason", ""), waiting.get("message", "")[:MOST_TEXT])
            if waiting and phase in ("Pending", "Running")
            else None,
            crash=crash,
            failed_init=_failed_init(status),
            disrupted=disrupted,
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


def _crash(status: Mapping[str, Any], ended: Mapping[str, Any], deadline_s: int | None) -> Crash | None:
    """Return the failure of a pod, of which a container has ended; None: it has none."""
    code, reason = ended.get("exitCode"), status.get("reason") or ""
    ours = reason == "DeadlineExceeded" and deadline_s == END_NOW_S
    if status.get("phase") == "Failed" and reason and not ours:  # its node refused, evicted or ended it
        return Crash(code=None, reason=reason, message=status.get("message", "")[:MOST_TEXT], finished_s=0.0)
    if not code:
        return None
    return Crash(
        code=code,
        reason=ended.get("reason", ""),
        message=ended.get("message", "")[-MOST_TEXT:],  # the end of a log
        finished_s=parse_time(ended["finishedAt"]) if ended.get("finishedAt") else 0.0,
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
