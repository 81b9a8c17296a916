"""Whether a job still exists on NATS: deleted, or only out of reach.

No responder is no proof: the server may have come back without its state, before the job's owner is there to create the
job again. A job counts as deleted if NATS itself says for a while that it has no such stream, and has not been away
since it last had it, or if the cluster says so.
"""

import logging
import time
from collections.abc import Awaitable, Callable

from nats.errors import NoRespondersError

from rollfleet.errors import JobEnded
from rollfleet.nats.link import Link
from rollfleet.nats.polling import WARN_AFTER_S, poll
from rollfleet.nats.streams import send
from rollfleet_api.jetstream import JetStreamCode
from rollfleet_api.streams import Request

log = logging.getLogger(__name__)

DELETED_AFTER_S = 5.0


class JobPresence:
    """Watches whether a job exists. After a cut of the connection, a missing job is waited for without a limit.

    Args:
        link: The connection. Create this before other recoveries are added to it: they wait for the job.
    """

    def __init__(self, link: Link) -> None:
        self._link = link
        self._may_be_lost = False  # NATS was away, and has not shown the job since
        self._missing_since_s: float | None = None
        self._warned = False
        link.on_reconnect(self._suspect)

    async def watch(self, read: Callable[[], Awaitable[None]], processes: Callable[[], int] = lambda: 1) -> None:
        """Await `read()` as `poll` does, until it raises an error that is not NATS's, or the job was deleted.

        Raises:
            JobEnded: The job was deleted.
        """

        async def checked() -> None:
            if self._link.job_deleted:
                raise JobEnded(f"the job {self._link.subjects.key} was deleted")
            try:
                await read()
            except NoRespondersError:
                await self._check()
            else:
                self._may_be_lost, self._missing_since_s, self._warned = False, None, False

        await poll(checked, processes)

    async def _suspect(self) -> None:
        self._may_be_lost = True

    async def _check(self) -> None:
        if not await is_missing(self._link):
            self._missing_since_s = None
            return
        now_s = time.monotonic()
        self._missing_since_s = self._missing_since_s or now_s
        missing_s, key = now_s - self._missing_since_s, self._link.subjects.key
        if not self._may_be_lost and missing_s >= DELETED_AFTER_S:
            raise JobEnded(f"the job {key} was deleted: NATS has had no such stream for {missing_s:.0f} s")
        if missing_s >= WARN_AFTER_S and not self._warned:
            self._warned = True
            log.warning("%s: NATS came back without this job; waiting until the job's owner recreates it", key)


async def is_missing(link: Link) -> bool:
    """Return whether NATS says that it has no stream of this job.

    Raises:
        NatsError: It did not answer: it may have the job, or not.
    """
    reply = await send(link, Request(subject=link.subjects.state_info))
    return reply.error_code == JetStreamCode.STREAM_NOT_FOUND
