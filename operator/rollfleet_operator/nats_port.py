"""What the operator asks of NATS: a seam, so that everything else runs and is tested without a server.

`rollfleet_operator.nats` implements it for a real server; the tests have an implementation in memory.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from rollfleet_api.job import CollectorJob
from rollfleet_api.messages import Control, LearnerStatus, WorkerStatus
from rollfleet_api.permissions import Role


class JobKey(NamedTuple):
    """What tells the jobs of a cluster apart."""

    namespace: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where pods find NATS.

    Attributes:
        url: As `tls://host:port`; several, separated by commas.
        ca: The certificates that pods are to trust, PEM; None: their image's own.
    """

    url: str
    ca: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeats:
    """The last that was heard of a job, however old: each message tells its own time.

    Attributes:
        workers: By index, the newest of each. May hold workers that are gone by now.
        learner: The learner's newest; None: no learner was ever there.
        control: What the learner wants done; None: as above.
    """

    workers: Mapping[int, WorkerStatus] = field(default_factory=dict)
    learner: LearnerStatus | None = None
    control: Control | None = None


class NatsPort(Protocol):
    """NATS, as the operator sees it.

    Every method may be called at any time, concurrently for different jobs, and again with the same arguments. Each
    ends within ten seconds, with a result or with `NatsUnavailable`: a reconciliation waits for it.
    """

    @property
    def endpoint(self) -> Endpoint:
        """What pods are told."""
        ...

    async def credentials(self, job: CollectorJob, role: Role, mounted: bytes | None) -> bytes | None:
        """The credentials file of a role.

        Args:
            job: Whose subjects it opens.
            role: Worker or learner.
            mounted: The file as it is mounted now; None: none yet. It is returned as it is until it must be renewed,
                so that an operator which starts anew rotates nothing.

        Returns:
            JWT and seed; None: this NATS asks for none.
        """
        ...

    async def provision(self, job: CollectorJob) -> None:
        """Make the job's streams, or bring them up to date, and publish its spec to workers and learner.

        Streams of an earlier job of the same name (another `metadata.uid`) are made anew, empty. Where NATS has lost
        what it had stored, what was heard of claims, control and the learner is put back.
        """
        ...

    async def deprovision(self, key: JobKey) -> None:
        """Take everything of a job away. It is no error where there is nothing."""
        ...

    async def provisioned(self) -> set[JobKey]:
        """The jobs that NATS holds anything of: for those that were deleted while nobody watched."""
        ...

    async def heartbeats(self, job: CollectorJob) -> Heartbeats:
        """The last that was heard of a job. Served from memory; asks NATS only where nothing was heard yet."""
        ...

    async def close(self) -> None:
        """Disconnect. Nothing else is called afterwards."""
        ...
