"""The operator's memory of a job between reconciliations. All of it can be lost, and is found again."""

from dataclasses import dataclass, field

from rollfleet_operator.autoscale import History
from rollfleet_operator.events import EventThrottle
from rollfleet_operator.frame_rate import FrameRate
from rollfleet_operator.manifest import Manifest, Ref
from rollfleet_operator.nats_port import Heartbeats


@dataclass(slots=True, kw_only=True)
class JobMemory:
    """The memory of one job.

    Attributes:
        secrets: The job's Secrets, as they are mounted now; the operator has no right to watch Secrets.
        provisioned: The generation of the spec on NATS; None: unknown.
        doubted: Whether NATS may have lost its data.
        released: Whether the job is over and was removed from NATS.
        heartbeats: The last heartbeats, for the time when NATS is away.
        source_digest: Digest of the job's ConfigMap, when it last existed.
        written_s: Time of the last write of the status.
        rate: The job's frame rate.
        history: Measurements for the number of workers.
        throttle: The filter of repeated events.
    """

    secrets: dict[Ref, Manifest] = field(default_factory=dict)
    provisioned: int | None = None
    doubted: bool = False
    released: bool = False
    heartbeats: Heartbeats = field(default_factory=Heartbeats)
    source_digest: str = ""
    written_s: float = 0.0
    rate: FrameRate = field(default_factory=FrameRate)
    history: History = field(default_factory=History)
    throttle: EventThrottle = field(default_factory=EventThrottle)

    def doubt(self) -> None:
        """Forget all that could have changed unnoticed."""
        self.secrets.clear()
        self.doubted = True
