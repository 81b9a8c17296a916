"""What the page's API sends, in camelCase JSON. Times are seconds since the epoch; None is unknown."""

from enum import StrEnum
from typing import Final

from pydantic import Field

from rollfleet_api.diagnosis import Diagnosis
from rollfleet_api.status import CollectorJobStatus
from rollfleet_api.views import View

SERIES: Final = (
    "frames",
    "framesPerSecond",
    "meanReturn",
    "episodes",
    "version",
    "lag",
    "workersReady",
    "learnerWait",
    "workersWaitLearner",
    "workersWaitWeights",
)
"""The series of a history. The last three are fractions of the time, 0 to 1; those of workers are their mean."""


class JobRow(View):
    """A job in the list of jobs.

    Attributes:
        key: `namespace/name`.
        diagnosis: Its state, the reason, and what to do, as in `describe`.
        total_frames: The frames to collect; 0: no limit.
        returns: At most 30 mean returns, over the life of the job, the newest last.
        lag: Versions that the slowest worker is behind.
    """

    key: str
    namespace: str
    name: str
    uid: str = ""
    phase: str
    diagnosis: Diagnosis
    workers_ready: int = 0
    workers_desired: int = 0
    frames: int = 0
    total_frames: int = 0
    frames_per_second: float = 0.0
    mean_return: float | None = None
    returns: list[float] = Field(default=[])
    published_version: int | None = None
    applied_version: int | None = None
    lag: int | None = None
    created: float
    ended: float | None = None


class ObjectRow(View):
    """An object that a job became: in a cluster a Kubernetes Job, a Service or another, on this machine a process."""

    kind: str
    name: str
    state: str = ""


class JobPage(View):
    """One job.

    Attributes:
        row: Its row in the list.
        status: The status of the CollectorJob.
        spec: The spec as applied, with defaults, as YAML.
        defaulted: The paths in it that have their defaults, such as `weights.interval`.
        objects: The objects that it became.
    """

    row: JobRow
    status: CollectorJobStatus = CollectorJobStatus()
    spec: str = ""
    defaulted: list[str] = Field(default=[])
    objects: list[ObjectRow] = Field(default=[])


class WorkerRow(View):
    """A worker, an evaluation worker, or the learner.

    Attributes:
        process: `worker 3`, `evaluation worker 0` or `learner`: the name of its log.
        index: The worker's index. None: another process.
        has_previous: Whether there is a log of the incarnation before.
        since: When it was last seen to begin or to change its state.
    """

    process: str
    index: int | None = None
    state: str
    incarnation: int = 0
    version: int | None = None
    lag: int | None = None
    frames: int = 0
    frames_per_second: float = 0.0
    mean_return: float | None = None
    restarts: int = 0
    node: str = ""
    gpus: int = 0
    last_error: str = ""
    has_previous: bool = False
    since: float | None = None


class Happened(StrEnum):
    """The kind of a moment."""

    CREATED = "Created"
    EDITED = "Edited"
    SCALED = "Scaled"
    VERSION = "Version"
    WORKER_ENDED = "WorkerEnded"
    WORKER_BACK = "WorkerBack"
    LEARNER_CONNECTED = "LearnerConnected"
    LEARNER_REPLACED = "LearnerReplaced"
    LEARNER_ENDED = "LearnerEnded"
    NATS_AWAY = "NatsAway"
    NATS_BACK = "NatsBack"
    STRAGGLER = "Straggler"
    SUSPENDED = "Suspended"
    RESUMED = "Resumed"
    COMPLETE = "Complete"
    FAILED = "Failed"


class Moment(View):
    """Something that happened.

    Attributes:
        kind: One of `Happened`; a later version may know more.
        text: What happened, in one line.
        detail: More lines, such as the difference of an edit as a unified diff; empty: none.
    """

    time: float
    kind: str
    text: str
    detail: str = ""


class History(View):
    """The series of a job over time.

    Attributes:
        time: The times of the points.
        series: The values of each series of `SERIES` at these times.
    """

    time: list[float] = Field(default=[])
    series: dict[str, list[float | None]] = Field(default={})
