"""Sees every batch that a job's workers send, live, and takes none away from its learner.

It subscribes to the subjects that workers publish to, beside the work queue: a copy comes to it, and nobody waits.
"""

import asyncio
import logging
import threading
from collections import deque
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import torch
from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.errors import NoRespondersError
from pydantic import ValidationError

from rollfleet.data.batch import to_batch
from rollfleet.errors import ConnectionFailed, JobEnded, WireError
from rollfleet.learner.duplicates import DuplicateFilter
from rollfleet.nats.link import Link
from rollfleet.nats.state import read_state
from rollfleet.wire.batch_chunks import Assembled, Assembler
from rollfleet.wire.fragment_message import unpack_fragment
from rollfleet_api.job import CollectorJob
from rollfleet_api.messages import Control, LearnerPhase, MessageInvalid, unpack
from rollfleet_api.subjects import BEGAN

if TYPE_CHECKING:
    from tensordict import TensorDict

log = logging.getLogger(__name__)

MEMORY_BYTES = 256 << 20
LOOK_EVERY_S = 2.0
GONE_AFTER_S = 60.0  # NATS may have lost the job: whoever runs it has so long to make it again
SUBSCRIBE_TIMEOUT_S = 15.0


class Observer:
    """An iterator over every batch of a job, TensorDict `[envs, T]`, of one worker each, as they come.

    It sees what workers send from the moment that it is there, also what the learner drops as too old. Whoever is
    slower than the workers loses batches, and nobody waits for it: what does not fit into its memory is left out.
    Iterate from one thread. Iterating ends with the job.

    Args:
        link: A connection as the job's learner. It is closed with the observer.
        job: The job.
        memory_bytes: Batches that have come and were not asked for yet may have so many, or be a single one.
        device: Where batches are put; None: they stay in the memory that they were received in.
    """

    def __init__(
        self,
        link: Link,
        job: CollectorJob,
        *,
        memory_bytes: int = MEMORY_BYTES,
        device: torch.device | None = None,
    ) -> None:
        self.job = job
        self._link, self._device, self._memory_bytes = link, device, memory_bytes
        self._assembler = Assembler(max_message_bytes=job.spec.delivery.limit_bytes)
        self._follow(job)
        self._duplicates = DuplicateFilter()
        self._waiting: deque[Assembled] = deque()
        self._waiting_bytes = 0
        self._corrupt = 0
        self._over: JobEnded | None = None
        self._changed = threading.Condition()
        link.call(self._subscribe(), timeout_s=SUBSCRIBE_TIMEOUT_S)
        link.begin(self._look_around())

    def receive(self, timeout_s: float) -> Assembled | None:
        """The next batch as it was sent; None: none came in time.

        Raises:
            JobEnded: The job is over, and all that had come was received.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._over, timeout_s)
            if self._waiting:
                assembled = self._waiting.popleft()
                self._waiting_bytes -= assembled.buffer.nbytes
                return assembled
            if self._over:
                raise self._over
        return None

    @property
    def missed(self) -> int:
        """Batches that did not come whole, or found no room, though later ones of the same worker's life have come."""
        with self._changed:
            return self._duplicates.missed

    @property
    def corrupt(self) -> int:
        """Batches that could not be read."""
        return self._corrupt

    def count_corrupt(self, error: Exception) -> None:
        """One could not be read."""
        self._corrupt += 1
        log.warning("a batch could not be read and is left out: %s", error)

    def close(self) -> None:
        """Leave. Closing twice is fine."""
        self._end(JobEnded(f"this observer of {self.job.key} was closed"))
        self._link.close()

    def __iter__(self) -> Self:
        """Itself."""
        return self

    def __next__(self) -> "TensorDict":
        """The next batch.

        Raises:
            StopIteration: The job is over, or the observer was closed.
        """
        while True:
            try:
                assembled = self.receive(1.0)
            except JobEnded:
                raise StopIteration from None
            if assembled is None:
                continue
            try:
                batch: Any = to_batch(unpack_fragment(assembled.buffer)[1])
            except WireError as error:
                self.count_corrupt(error)
            else:
                return batch if self._device is None else batch.to(self._device)

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close."""
        self.close()

    # --- on the link's thread ---

    async def _subscribe(self) -> None:
        client, subjects = self._link.client, self._link.subjects
        # A message that has come counts until it is looked at, and one at least must always find room.
        pending_bytes = self._memory_bytes + client.max_payload
        for subject in subjects.batch_subjects:
            await client.subscribe(subject, cb=self._on_chunk, pending_bytes_limit=pending_bytes)
        await client.subscribe(subjects.spec, cb=self._on_spec)
        await client.subscribe(subjects.control, cb=self._on_control)
        await self._link.flush()

    async def _look_around(self) -> None:
        """See now and then whether the job is complete, or gone."""
        gone_s = 0.0
        while not self._over:
            try:
                if control := await read_state(self._link, self._link.subjects.control, Control):
                    self._obey(control)
            except NoRespondersError:  # no stream answers: the job is gone, or NATS is not ready yet
                gone_s += LOOK_EVERY_S
                if gone_s >= GONE_AFTER_S:
                    self._end(JobEnded(f"the job {self.job.key} is gone from NATS for {gone_s:g} s"))
            except (NatsError, MessageInvalid, TimeoutError, OSError) as error:
                log.debug("looking around: %r", error)
            else:
                gone_s = 0.0
            await asyncio.sleep(LOOK_EVERY_S)

    async def _on_chunk(self, message: Msg) -> None:
        if message.subject.endswith(BEGAN):
            return
        try:
            assembled = self._assembler.add(message.data)
        except WireError as error:
            self.count_corrupt(error)
            return
        self._assembler.take_given_up()
        if assembled:
            self._offer(assembled)

    def _offer(self, assembled: Assembled) -> None:
        """A worker sends again what the queue has refused, so that most of what comes to us comes more than once."""
        identity, nbytes = assembled.identity, assembled.buffer.nbytes
        with self._changed:
            if self._waiting and self._waiting_bytes + nbytes > self._memory_bytes:
                return  # it counts as missed as soon as its successor has come
            if self._duplicates.add(identity.worker, identity.incarnation, identity.sequence):
                self._waiting.append(assembled)
                self._waiting_bytes += nbytes
                self._changed.notify_all()

    async def _on_spec(self, message: Msg) -> None:
        try:
            self._follow(CollectorJob.model_validate_json(message.data))
        except ValidationError as error:
            log.warning("the job as it was published is passed over: %s", error)

    def _follow(self, job: CollectorJob) -> None:
        self._assembler.max_pending = 2 * job.spec.workers + 2

    async def _on_control(self, message: Msg) -> None:
        try:
            self._obey(unpack(Control, message.data))
        except MessageInvalid as error:
            log.warning("a control message is passed over: %s", error)

    def _obey(self, control: Control) -> None:
        if control.phase is LearnerPhase.COMPLETE:
            self._end(JobEnded(f"the job {self.job.key} is complete"))

    def _end(self, error: JobEnded) -> None:
        with self._changed:
            self._over = self._over or error
            self._changed.notify_all()


async def check_may_observe(link: Link) -> None:
    """Whether the server lets us see batches.

    Raises:
        ConnectionFailed: It does not; says whose credentials are needed.
    """
    for subject in link.subjects.batch_subjects:
        subscription = await link.client.subscribe(subject)
        await link.flush()  # a refusal comes before the answer to this
        await subscription.unsubscribe()
    if "permissions violation" in str(link.client.last_error).lower():
        raise ConnectionFailed(
            f"these credentials may not read the batches of {link.subjects.key}: use its learner's, which on a cluster "
            f"are in the Secret `{link.subjects.job}-learner-nats` ({link.client.last_error})"
        )
