"""What is read of the objects that kubectl shows: the fields that are told to people, and no more.

Whatever else there is, is ignored: the cluster may be newer, or older, than this program.
"""

from datetime import datetime
from typing import Final

from pydantic import ConfigDict, Field

from rollfleet_api.fields import Model
from rollfleet_api.status import CollectorJobStatus, Condition, ConditionStatus, ConditionType

JOB_LABEL: Final = "rollfleet.dev/job"
ROLE_LABEL: Final = "rollfleet.dev/role"
INDEX_LABEL: Final = "batch.kubernetes.io/job-completion-index"


class View(Model):
    """A part of an object of the cluster."""

    model_config = ConfigDict(extra="ignore", strict=False)


class MetadataView(View):
    """What every object has."""

    name: str
    namespace: str = ""
    uid: str = ""
    generation: int = 0
    creation_timestamp: datetime
    deletion_timestamp: datetime | None = None
    labels: dict[str, str] = Field(default={})
    annotations: dict[str, str] = Field(default={})


class CollectView(View):
    """How much is to be collected."""

    total_frames: int = 0


class JobSpecView(View):
    """What a job is to do."""

    workers: int = 1
    mode: str = ""
    collect: CollectView = CollectView()
    learner: dict[str, object] | None = None


class JobView(View):
    """A CollectorJob."""

    metadata: MetadataView
    spec: JobSpecView
    status: CollectorJobStatus = CollectorJobStatus()

    @property
    def key(self) -> str:
        """`namespace/name`."""
        return f"{self.metadata.namespace}/{self.metadata.name}"

    def condition(self, kind: ConditionType) -> Condition | None:
        """What it says of one aspect."""
        return next((each for each in self.status.conditions if each.type == kind), None)

    def held(self, kind: ConditionType) -> Condition | None:
        """The condition, if it holds."""
        found = self.condition(kind)
        return found if found and found.status is ConditionStatus.TRUE else None


class WaitingView(View):
    """Why a container has not started."""

    reason: str = ""
    message: str = ""


class TerminatedView(View):
    """How a container ended."""

    exit_code: int
    reason: str = ""
    message: str = ""


class ContainerStateView(View):
    """One of these, or none: it runs."""

    waiting: WaitingView | None = None
    terminated: TerminatedView | None = None


class ContainerView(View):
    """A container of a pod."""

    state: ContainerStateView = ContainerStateView()


class PodConditionView(View):
    """One aspect of a pod's state."""

    type: str
    status: str
    reason: str = ""
    message: str = ""


class PodStatusView(View):
    """A pod's state."""

    phase: str = "Pending"
    conditions: list[PodConditionView] = Field(default=[])
    container_statuses: list[ContainerView] = Field(default=[])


class PodSpecView(View):
    """Where a pod is."""

    node_name: str = ""


class PodView(View):
    """A pod of a job."""

    metadata: MetadataView
    spec: PodSpecView = PodSpecView()
    status: PodStatusView = PodStatusView()

    @property
    def worker(self) -> int | None:
        """Which worker it is; None: the learner."""
        said = self.metadata.labels.get(INDEX_LABEL, self.metadata.annotations.get(INDEX_LABEL))
        return int(said) if said is not None and self.metadata.labels.get(ROLE_LABEL) == "worker" else None

    @property
    def state(self) -> str:
        """What it does, in one word or two."""
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
        """Why it does not run, in the cluster's words or in its own last ones; empty: it runs, or nobody said."""
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
        unplaced = [each for each in self.status.conditions if (each.type, each.status) == ("PodScheduled", "False")]
        if unplaced:
            return WaitingView(reason=unplaced[0].reason, message=unplaced[0].message)
        return next((each.state.waiting for each in self.status.container_statuses if each.state.waiting), None)


class ObjectView(View):
    """What an event is about."""

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
        """When it happened, the last time."""
        return self.last_timestamp or self.event_time or self.metadata.creation_timestamp


def one_line(text: str) -> str:
    """What a cluster's text says, fit for a terminal: a program wrote it, whoever's that is."""
    return "".join(each for each in " ".join(text.split()) if each.isprintable())


def age(seconds: float) -> str:
    """A time span as kubectl writes it: `45s`, `12m`, `3h`, `9d`."""
    for unit_s, unit in ((86_400, "d"), (3_600, "h"), (60, "m")):
        if seconds >= 2 * unit_s:
            return f"{seconds // unit_s:.0f}{unit}"
    return f"{max(seconds, 0):.0f}s"
