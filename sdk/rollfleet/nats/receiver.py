"""What the learner receives: chunks from the work queue, put together, and decoded on a thread of its own."""

import asyncio
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import torch
from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from rollfleet.data.batch import to_batch
from rollfleet.errors import MessageCorrupt, WireError
from rollfleet.nats.link import RETRY_WAIT_S, Link
from rollfleet.transports.learner_side import Arrival
from rollfleet.wire.batch_chunks import MAX_WORKERS, Assembled, Assembler, Identity, peek
from rollfleet.wire.buffer_pool import BufferPool
from rollfleet.wire.fragment_message import unpack_fragment
from rollfleet_api.job import CollectorJob, Mode
from rollfleet_api.messages import Lease, MessageInvalid, unpack
from rollfleet_api.subjects import BEGAN

log = logging.getLogger(__name__)

ACKNOWLEDGE_TIMEOUT_S = 2.0
ACKNOWLEDGE_FOR_S = 60.0  # after that it has come again, and is dropped as repeated
KEEP_EVERY_S = 10.0  # well within the consumer's ack wait
READY_ASYNC = 2  # decoded batches that may wait for the learner; in sync mode all of a round may
IDLE_PIECES, IDLE_PIECE_BYTES = 4, 64 << 20  # memory that is kept for the next: fresh pages cost more than a copy


class BatchReceiver:
    """Chunks in, arrivals out.

    Args:
        link: The learner's connection.
        job: What it is an intake for.
        device: Where batches are put; None: where they were received.
        no_cuda_sync: Do not wait until they are there.
        on_room: Called on the link's thread when a batch was received.
    """

    def __init__(
        self,
        link: Link,
        *,
        job: CollectorJob,
        device: torch.device | None,
        no_cuda_sync: bool,
        on_room: Callable[[], None],
    ) -> None:
        self._link, self._device, self._no_cuda_sync, self._on_room = link, device, no_cuda_sync, on_room
        received, self._rebuilt = (BufferPool(IDLE_PIECES, most_bytes=IDLE_PIECE_BYTES) for _ in range(2))
        self._assembler = Assembler(max_message_bytes=job.spec.delivery.limit_bytes, allocate=received.take)
        self._most_steps = 0  # T of a share: the others of its round are padded to it; 0: whatever comes
        self.follow(job)
        # Every chunk of what is not taken yet: where in the stream it is, and how its newest delivery is answered.
        self._acknowledge_at: dict[Identity, dict[int, tuple[int, str]]] = {}
        self._complete: set[Identity] = set()
        self._taken: dict[Identity, None] = {}  # the last ones, in their order
        self._incarnations: dict[int, int] = {}  # worker -> the newest life that has begun
        self._waiting = 0  # complete, and not yet received
        self._counting = threading.Lock()
        self._encoded: queue.SimpleQueue[Assembled | None] = queue.SimpleQueue()
        self._ready: deque[Arrival] = deque()
        self._changed = threading.Condition()
        self._fault: BaseException | None = None
        self._thread = threading.Thread(target=self._decode, name="rollfleet-decode", daemon=True)
        self._thread.start()
        self.corrupt = 0

    def receive(self, timeout_s: float) -> Arrival | None:
        """The next arrival; None: none came in time. Raises what went wrong in the background."""
        with self._changed:
            self._changed.wait_for(lambda: self._ready or self._fault, timeout_s)
            arrival = self._ready.popleft() if self._ready else None
        if arrival is None:
            self.check()
        else:
            self._one_less_waits()
        return arrival

    def fail(self, error: BaseException) -> None:
        """Raise this at the learner's next call."""
        with self._changed:
            self._fault = self._fault or error
            self._changed.notify_all()

    def check(self) -> None:
        """Raise what went wrong in the background, if anything did."""
        if self._fault:
            raise self._fault

    def take(self, identity: Identity) -> None:
        """This batch left: acknowledge it, and let its worker go on."""
        self._link.begin(self._let_go(identity))

    def _one_less_waits(self) -> None:
        with self._counting:
            self._waiting -= 1
        self._link.soon(self._on_room)

    def close(self) -> None:
        """End the decoder's thread."""
        self._encoded.put(None)
        self._thread.join(5)

    # --- on the link's thread ---

    def follow(self, job: CollectorJob) -> None:
        """Have room for as many workers as the job has now."""
        workers = job.spec.workers
        if job.spec.mode is Mode.SYNC and not job.spec.collect.trajs_per_batch:
            self._most_steps = max(self._most_steps, job.spec.steps_among(1))
        self._assembler.max_pending = 2 * workers + 2
        self._most_waiting = 2 * workers if job.spec.mode is Mode.SYNC else READY_ASYNC
        # Of what was taken, no more can come once more than was in the queue at a time.
        self._remembered = 2 * workers * (job.spec.delivery.max_batches_ahead + 1)

    def forget_deliveries(self) -> None:
        """NATS has lost its stream: nothing is to be acknowledged, and in a new one other messages have the places."""
        for held in self._acknowledge_at.values():
            held.clear()

    def full(self) -> bool:
        """Whether enough waits to be received."""
        return self._waiting >= self._most_waiting

    def add(self, message: Msg) -> None:
        """Take one message of the work queue."""
        try:
            if message.subject.endswith(BEGAN):
                self._begin_incarnation(message)
                return
            assembled = self._add_chunk(message)
        except (WireError, MessageInvalid) as error:
            self._count_corrupt(error)
            self._link.begin(self._link.tell(message.reply, b"+TERM"))
            assembled = None
        for identity in self._assembler.take_given_up():
            self._link.begin(self._let_go(identity))
        if assembled:
            self._complete.add(assembled.identity)
            with self._counting:
                self._waiting += 1
            self._encoded.put(assembled)

    def _add_chunk(self, message: Msg) -> Assembled | None:
        header = peek(message.data)
        identity, assembled = header.identity, None
        late = identity.incarnation < self._incarnations.get(identity.worker, 0)
        held = self._acknowledge_at.get(identity, {})
        if identity in self._complete and (header.index in held or not held):
            pass  # it came again, since it was not acknowledged in time
        elif late or identity in self._complete or (identity in self._taken and header.count > 1):
            # A piece that was sent again, and of which the others may never come; or of a worker that was replaced.
            self._link.begin(self._acknowledge([message.reply]))
            return None
        else:
            assembled = self._assembler.add(message.data)
        self._hold(identity, header.index, message)
        return assembled

    def _hold(self, identity: Identity, index: int, message: Msg) -> None:
        """A chunk is acknowledged with its batch. Where it was stored twice, the older message may go at once."""
        held = self._acknowledge_at.setdefault(identity, {})
        stored, before = message.metadata.sequence.stream, held.get(index)
        held[index] = (stored, message.reply)
        if before and before[0] != stored:
            self._link.begin(self._acknowledge([before[1]]))

    def _begin_incarnation(self, message: Msg) -> None:
        """What earlier lives of a worker left half sent will never be whole, and would block its subjects.

        The queue keeps its order: whatever of it is whole has come before.
        """
        name, incarnation = message.subject.split(".")[-2], unpack(Lease, message.data).incarnation
        if len(name) > 5 or not name.isdecimal() or int(name) >= MAX_WORKERS:
            raise MessageCorrupt(f"sent by worker {name[:20]!r}: a job has at most {MAX_WORKERS:,} workers")
        worker = int(name)
        self._incarnations[worker] = max(incarnation, self._incarnations.get(worker, 0))
        self._assembler.give_up(worker, before_incarnation=incarnation)
        self._link.begin(self._end_incarnations(self._assembler.take_given_up(), message.reply))

    async def _end_incarnations(self, given_up: list[Identity], reply: str) -> None:
        for identity in given_up:
            await self._let_go(identity)
        await self._acknowledge([reply])  # last: who takes over in between begins with it again

    async def keep(self) -> None:
        """Tell NATS now and then that what waits here is being worked on, so that it does not come again."""
        while True:
            await asyncio.sleep(KEEP_EVERY_S)
            for reply in [reply for held in self._acknowledge_at.values() for _, reply in held.values()]:
                await self._link.tell(reply, b"+WPI")

    async def _let_go(self, identity: Identity) -> None:
        until = time.monotonic() + ACKNOWLEDGE_FOR_S
        while held := self._acknowledge_at.pop(identity, {}):
            if not await self._acknowledge([reply for _, reply in held.values()]) and time.monotonic() < until:
                self._acknowledge_at.setdefault(identity, held)  # unless it has come again: then that is what counts
        self._complete.discard(identity)
        self._taken[identity] = None
        if len(self._taken) > self._remembered:
            del self._taken[next(iter(self._taken))]
        await self._link.tell(self._link.subjects.taken(identity.worker), b"")

    async def _acknowledge(self, replies: list[str]) -> bool:
        """Whether NATS said that it knows: there is room in the queue from then on, which the worker is told next."""
        for reply in replies[:-1]:
            await self._link.tell(reply, b"+ACK")
        try:
            await self._link.client.request(replies[-1], b"+ACK", timeout=ACKNOWLEDGE_TIMEOUT_S)
        except (NatsError, TimeoutError, OSError) as error:
            log.debug("acknowledging: %r", error)
            await asyncio.sleep(RETRY_WAIT_S)
            return False
        return True

    # --- on the decoder's thread ---

    def _decode(self) -> None:
        while (assembled := self._encoded.get()) is not None:
            try:
                arrival = self._arrival(assembled)
            except WireError as error:
                self._count_corrupt(error)
                self._one_less_waits()
                self.take(assembled.identity)
            except BaseException as error:  # raised at the learner's next call
                self.fail(error)
                return
            else:
                with self._changed:
                    self._ready.append(arrival)
                    self._changed.notify_all()

    def _arrival(self, assembled: Assembled) -> Arrival:
        meta, fragment = unpack_fragment(assembled.buffer)
        batch: Any = to_batch(fragment, empty_like=self._rebuilt.empty_like)
        if batch.shape[1] > self._most_steps > 0:
            raise MessageCorrupt(f"a share of {batch.shape[1]:,} steps, where the job has {self._most_steps:,} at most")
        if self._device is not None:
            batch = batch.to(self._device, non_blocking=self._no_cuda_sync)
        identity = assembled.identity
        return Arrival(
            worker=identity.worker,
            incarnation=identity.incarnation,
            sequence=identity.sequence,
            meta=meta,
            batch=batch,
            episode_returns=fragment.episode_returns,
            episode_lengths=fragment.episode_lengths,
            nbytes=assembled.buffer.nbytes,
        )

    def _count_corrupt(self, error: Exception) -> None:
        self.corrupt += 1
        log.warning("a batch could not be read and is dropped: %s", error)
