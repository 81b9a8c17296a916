"""Receives the learner's batches: chunks, made whole by the intake, and decoded on a separate thread."""

import logging
import queue
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from nats.aio.msg import Msg

from rollfleet.data.batch import to_batch
from rollfleet.errors import MessageCorrupt, WireError, copied
from rollfleet.nats.intake import Intake
from rollfleet.nats.link import Link
from rollfleet.transports.learner_side import Arrival
from rollfleet.wire.buffer_pool import BufferPool
from rollfleet.wire.chunks import Assembled, Identity
from rollfleet.wire.fragment_message import unpack_fragment
from rollfleet_api.job import MAX_WORKERS, CollectorJob, Mode
from rollfleet_api.messages import MessageInvalid, pack, unpack
from rollfleet_api.ranks import Rank
from rollfleet_api.subjects import OFFER
from rollfleet_api.transfers import Offer, Receipt

log = logging.getLogger(__name__)

READY_BYTES = 64 << 20  # of complete batches that wait for the learner's loop: then no other is asked for
DECODED_BYTES = 64 << 20  # of those among them that are decoded, which may be a hundred times larger than as they came
IDLE_BUFFERS, IDLE_BUFFER_BYTES = 4, 64 << 20  # memory to reuse: fresh pages cost more than a copy


class BatchReceiver:
    """Chunks in, arrivals out.

    Args:
        link: The learner's connection.
        rank: The rank whose workers' batches it receives.
        device: The device of batches; None: the CPU memory in which they were received.
        no_cuda_sync: Do not wait for the copy to the device.
        session: Returns the session of the learner. Workers ignore receipts of an earlier one.

    Attributes:
        corrupt: Number of messages that could not be read. By worker; -1: of no worker.
    """

    def __init__(
        self,
        link: Link,
        *,
        rank: Rank,
        device: torch.device | None,
        no_cuda_sync: bool,
        session: Callable[[], int],
    ) -> None:
        self._link, self._rank, self._device, self._no_cuda_sync = link, rank, device, no_cuda_sync
        self._session = session
        received, self._rebuilt = (BufferPool(IDLE_BUFFERS, most_bytes=IDLE_BUFFER_BYTES) for _ in range(2))
        self._intake = Intake(
            allocate=received.take,
            full=lambda: self._waiting_bytes >= READY_BYTES,
            last_number=time.time_ns() // 1000,
        )
        self._most = (0, 0)  # envs and T of a fragment; its round is padded to the largest T. 0: no bound
        self._subscribed = 0  # number of subscriptions: one, or of several ranks one for each worker
        self._waiting_bytes = 0  # of complete batches that were not received yet
        self._encoded: queue.SimpleQueue[Assembled[Identity] | None] = queue.SimpleQueue()
        self._ready: deque[tuple[Arrival, int]] = deque()  # with the bytes of each, decoded
        self._ready_bytes = 0
        self._changed = threading.Condition()
        self._closed = False
        self._fault: BaseException | None = None
        self._thread = threading.Thread(target=self._decode, name="rollfleet-decode", daemon=True)
        self._thread.start()
        self.corrupt: Counter[int] = Counter()

    def receive(self, timeout_s: float) -> Arrival | None:
        """Return the next arrival; None: none came in time. Raises an error that happened in the background."""
        with self._changed:
            self._changed.wait_for(lambda: self._ready or self._fault, timeout_s)
            if self._ready and not self._fault:  # a learner that was replaced leaves what came to its successor
                arrival, nbytes = self._ready.popleft()
                self._ready_bytes -= nbytes
                self._changed.notify_all()  # the decoder may wait
            else:
                arrival = None
        if arrival is None:
            self.check()
        else:
            self._count_received(arrival.nbytes)
        return arrival

    def fail(self, error: BaseException) -> None:
        """Raise this at the learner's next call."""
        with self._changed:
            self._fault = self._fault or error
            self._changed.notify_all()

    def check(self) -> None:
        """Raise an error that happened in the background."""
        if self._fault:
            raise copied(self._fault)

    def take(self, identity: Identity) -> None:
        """Tell a batch's worker that the learner has taken it, so that it may continue."""
        self._link.begin(self._take(identity))

    def _count_received(self, nbytes: int) -> None:
        with self._changed:
            before, self._waiting_bytes = self._waiting_bytes, self._waiting_bytes - nbytes
        if before >= READY_BYTES > before - nbytes:
            self._link.begin(self._ask())

    def close(self) -> None:
        """End the decoding thread."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._encoded.put(None)
        self._thread.join(5)

    # --- on the link's thread ---

    async def follow(self, job: CollectorJob) -> None:
        """Adapt the bounds to the job, and receive batches of its workers."""
        if job.spec.mode is Mode.SYNC and not job.spec.collect.trajs_per_batch:
            envs, steps = self._most
            self._most = max(envs, job.spec.env.num_envs), max(steps, job.spec.steps_among(1))
        else:
            self._most = (0, 0)
        self._intake.workers = max(self._intake.workers, job.spec.workers)  # one that leaves still has batches
        self._intake.most = max(self._intake.most, 2 * (job.spec.delivery.max_batches_ahead + 1))
        alone = self._rank.ranks == 1
        workers = ["*"] if alone else [each for each in range(job.spec.workers) if self._rank.has(each)]
        for worker in workers[self._subscribed :]:
            self._subscribed += 1
            await self._link.client.subscribe(
                self._link.subjects.batches_of(worker),
                cb=self._on_message,
                pending_bytes_limit=0,
                pending_msgs_limit=0,
            )

    async def reconnect(self) -> None:
        """Note a cut of the connection."""
        self._intake.reconnect()

    async def _on_message(self, message: Msg) -> None:
        if self._fault:  # a learner that was replaced takes nothing more
            return
        worker = _worker(message.subject)
        try:
            if message.subject.endswith(OFFER):
                if worker < 0:
                    raise MessageCorrupt(f"an offer of no worker: a job has at most {MAX_WORKERS:,}")
                await self._answer(worker, self._intake.offered(worker, unpack(Offer, message.data)))
            else:
                self._intake.add(message.data)
        except (WireError, MessageInvalid) as error:
            self._count_corrupt(error, worker)
        while self._intake.complete:
            assembled = self._intake.complete.popleft()
            with self._changed:
                self._waiting_bytes += assembled.buffer.nbytes
            self._encoded.put(assembled)
        await self._ask()

    async def _take(self, identity: Identity) -> None:
        if not self._fault:
            await self._answer(identity.worker, self._intake.take(identity))

    async def _ask(self) -> None:
        for worker, receipt in self._intake.ask().items():
            await self._answer(worker, receipt)

    async def _answer(self, worker: int, receipt: Receipt | None) -> None:
        if receipt:
            signed = replace(receipt, session=self._session())
            await self._link.publish(self._link.subjects.taken(worker), pack(signed))

    # --- on the decoder's thread ---

    def _decode(self) -> None:
        while (assembled := self._encoded.get()) is not None:
            with self._changed:
                self._changed.wait_for(lambda: self._ready_bytes < DECODED_BYTES or self._closed)
                if self._closed:
                    return  # no one takes what waits, and decoded it may be a hundred times larger
            try:
                arrival, nbytes = self._arrival(assembled)
            except WireError as error:
                self._count_corrupt(error, assembled.key.worker)
                self._count_received(assembled.buffer.nbytes)
                self.take(assembled.key)
            except BaseException as error:  # raised at the learner's next call
                self.fail(error)
                return
            else:
                with self._changed:
                    self._ready.append((arrival, nbytes))
                    self._ready_bytes += nbytes
                    self._changed.notify_all()

    def _arrival(self, assembled: Assembled[Identity]) -> tuple[Arrival, int]:
        meta, fragment = unpack_fragment(assembled.buffer, allocate=self._rebuilt.take, most=self._most)
        batch: Any = to_batch(fragment, empty=self._rebuilt.empty)
        if self._device is not None:
            batch = batch.to(self._device, non_blocking=self._no_cuda_sync)
        identity = assembled.key
        arrival = Arrival(
            worker=identity.worker,
            incarnation=identity.incarnation,
            sequence=identity.sequence,
            meta=meta,
            episodes=fragment.episodes,
            batch=batch,
            nbytes=assembled.buffer.nbytes,
            process=identity.process,
        )
        return arrival, 2 * sum(value.nbytes for value in fragment.steps.values())  # with the next observations

    def _count_corrupt(self, error: Exception, worker: int) -> None:
        self.corrupt[worker] += 1
        if (count := self.corrupt[worker]).bit_count() == 1:  # the first, the second, the fourth, ...
            log.warning("dropped a message of worker %d (%d so far): %s", worker, count, error)


def _worker(subject: str) -> int:
    """Return the worker that a subject names; -1: a job has no such worker."""
    name = subject.split(".")[-2]
    return int(name) if len(name) <= 5 and name.isdecimal() and int(name) < MAX_WORKERS else -1
