"""A job in the cluster and its events, as far as Rollfleet explains them.

All other fields are ignored: the cluster may be newer, or older, than this program.
"""

from datetime import datetime

from pydantic import ConfigDict, Field

from rollfleet_api.fields import Model
from rollfleet_api.status import CollectorJobStatus


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
    """The amount of data to collect. Fields without an attribute here are kept as they are."""

    model_config = ConfigDict(extra="allow")

    total_frames: int = 0


class JobSpecView(View):
    """The spec of a CollectorJob. Fields without an attribute here are in `model_extra`, in the words of the YAML.

    Example:
        >>> JobSpecView(env={"id": "CartPole-v1"}).model_extra
        {'env': {'id': 'CartPole-v1'}}
    """

    model_config = ConfigDict(extra="allow")

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


def age(seconds: float) -> str:
    """Format a time span like kubectl: `45s`, `12m`, `3h`, `9d`."""
    for unit_s, unit in ((86_400, "d"), (3_600, "h"), (60, "m")):
        if seconds >= 2 * unit_s:
            return f"{seconds // unit_s:.0f}{unit}"
    return f"{max(seconds, 0):.0f}s"
