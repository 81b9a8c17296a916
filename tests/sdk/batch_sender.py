"""A worker that sends batches on demand."""

from tests.job_server import Server
from tests.sdk.nats.numbered_batches import fragment, values
from tests.waiting import wait_until

from rollfleet import Collector
from rollfleet_api.transfers import BatchMeta, Receipt
from rollfleet_api.versions import version_of


class Sender:
    """One incarnation of a worker."""

    def __init__(self, server: Server, worker: int) -> None:
        self._controls = server.hear_control()
        self._transport = server.worker_transport(worker)
        self._sent, self._taken = 0, set[int]()
        admin = server.link()
        admin.call(admin.listen(admin.subjects.taken(worker), Receipt, self._hear))

    def send(self, *values: float, session: int = 0, round_: int = 0, version: int = 1) -> None:
        """Send a batch for each value, whose observations all have that value. It keeps them until they are taken.

        `session` is the learner's, unless it is given.
        """
        if round_ and not session:
            wait_until(lambda: self._controls)
            session = self._controls[-1].session
        meta = BatchMeta(session=session or 1, round=round_, version=version, frames=6)
        for value in values:
            self._transport.send(fragment(value), meta)
            self._sent += 1

    @property
    def kept(self) -> int:
        """The number of batches that the learner has not taken."""
        return self._sent - len(self._taken)

    def admitted(self, collector: Collector, *, lag: int) -> bool:
        """Send a batch of a version as old as this, and a new one. Return whether the collector yields both."""
        wait_until(lambda: self._controls)
        newest = version_of(self._controls[-1].session, collector.version)
        self.send(1.0, version=newest - lag)
        self.send(0.0, version=newest)
        return values(collector, 1) == [1.0] and values(collector, 1) == [0.0]

    def _hear(self, receipt: Receipt) -> None:
        self._taken.update(receipt.taken)
