"""A worker that sends batches on demand."""

from tests.job_server import Server
from tests.sdk.nats.numbered_batches import fragment

from rollfleet.nats.worker_transport import NatsWorkerTransport
from rollfleet_api.messages import BatchMeta
from rollfleet_api.permissions import Role


class Sender:
    """One incarnation of a worker."""

    def __init__(self, server: Server, worker: int) -> None:
        self._transport = NatsWorkerTransport(server.link(Role.WORKER), worker)

    def send(self, *values: float, session: int = 1, round_: int = 0, version: int = 1) -> None:
        """Send a batch for each value, whose observations all have that value. It keeps them until they are taken."""
        meta = BatchMeta(session=session, round=round_, version=version, frames=6)
        for value in values:
            self._transport.send(fragment(value), meta)

    @property
    def kept(self) -> int:
        """The number of batches that the learner has not taken, as the worker knows."""
        assert self._transport._outbox is not None
        return len(self._transport._outbox._kept)
