"""The objects of a job in the cluster, as far as Rollfleet explains them.

All other fields are ignored: the cluster may be newer, or older, than this program.
"""

from datetime import datetime

from pydantic import ConfigDict, Field

from rollfleet_api.fields import Model
from rollfleet_api.kubernetes_names import INDEX_LABEL, ROLE_LABEL
from rollfleet_api.permissions import Role
from rollfleet_api.status import CollectorJobStatus, Condition, ConditionStatus, ConditionType


class View(Model):
    """A part of an object in the cluster, or of what the page shows. Unknown fields are ignored."""

    model_config = ConfigDict(extra="ignore", strict=False)


class MetadataView(View):
    """The metadata of an object."""

    name: str
    namespace: str = ""
    uid: str = ""
    generation: int = 0
    creation_timestamp: datetime
    deletion_timestamp: datetime | None = None
    labels: dict[str, str] = Field(default={})
    annotations: dict[str, str] = Field(default={})


class CollectView(View):
    """The amount of data to collect."""

    total_frames: int = 0


class JobSpecView(View):
    """The spec of a CollectorJob."""

    workers: int = 1
    mode: str = ""
    collect: CollectView = CollectView()
    learner: dict[str, object] | None = None


class JobView(View):
    """A CollectorJob in the cluster, with the status that the operator writes."""

    metadata: MetadataView
    spec: JobSpecView
    status: CollectorJobStatus = CollectorJobStatus()

    @property
    def key(self) -> str:
        """`namespace/name`."""
        return f"{self.metadata.namespace}/{self.metadata.name}"

    @property
    def lag(self) -> int | None:
        """The lag of the slowest worker, in versions. None: unknown."""
        published, applied = self.status.published_version, self.status.applied_version
        return None if published is None or applied is None else max(published - applied, 0)

    def condition(self, kind: ConditionType) -> Condition | None:
        """Return the condition of a type. None: the status has none."""
        return next((each for each in self.status.conditions if each.type == kind), None)

    def held(self, kind: ConditionType) -> Condition | None:
        """Return the condition of a type if it is true."""
        found = self.condition(kind)
        return found if found and found.status is ConditionStatus.TRUE else None


class WaitingView(View):
    """The reason why a container waits."""

    reason: str = ""
    message: str = ""


class TerminatedView(View):
    """The end of a container."""

    exit_code: int
    reason: str = ""
    message: str = ""


class ContainerStateView(View):
    """The state of a container. Both fields are None while it runs."""

    waiting: WaitingView | None = None
    terminated: TerminatedView | None = None


class ContainerView(View):
    """A container of a pod."""

    state: ContainerStateView = ContainerStateView()


class PodConditionView(View):
    """A condition of a pod."""

    type: str
    status: str
    reason: str = ""
    message: str = ""


class PodStatusView(View):
    """The status of a pod."""

    phase: str = "Pending"
    conditions: list[PodConditionView] = Field(default=[])
    container_statuses: list[ContainerView] = Field(default=[])


class PodSpecView(View):
    """The spec of a pod."""

    node_name: str = ""


class PodView(View):
    """A pod of a job."""

    metadata: MetadataView
    spec: PodSpecView = PodSpecView()
    status: PodStatusView = PodStatusView()

    @property
    def role(self) -> str:
        """The role of its process: `worker`, `learner` or `evaluation`."""
        return self.metadata.labels.get(ROLE_LABEL, "")

    @property
    def index(self) -> int | None:
        """The index among the workers, or among the evaluation workers. None: the pod is the learner's."""
        index = self.metadata.labels.get(INDEX_LABEL, self.metadata.annotations.get(INDEX_LABEL))
        return None if index is None or self.role == Role.LEARNER else int(index)

    @property
    def worker(self) -> int | None:
        """The worker's index. None: the pod is the learner's, or an evaluation worker's."""
        return self.index if self.role == Role.WORKER else None

    @property
    def process(self) -> str:
        """The process in words: `worker 3`, `evaluation worker 0`, `learner`."""
        if self.index is None:
            return str(Role.LEARNER)
        return f"{'evaluation ' * (self.role == Role.EVALUATION)}worker {self.index}"

    @property
    def state(self) -> str:
        """The pod's state in one or two words."""
        if self.metadata.deletion_timestamp:
            return "Terminating"
        ended = self._ended()
        if self.status.phase == "Failed" and ended:
            return f"Failed, code {ended.exit_code}"
        waiting = self._waiting()
        if self.status.phase == "Pending" and waiting:
            return waiting.reason or "Pending"
        return self.status.phase

    @property
    def message(self) -> str:
        """Why the pod does not run, from the cluster or its last output. Empty: it runs, or the reason is unknown."""
        if self.status.phase == "Pending":
            waiting = self._waiting()
            return waiting.message if waiting else ""
        ended = self._ended()
        if ended is None or ended.exit_code == 0:
            return ""
        lines = [line for line in ended.message.splitlines() if line.strip()]
        return lines[-1] if lines else ended.reason

    def _ended(self) -> TerminatedView | None:
        ended = [each.state.terminated for each in self.status.container_statuses if each.state.terminated]
        return max(ended, key=lambda each: each.exit_code != 0, default=None)

    def _waiting(self) -> WaitingView | None:
        unscheduled = [each for each in self.status.conditions if (each.type, each.status) == ("PodScheduled", "False")]
        if unscheduled:
            return WaitingView(reason=unscheduled[0].reason, message=unscheduled[0].message)
        return next((each.state.waiting for each in self.status.container_statuses if each.state.waiting), None)


class ObjectView(View):
    """The object of an event."""

    kind: str = ""
    name: str = ""
    uid: str = ""


class EventView(View):
    """An event of Kubernetes."""

    metadata: MetadataView
    involved_object: ObjectView
    type: str = "Normal"
    reason: str = ""
    message: str = ""
    count: int | None = None
    last_timestamp: datetime | None = None
    event_time: datetime | None = None

    @property
    def time(self) -> datetime:
        """The time of the newest occurrence."""
        return self.last_timestamp or self.event_time or self.metadata.creation_timestamp


def one_line(text: str) -> str:
    """Reduce a text from the cluster to one printable line; any program may have written it."""
    return "".join(each for each in " ".join(text.split()) if each.isprintable())


def age(seconds: float) -> str:
    """Format a time span like kubectl: `45s`, `12m`, `3h`, `9d`."""
    for unit_s, unit in ((86_400, "d"), (3_600, "h"), (60, "m")):
        if seconds >= 2 * unit_s:
            return f"{seconds // unit_s:.0f}{unit}"
    return f"{max(seconds, 0):.0f}s"
