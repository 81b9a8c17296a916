"""The operator's memory of a job between reconciliations. All of it can be lost, and is found again."""

from dataclasses import dataclass, field
from math import inf

from rollfleet_api.frame_rate import FrameRate
from rollfleet_operator.autoscale import History
from rollfleet_operator.events import EventThrottle
from rollfleet_operator.manifest import Manifest, Ref
from rollfleet_operator.nats_port import Heartbeats


@dataclass(slots=True, kw_only=True)
class PodRefusal:
    """Why a job's pods could not be created when the API server was last asked.

    Attributes:
        message: The reason, in the API server's words; empty: they could.
        asked_s: Time of that question.
        lacking_s: Time since when pods are missing and none was created; 0: none is missing.
    """

    message: str = ""
    asked_s: float = 0.0
    lacking_s: float = 0.0


@dataclass(slots=True, kw_only=True)
class JobMemory:
    """The memory of one job.

    Attributes:
        uid: The job's UID.
        secrets: The job's Secrets, as they were written: the operator has no right to read Secrets.
        secrets_s: Time of that write.
        refusal: Why pods could not be created.
        heartbeats: The last heartbeats, also while NATS is away.
        rate: The job's frame rate.
        namespace_ends: Whether the job's namespace is being deleted.
        source_digest: Digest of the job's ConfigMap, when it last existed; None: not read yet.
        written_s: Time of the last write of the status.
        history: Measurements for the number of workers.
        throttle: The filter of repeated events.
    """

    uid: str = ""
    secrets: dict[Ref, Manifest] = field(default_factory=dict)
    secrets_s: float = 0.0
    refusal: PodRefusal = field(default_factory=PodRefusal)
    heartbeats: Heartbeats = field(default_factory=lambda: Heartbeats(since_s=inf))
    rate: FrameRate = field(default_factory=FrameRate)
    namespace_ends: bool = False
    source_digest: str | None = None
    written_s: float = 0.0
    history: History = field(default_factory=History)
    throttle: EventThrottle = field(default_factory=EventThrottle)
