"""The operator's memory of a job between reconciliations. All of it can be lost, and is found again."""

from dataclasses import dataclass, field

from rollfleet_operator.autoscale import History
from rollfleet_operator.errors import NatsFull
from rollfleet_operator.events import EventThrottle
from rollfleet_operator.frame_rate import FrameRate
from rollfleet_operator.manifest import Manifest, Ref
from rollfleet_operator.nats_port import Heartbeats


@dataclass(slots=True, kw_only=True)
class JobMemory:
    """The memory of one job.

    Attributes:
        secrets: The job's Secrets, as they are mounted now; the operator has no right to watch Secrets.
        secrets_s: Time at which they were read.
        refused: Why pods could not be created when it was last asked; empty: they could.
        refused_s: Time of that question.
        lacking_s: Time since when pods are missing and none was created; 0: none is missing.
        queued: Whether another client, such as Kueue, decides when the job's runs start.
        ignored: What the operator ignores in the job, as it has already been reported.
        provisioned: The generation of the spec on NATS; None: unknown.
        unverified: Whether NATS may have lost its data.
        grown_s: Time of the last check whether its streams need more space; 0: check now.
        full: Why they did not get it then; None: they did.
        heartbeats: The last heartbeats, for the time when NATS is away.
        source_digest: Digest of the job's ConfigMap, when it last existed; None: not read yet.
        written_s: Time of the last write of the status.
        rate: The job's frame rate.
        history: Measurements for the number of workers.
        throttle: The filter of repeated events.
    """

    secrets: dict[Ref, Manifest] = field(default_factory=dict)
    secrets_s: float = 0.0
    refused: str = ""
    refused_s: float = 0.0
    lacking_s: float = 0.0
    queued: bool = False
    ignored: tuple[str, ...] = ()
    provisioned: int | None = None
    unverified: bool = False
    grown_s: float = 0.0
    full: NatsFull | None = None
    heartbeats: Heartbeats = field(default_factory=Heartbeats)
    source_digest: str | None = None
    written_s: float = 0.0
    rate: FrameRate = field(default_factory=FrameRate)
    history: History = field(default_factory=History)
    throttle: EventThrottle = field(default_factory=EventThrottle)

    def doubt(self) -> None:
        """Forget all that could have changed unnoticed."""
        self.secrets.clear()
        self.unverified = True
