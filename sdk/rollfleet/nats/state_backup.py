"""What whoever runs a job keeps of its state, to put it back where NATS comes back without what it had stored."""

from collections.abc import Mapping

from nats.aio.msg import Msg

from rollfleet.nats.link import Link

MAX_LEASES, MAX_LEASE_BYTES = 1 << 16, 1 << 12  # more than any job has, whoever writes them


class StateBackup:
    """The last word on what a learner or a worker that starts anew has to know: claims, control, the learner's status.

    Not the weights: the learner sends them again.

    Args:
        link: A connection that may subscribe to all of it.
    """

    def __init__(self, link: Link) -> None:
        self._kept: dict[str, bytes] = {}
        link.call(self._subscribe(link))

    def messages(self) -> Mapping[str, bytes]:
        """By subject."""
        return dict(self._kept)

    async def _subscribe(self, link: Link) -> None:
        subjects = link.subjects
        for subject in (subjects.control, subjects.learner):
            await link.client.subscribe(subject, cb=self._keep)
        await link.client.subscribe(subjects.leases, cb=self._keep_lease)

    async def _keep_lease(self, message: Msg) -> None:
        known = message.subject in self._kept or len(self._kept) < MAX_LEASES
        if known and len(message.data) <= MAX_LEASE_BYTES:
            await self._keep(message)

    async def _keep(self, message: Msg) -> None:
        self._kept[message.subject] = message.data
