"""Backs up a job's state in its owner's memory, to store it again after NATS has lost its storage."""

from collections.abc import Mapping

from nats.aio.msg import Msg

from rollfleet.nats.link import Link

MAX_LEASES, MAX_LEASE_BYTES = 1 << 16, 1 << 12  # more than any job has: bounds for hostile senders


class StateBackup:
    """The newest messages that a restarted learner or worker needs: leases, control, the learner's status.

    Weights are not among them: the learner sends them again.

    Args:
        link: A connection that may subscribe to these messages.

    Example:
        >>> backup = StateBackup(link)  # doctest: +SKIP
        >>> link.on_reconnect(lambda: provision(link, job, kept=backup.messages()))  # doctest: +SKIP
    """

    def __init__(self, link: Link) -> None:
        self._messages: dict[str, bytes] = {}
        link.call(self._subscribe(link))

    def messages(self) -> Mapping[str, bytes]:
        """Return the messages by subject."""
        return dict(self._messages)

    async def _subscribe(self, link: Link) -> None:
        subjects = link.subjects
        for subject in (subjects.control, subjects.learner):
            await link.client.subscribe(subject, cb=self._keep)
        await link.client.subscribe(subjects.leases, cb=self._keep_lease)

    async def _keep_lease(self, message: Msg) -> None:
        has_space = message.subject in self._messages or len(self._messages) < MAX_LEASES
        if has_space and len(message.data) <= MAX_LEASE_BYTES:
            await self._keep(message)

    async def _keep(self, message: Msg) -> None:
        self._messages[message.subject] = message.data
