"""The durable consumer of the work queue that one rank of a learner reads."""

import asyncio
import logging
from enum import StrEnum
from uuid import uuid4

from rollfleet.errors import JetStreamRefused, LearnerReplaced
from rollfleet.nats.link import Link
from rollfleet.nats.polling import RETRY_WAIT_S
from rollfleet.nats.state import read_bytes
from rollfleet.nats.streams import ask, remove
from rollfleet_api.jetstream import CONSUMER_CONFLICT, NOT_FOUND, JetStreamCode
from rollfleet_api.ranks import ALONE, Rank
from rollfleet_api.streams import OWNER, learner_consumer

log = logging.getLogger(__name__)


class Missing(StrEnum):
    """The part that is missing: the consumer, or its stream."""

    CONSUMER = "consumer"
    STREAM = "stream"


class LearnerConsumer:
    """Creates the consumer of a rank, and reads which process owns it.

    With several ranks, a consumer names the workers whose batches it takes. It is recreated when the job grows: the
    server would not deliver earlier messages of a new worker to an existing consumer.

    Attributes:
        owner: Unique id of this process.
    """

    def __init__(self, link: Link, rank: Rank, workers: int) -> None:
        self._link, self._rank, self._workers = link, rank, workers
        self._queue = link.subjects.batches_stream
        self.owner = uuid4().hex
        self._created = ""  # NATS's time of the consumer's creation

    async def take_over(self) -> None:
        """Recreate the consumer, and delete consumers of a learner with another number of ranks.

        Their processes notice that they were replaced.
        """
        if self._rank != ALONE:
            await self._cover_earlier_workers()
            await self._delete_other_learners()
        while True:
            try:
                await self.recreate()
            except LearnerReplaced as error:
                log.debug("%s; trying again", error)
                await self._delete_other_learners()
                await asyncio.sleep(RETRY_WAIT_S)
            else:
                return

    async def recreate(self) -> None:
        """Delete the consumer and create it. Unacknowledged messages are delivered again; another owner notices.

        Raises:
            LearnerReplaced: Another process created it in between.
        """
        await remove(self._link, f"CONSUMER.DELETE.{self._queue}.{self._rank.consumer}")
        await self.create()

    async def create(self) -> None:
        """Create the consumer.

        Raises:
            LearnerReplaced: Another process has a consumer of this rank, or of the same workers.
        """
        consumer = learner_consumer(self._link.subjects, self._rank, self.owner, workers=self._workers)
        body = {"stream_name": self._queue, "config": consumer, "action": "create"}
        try:
            info = await ask(self._link, f"CONSUMER.DURABLE.CREATE.{self._queue}.{self._rank.consumer}", body)
            self._created = str(info["created"])
        except JetStreamRefused as error:
            if error.error_code in CONSUMER_CONFLICT:
                raise LearnerReplaced(f"another learner has the batches of {self._link.subjects.key}") from error
            raise

    async def owned_by(self) -> str | Missing:
        """Return the owner of the consumer, or the missing part."""
        try:
            info = await ask(self._link, f"CONSUMER.INFO.{self._queue}.{self._rank.consumer}", {})
        except JetStreamRefused as error:
            if error.error_code not in NOT_FOUND:
                raise
            return Missing.CONSUMER if error.error_code == JetStreamCode.CONSUMER_NOT_FOUND else Missing.STREAM
        owner = str(info["config"].get("metadata", {}).get(OWNER, ""))
        # NATS came back with an older state, before this learner: it has lost this one's consumer.
        return Missing.CONSUMER if owner != self.owner and _time(info["created"]) < _time(self._created) else owner

    def cover(self, workers: int) -> bool:
        """Set the job's number of workers. Returns True if the consumer does not name all of them: recreate it."""
        subjects, before = self._link.subjects, self._workers
        self._workers = max(self._workers, workers)  # workers that leave may have sent batches
        return self._rank.filters(subjects, self._workers) != self._rank.filters(subjects, before)

    async def _cover_earlier_workers(self) -> None:
        """Count workers of a larger job before this one: the queue may hold their batches."""
        while await read_bytes(self._link, self._link.subjects.lease(self._workers)):
            self._workers += 1

    async def _delete_other_learners(self) -> None:
        """Delete the consumers of learners with another number of ranks."""
        names: list[str] = []
        while True:
            answer = await ask(self._link, f"CONSUMER.NAMES.{self._queue}", {"offset": len(names)})
            names += (page := answer.get("consumers") or [])
            if not page or len(names) >= answer["total"]:
                break
        for name in names:
            if (other := Rank.of_consumer(name)) and other.ranks != self._rank.ranks:
                await remove(self._link, f"CONSUMER.DELETE.{self._queue}.{name}")


def _time(text: str) -> tuple[str, str]:
    """Return a time of NATS so that times compare: it writes UTC, without zeros at the end of a second's fraction."""
    whole, _, fraction = text.removesuffix("Z").partition(".")
    return whole, fraction
