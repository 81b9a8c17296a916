"""The operator's view of NATS: a seam, so that all other modules run without a server.

`rollfleet_operator.nats` implements it for real servers.
"""

from typing import NamedTuple, Protocol

from rollfleet_api.job import CollectorJob
from rollfleet_api.state.processes import Heartbeats


class JobKey(NamedTuple):
    """The identity of a job in a cluster."""

    namespace: str
    name: str


class NatsPort(Protocol):
    """NATS for the operator.

    All methods may be called at any time, concurrently for different jobs (not for one), and again with the same
    arguments. Each that asks NATS ends within ten seconds, with a result or with `NatsUnavailable`: a reconciliation
    waits for it.
    """

    @property
    def dropped_messages(self) -> int:
        """Number of messages of jobs that were not kept: too large, too many, or of workers that they do not have."""

    async def heartbeats(self, job: CollectorJob) -> Heartbeats:
        """Send a job to its processes, ask for their heartbeats, and return the last ones.

        None are of an earlier job of the same name (another `metadata.uid`).
        """

    async def disconnect(self, key: JobKey) -> None:
        """Close the connection to a job's server, which goes. The last messages are kept for its return."""

    async def remove(self, key: JobKey) -> None:
        """Forget a deleted job, and tell its processes on an organisation's NATS."""

    async def close(self) -> None:
        """Disconnect. No other method may be called afterwards."""
