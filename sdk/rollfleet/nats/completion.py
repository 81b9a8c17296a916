"""The end of a job for its workers: confirmed by the stored control message before one leaves for good."""

import asyncio
import time
from collections.abc import Awaitable, Callable

from rollfleet.nats.link import Link
from rollfleet.nats.polling import RETRY_WAIT_S, insist
from rollfleet_api.messages import Control, LearnerPhase

CONFIRM_FOR_S = 10.0


class Completion:
    """Passes live control messages on, and confirms that one completes the job.

    Workers share an account: another one may send live messages in the learner's name. It cannot write stored ones.

    Args:
        link: The connection.
        obey: Obeys a control message.
        read: Reads the stored control message, and obeys it. Returns whether it completes the job.

    Example:
        >>> completion = Completion(link, self._set_control, self._read_completion)  # doctest: +SKIP
        >>> await link.listen(link.subjects.control, Control, completion.hear)  # doctest: +SKIP
    """

    def __init__(self, link: Link, obey: Callable[[Control], None], read: Callable[[], Awaitable[bool]]) -> None:
        self._link, self._obey, self._read = link, obey, read
        self._confirming = False

    def hear(self, control: Control) -> None:
        """Take a live control message."""
        if control.phase is not LearnerPhase.COMPLETE:
            self._obey(control)
        elif not self._confirming:
            self._confirming = True
            self._link.begin(self._confirm())

    async def _confirm(self) -> None:
        """Read the stored message until it completes the job: it is stored a moment after it is published."""
        until_s, completes = time.monotonic() + CONFIRM_FOR_S, False

        async def ask() -> None:
            nonlocal completes
            completes = await self._read()

        try:
            while not completes and time.monotonic() < until_s:
                await insist(ask)
                await asyncio.sleep(0.0 if completes else RETRY_WAIT_S)
        finally:
            self._confirming = False
