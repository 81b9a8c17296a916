"""What the operator remembers of a job between two looks: all of it can be lost, and is found again."""

from dataclasses import dataclass, field

from rollfleet_operator.autoscale import History
from rollfleet_operator.events import EventThrottle
from rollfleet_operator.frame_rate import FrameRate
from rollfleet_operator.manifest import Manifest, Ref
from rollfleet_operator.nats_port import Heartbeats


@dataclass(slots=True, kw_only=True)
class JobMemory:
    """Of one job.

    Attributes:
        secrets: Those of the job as they are mounted now; the operator has no right to watch Secrets.
        provisioned: The generation whose spec NATS was told; None: unknown.
        doubted: NATS may have lost what it was told.
        released: The job is over, and what NATS had of it was taken away.
        heard: The last heartbeats, for when NATS is away.
        source_digest: Of the job's ConfigMap, when it was last there.
        written_s: When status was last written.
        rate: Of frames.
        history: What the number of workers is chosen by.
        quiet: What was announced lately.
    """

    secrets: dict[Ref, Manifest] = field(default_factory=dict)
    provisioned: int | None = None
    doubted: bool = False
    released: bool = False
    heard: Heartbeats = field(default_factory=Heartbeats)
    source_digest: str = ""
    written_s: float = 0.0
    rate: FrameRate = field(default_factory=FrameRate)
    history: History = field(default_factory=History)
    quiet: EventThrottle = field(default_factory=EventThrottle)

    def doubt(self) -> None:
        """Find out again what could have changed without anybody telling."""
        self.secrets.clear()
        self.doubted = True
