"""Receives the learner's batches: chunks from the work queue, reassembled, and decoded on a separate thread."""

import asyncio
import logging
import queue
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable
from typing import Any

import torch
from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from rollfleet.data.batch import TRAJECTORY, to_batch
from rollfleet.errors import MessageCorrupt, WireError
from rollfleet.nats.link import Link
from rollfleet.nats.polling import RETRY_WAIT_S
from rollfleet.transports.learner_side import Arrival
from rollfleet.wire.buffer_pool import BufferPool
from rollfleet.wire.chunks import Assembled, Assembler, Identity, peek
from rollfleet.wire.fragment_message import unpack_fragment
from rollfleet_api.job import MAX_WORKERS, CollectorJob, Mode
from rollfleet_api.messages import Lease, MessageInvalid, unpack
from rollfleet_api.subjects import BEGAN

log = logging.getLogger(__name__)

ACKNOWLEDGE_TIMEOUT_S = 2.0
ACKNOWLEDGE_FOR_S = 60.0  # after that the batch was delivered again, and is dropped as repeated
KEEP_EVERY_S = 10.0  # well within the consumer's ack wait
READY_ASYNC = 2  # decoded batches that may wait for the learner; in sync mode all of a round may
IDLE_BUFFERS, IDLE_BUFFER_BYTES = 4, 64 << 20  # memory to reuse: fresh pages cost more than a copy


class BatchReceiver:
    """Chunks in, arrivals out.

    Args:
        link: The learner's connection.
        device: The device of batches; None: the CPU memory in which they were received.
        no_cuda_sync: Do not wait for the copy to the device.
        on_received: Called on the link's thread after the learner received a batch.

    Attributes:
        corrupt: Number of messages dropped: batches that could not be read, or that a replaced worker sent after its
            successor had begun. By worker; -1: in no round.
    """

    def __init__(
        self,
        link: Link,
        *,
        job: CollectorJob,
        device: torch.device | None,
        no_cuda_sync: bool,
        on_received: Callable[[], None],
    ) -> None:
        self._link, self._device, self._no_cuda_sync, self._on_received = link, device, no_cuda_sync, on_received
        received, self._rebuilt = (BufferPool(IDLE_BUFFERS, most_bytes=IDLE_BUFFER_BYTES) for _ in range(2))
        self._assembler = Assembler(max_message_bytes=job.spec.delivery.limit_bytes, allocate=received.take)
        self._most = (0, 0)  # envs and T of a fragment; its round is padded to the largest T. 0: no bound
        self.follow(job)
        # Each chunk of each batch that is not taken: its sequence in the stream, and its newest reply subject.
        # None: it is delivered again, or lost.
        self._acknowledge_at: dict[Identity, dict[int, tuple[int, str] | None]] = {}
        self._epoch = 0  # counts the consumers: deliveries by an earlier one acknowledge nothing
        self._complete: set[Identity] = set()
        self._taken: defaultdict[int, dict[Identity, None]] = defaultdict(dict)  # the most recent of each worker
        self._begun: dict[int, Lease] = {}  # worker -> the lease of the newest incarnation that has begun
        self._waiting = 0  # complete batches that were not received yet
        self._encoded: queue.SimpleQueue[Assembled | None] = queue.SimpleQueue()
        self._ready: deque[Arrival] = deque()
        self._changed = threading.Condition()
        self._fault: BaseException | None = None
        self._thread = threading.Thread(target=self._decode, name="rollfleet-decode", daemon=True)
        self._thread.start()
        self.corrupt: Counter[int] = Counter()

    def receive(self, timeout_s: float) -> Arrival | None:
        """Return the next arrival; None: none came in time. Raises an error that happened in the background."""
        with self._changed:
            self._changed.wait_for(lambda: self._ready or self._fault, timeout_s)
            arrival = self._ready.popleft() if self._ready else None
        if arrival is None:
            self.check()
        else:
            self._count_received()
        return arrival

    def fail(self, error: BaseException) -> None:
        """Raise this at the learner's next call."""
        with self._changed:
            self._fault = self._fault or error
            self._changed.notify_all()

    def check(self) -> None:
        """Raise an error that happened in the background."""
        if self._fault:
            raise self._fault

    def take(self, identity: Identity) -> None:
        """Acknowledge a batch, so that its worker may continue."""
        self._link.begin(self._acknowledge_batch(identity))

    def _count_received(self) -> None:
        with self._changed:
            self._waiting -= 1
        self._link.soon(self._on_received)

    def close(self) -> None:
        """End the decoding thread."""
        self._encoded.put(None)
        self._thread.join(5)

    # --- on the link's thread ---

    def follow(self, job: CollectorJob) -> None:
        """Adapt the bounds to the job."""
        workers = job.spec.workers
        if job.spec.mode is Mode.SYNC and not job.spec.collect.trajs_per_batch:
            envs, steps = self._most
            self._most = max(envs, job.spec.env.num_envs), max(steps, job.spec.steps_among(1))
        else:
            self._most = (0, 0)
        self._assembler.max_pending = 2 * workers + 2
        self._assembler.max_message_bytes = job.spec.delivery.limit_bytes
        self._most_waiting = 2 * workers if job.spec.mode is Mode.SYNC else READY_ASYNC
        # A taken batch can be delivered again only while it may be in the queue; its worker sends no more than that.
        self._remembered = 2 * (job.spec.delivery.max_batches_ahead + 1)

    def begin_epoch(self) -> None:
        """Forget what to acknowledge: a new consumer delivers all of it again.

        NATS may have lost its storage, or be back with an older one: there, other messages have these sequences.
        """
        self._epoch += 1
        for held in self._acknowledge_at.values():
            held.update(dict.fromkeys(held))

    def full(self) -> bool:
        """Return whether enough batches wait for the learner."""
        return self._waiting >= self._most_waiting

    def add(self, message: Msg) -> None:
        """Add one message of the work queue."""
        try:
            if message.subject.endswith(BEGAN):
                self._begin_incarnation(message)
                return
            assembled = self._add_chunk(message)
        except (WireError, MessageInvalid) as error:
            name = message.subject.split(".")[-2][:5]
            self._count_corrupt(error, int(name) if name.isdecimal() else -1)
            self._link.begin(self._link.publish(message.reply, b"+TERM"))
            assembled = None
        for identity in self._assembler.take_given_up():
            self._link.begin(self._acknowledge_batch(identity))
        if assembled:
            self._complete.add(assembled.identity)
            with self._changed:
                self._waiting += 1
            self._encoded.put(assembled)

    def _add_chunk(self, message: Msg) -> Assembled | None:
        header = peek(message.data)
        identity, assembled = Identity.of(header), None
        begun = self._begun.get(identity.worker)
        late = begun is not None and begun.incarnation > identity.incarnation
        held, taken = self._acknowledge_at.get(identity, {}), self._taken.get(identity.worker, {})
        if identity in self._complete and (header.index in held or not held):
            pass  # delivered again, because it was not acknowledged in time
        elif late or identity in self._complete or (identity in taken and header.count > 1):
            # Sent again, and the batch's other chunks may never come; or sent by a worker that was replaced.
            if late and header.index == 0 and identity not in self._complete and identity not in taken:
                self._count_corrupt(f"incarnation {identity.incarnation} of worker {identity.worker} was replaced")
            self._link.begin(self._acknowledge([message.reply]))
            return None
        else:
            assembled = self._assembler.add(message.data)
        self._hold(identity, header.index, message)
        return assembled

    def _hold(self, identity: Identity, index: int, message: Msg) -> None:
        """Keep a chunk's reply subject until its batch is taken. Of a chunk stored twice, acknowledge the older now."""
        stored = message.metadata.sequence.stream
        held = self._acknowledge_at.setdefault(identity, {})
        before, held[index] = held.get(index), (stored, message.reply)
        if before and before[0] != stored:
            self._link.begin(self._acknowledge([before[1]]))

    def _begin_incarnation(self, message: Msg) -> None:
        """Give up incomplete batches of a worker's other incarnations: they would block its subjects.

        The queue keeps its order: their complete batches have come before.
        """
        name, lease = message.subject.split(".")[-2], unpack(Lease, message.data)
        if len(name) > 5 or not name.isdecimal() or int(name) >= MAX_WORKERS:
            raise MessageCorrupt(f"sent by worker {name[:20]!r}: a job has at most {MAX_WORKERS:,} workers")
        worker = int(name)
        before = self._begun.get(worker)
        if before is None or lease.incarnation >= before.incarnation:
            self._begun[worker] = lease
            self._assembler.give_up(worker, but_incarnation=lease.incarnation)
        self._link.begin(self._acknowledge_given_up(self._assembler.take_given_up(), message.reply))

    async def _acknowledge_given_up(self, given_up: Iterable[Identity], beginning: str) -> None:
        for identity in given_up:
            await self._acknowledge_batch(identity)
        await self._acknowledge([beginning])  # last: a learner that takes over in between must begin with it

    async def keep(self) -> None:
        """Report to NATS periodically that waiting messages are in progress: it does not deliver them again."""
        while True:
            await asyncio.sleep(KEEP_EVERY_S)
            for _, reply in [each for held in self._acknowledge_at.values() for each in held.values() if each]:
                await self._link.publish(reply, b"+WPI")

    async def _acknowledge_batch(self, identity: Identity) -> None:
        until = time.monotonic() + ACKNOWLEDGE_FOR_S
        self._complete.discard(identity)
        taken = self._taken[identity.worker]
        taken[identity] = None
        if len(taken) > self._remembered:
            del taken[next(iter(taken))]
        while held := self._acknowledge_at.pop(identity, {}):
            epoch, replies = self._epoch, [each[1] for _, each in sorted(held.items()) if each]
            if replies and not await self._acknowledge(replies) and epoch == self._epoch and time.monotonic() < until:
                self._acknowledge_at.setdefault(identity, held)  # the newer delivery, if it was delivered again
        await self._link.publish(self._link.subjects.taken(identity.worker), b"")

    async def _acknowledge(self, replies: list[str]) -> bool:
        """Acknowledge messages. Returns True once NATS has confirmed it: from then on the queue has space.

        The first one is confirmed before the others leave. If this learner ends in between, its worker's next batch
        finds space for its own first chunk, and so the next learner gives up the chunks that stayed.
        """
        first, *others = replies
        try:
            await self._link.client.request(first, b"+ACK", timeout=ACKNOWLEDGE_TIMEOUT_S)
            for reply in others[:-1]:
                await self._link.publish(reply, b"+ACK")
            if others:
                await self._link.client.request(others[-1], b"+ACK", timeout=ACKNOWLEDGE_TIMEOUT_S)
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
                self._count_corrupt(error, assembled.identity.worker)
                self._count_received()
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
        shape = fragment.steps[TRAJECTORY].shape if TRAJECTORY in fragment.steps else ()
        if any(own > most > 0 for own, most in zip(shape, self._most, strict=False)):
            raise MessageCorrupt(f"a fragment of shape {list(shape)}; the job's have {list(self._most)} at most")
        batch: Any = to_batch(fragment, empty_like=self._rebuilt.empty_like)
        if self._device is not None:
            batch = batch.to(self._device, non_blocking=self._no_cuda_sync)
        identity = assembled.identity
        return Arrival(
            worker=identity.worker,
            incarnation=identity.incarnation,
            sequence=identity.sequence,
            meta=meta,
            episode_returns=fragment.episode_returns,
            episode_lengths=fragment.episode_lengths,
            batch=batch,
            nbytes=assembled.buffer.nbytes,
            process=identity.process,
        )

    def _count_corrupt(self, error: Exception | str, worker: int = -1) -> None:
        self.corrupt[worker] += 1
        log.warning("dropped a message of a worker: %s", error)
