"""The operator's view of NATS: a seam, so that all other modules run without a server.

`rollfleet_operator.nats` implements it for a real server.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from rollfleet_api.job import CollectorJob
from rollfleet_api.messages import Control, LearnerStatus, WorkerStatus
from rollfleet_api.permissions import Role


class JobKey(NamedTuple):
    """The identity of a job in a cluster."""

    namespace: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """The address of NATS for pods.

    Attributes:
        url: URL such as `tls://host:port`; commas separate several.
        ca: The certificates for pods to trust (PEM); None: those in their image.
        public_url: The URL for learners outside of the cluster; empty: none is known.
    """

    url: str
    ca: bytes | None = None
    public_url: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeats:
    """The last messages of a job, of any age: each message carries its own time.

    Attributes:
        workers: The newest heartbeat of each worker, by index. It may contain workers that have left.
        learner: The learner's newest heartbeat; None: the job never had a learner.
        control: The learner's orders; None: the job never had a learner.
        since_s: Time since when NATS has answered this operator without a gap; inf: it does not answer now.
    """

    workers: Mapping[int, WorkerStatus] = field(default_factory=dict)
    learner: LearnerStatus | None = None
    control: Control | None = None
    since_s: float = 0.0


class NatsPort(Protocol):
    """NATS for the operator.

    All methods may be called at any time, concurrently for different jobs, and again with the same arguments. Each that
    asks NATS ends within ten seconds, with a result or with `NatsUnavailable`: a reconciliation waits for it.
    """

    @property
    def endpoint(self) -> Endpoint:
        """The address of NATS for pods."""

    @property
    def dropped_messages(self) -> int:
        """Number of messages of jobs that were not kept: too large, too many, or of workers that they do not have."""

    def credentials(self, job: CollectorJob, role: Role) -> bytes:
        """Return the credentials file (JWT and seed) of a role: the same until they are renewed, by any operator."""

    async def provision(self, job: CollectorJob, *, renewed_s: float = 0.0) -> None:
        """Create or update the job's stream, and publish its spec to workers and learner.

        Credentials of before a rotation are refused some minutes after the rotation, and after `renewed_s`, when the
        newest ones were issued.

        The stream of an earlier job of the same name (another `metadata.uid`) is recreated empty. If NATS has lost its
        data, the last known leases, control and learner's status are stored again.

        Raises:
            OwnedElsewhere: The stream of this name is another installation's.
        """

    async def deprovision(self, key: JobKey) -> None:
        """Remove all data of a job. Ignores a missing job and one of another installation."""

    async def provisioned(self) -> set[JobKey]:
        """Return this installation's jobs with data on NATS, to find those that were deleted unnoticed."""

    async def heartbeats(self, job: CollectorJob) -> Heartbeats:
        """Return the last messages of a job, from memory; NATS is asked only if there are none yet."""

    async def close(self) -> None:
        """Disconnect. No other method may be called afterwards."""
