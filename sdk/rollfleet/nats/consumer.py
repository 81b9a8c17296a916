"""The durable consumer of the work queue that one rank of a learner reads."""

import asyncio
import logging
from enum import StrEnum
from uuid import uuid4

from rollfleet.errors import JetStreamRefused, LearnerReplaced
from rollfleet.nats.jetstream import NO_CONSUMER, NOT_FOUND, ask, remove
from rollfleet.nats.link import RETRY_WAIT_S, Link
from rollfleet.nats.state import read_bytes
from rollfleet_api.ranks import ALONE, Rank
from rollfleet_api.streams import OWNER, learner_consumer

log = logging.getLogger(__name__)

_IN_THE_WAY = (10013, 10099, 10100, 10105, 10148)  # another has this name, or these workers: JetStream's error codes


class Gone(StrEnum):
    """Why there is no consumer."""

    CONSUMER = "consumer"
    STREAM = "stream"


class LearnerConsumer:
    """Makes the consumer of a rank, and tells whose it is.

    Where there are several ranks a consumer names the workers whose batches it takes, and when there are more workers
    it is made anew: the server would not go back to what a new one had sent before.

    Args:
        link: The learner's connection.
        rank: Whose consumer it is.
        workers: How many the job has.
    """

    def __init__(self, link: Link, rank: Rank, workers: int) -> None:
        self._link, self._rank, self._workers = link, rank, workers
        self._queue = link.subjects.batches_stream
        self.owner = uuid4().hex  # unlike that of any other process

    async def take_over(self) -> None:
        """Make it anew, and take those of a learner with another number of ranks away: who held them is told so."""
        if self._rank != ALONE:
            await self._cover_who_was_there()
            await self._dismiss_others()
        while True:
            try:
                await self.remake()
            except LearnerReplaced as error:
                log.debug("%s; once more", error)
                await self._dismiss_others()
                await asyncio.sleep(RETRY_WAIT_S)
            else:
                return

    async def remake(self) -> None:
        """Make it anew: whoever held it is told so, and what was not acknowledged comes again.

        Raises:
            LearnerReplaced: Somebody came in between.
        """
        await remove(self._link, f"CONSUMER.DELETE.{self._queue}.{self._rank.consumer}")
        await self.make()

    async def make(self) -> None:
        """Make it.

        Raises:
            LearnerReplaced: There is one of somebody else, of this rank or of the same workers.
        """
        consumer = learner_consumer(self._link.subjects, self._rank, self.owner, workers=self._workers)
        body = {"stream_name": self._queue, "config": consumer, "action": "create"}
        try:
            await ask(self._link, f"CONSUMER.DURABLE.CREATE.{self._queue}.{self._rank.consumer}", body)
        except JetStreamRefused as error:
            if error.error_code in _IN_THE_WAY:
                raise LearnerReplaced(f"another learner has the batches of {self._link.subjects.key}") from error
            raise

    async def owned_by(self) -> str | Gone:
        """Who made the one that is there; or that it, or the whole stream, is not."""
        try:
            info = await ask(self._link, f"CONSUMER.INFO.{self._queue}.{self._rank.consumer}", {})
        except JetStreamRefused as error:
            if error.error_code not in NOT_FOUND:
                raise
            return Gone.CONSUMER if error.error_code == NO_CONSUMER else Gone.STREAM
        return str(info["config"].get("metadata", {}).get(OWNER, ""))

    def cover(self, workers: int) -> bool:
        """The job has so many workers now. True: there are some that it does not name, and it is to be made anew."""
        subjects, before = self._link.subjects, self._workers
        self._workers = max(self._workers, workers)  # those that leave have sent something, perhaps
        return self._rank.filters(subjects, self._workers) != self._rank.filters(subjects, before)

    async def _cover_who_was_there(self) -> None:
        """The job may have had more workers, and what these have sent is there still."""
        while await read_bytes(self._link, self._link.subjects.lease(self._workers)):
            self._workers += 1

    async def _dismiss_others(self) -> None:
        """Take away the consumers of learners with another number of ranks."""
        names: list[str] = []
        while True:
            answer = await ask(self._link, f"CONSUMER.NAMES.{self._queue}", {"offset": len(names)})
            names += (page := answer.get("consumers") or [])
            if not page or len(names) >= answer["total"]:
                break
        for name in names:
            if (other := Rank.of_consumer(name)) and other.ranks != self._rank.ranks:
                await remove(self._link, f"CONSUMER.DELETE.{self._queue}.{name}")
