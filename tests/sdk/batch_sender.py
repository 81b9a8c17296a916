"""A worker that sends batches on demand."""

from tests.job_server import Server
from tests.sdk.nats.numbered_batches import fragment
from tests.waiting import wait_until

from rollfleet_api.transfers import BatchMeta


class Sender:
    """One incarnation of a worker."""

    def __init__(self, server: Server, worker: int) -> None:
        self._transport = server.worker_transport(worker)

    def send(self, *values: float, session: int = 0, round_: int = 0, version: int = 1) -> None:
        """Send a batch for each value, whose observations all have that value. It keeps them until they are taken.

        `session` is the learner's, unless it is given.
        """
        if round_ and not session:
            wait_until(lambda: self._transport._control)
            assert self._transport._control
            session = self._transport._control.session
        meta = BatchMeta(session=session or 1, round=round_, version=version, frames=6)
        for value in values:
            self._transport.send(fragment(value), meta)

    @property
    def kept(self) -> int:
        """The number of batches that the learner has not taken, as the worker knows."""
        assert self._transport._outbox is not None
        return len(self._transport._outbox._kept)
