"""Decides what a learner asks of its workers: batches come whole and in order, no more than a window on their way.

It does no I/O. A worker sends small batches unasked, and offers larger ones. Of these the intake asks for chunks, in
the order of the offers, as long as fewer than `WINDOW_BYTES` are on their way. An offer also shows what was lost: its
worker has carried out the request, and chunks are missing. Offers and chunks of a worker keep their order. A batch that
is whole waits for those before it: a cut may have lost them.
"""

import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from rollfleet.errors import MessageCorrupt, MessageTooLarge
from rollfleet.nats.outbox import UNASKED_BYTES
from rollfleet.wire.chunks import (
    CHUNK_BYTES,
    Assembled,
    Identity,
    Reassembly,
    Received,
    peek,
    piece_bytes,
    piece_of,
)
from rollfleet.wire.codec import LARGEST_BATCH_BYTES, Allocate
from rollfleet_api.messages import MAX_COUNT
from rollfleet_api.transfers import KeptBatch, Offer, Receipt

WINDOW_BYTES = 16 << 20  # with `UNASKED_BYTES`, less than NATS holds for a learner before it cuts the connection
MOST_UNASKED_BYTES = 2 * UNASKED_BYTES  # that the learner holds: restarted workers send twice
STEP_BYTES = 4 << 20  # asked for at once, unless a batch ends: a request for each chunk would cost more than chunks
ANSWER_S = 10.0  # for a request to reach its worker: only a cut loses one, and all is offered again after it
STALLED_S = 3.0  # without a chunk: the worker, or the way to it, is slow or gone, and others get the window


@dataclass(slots=True, eq=False)
class _Coming:
    """A batch that its worker keeps and the learner has not taken.

    Attributes:
        message: What has come; None: nothing was asked for, or it was passed on.
        complete: Whether all of it has come.
        asked: Number of its first chunks that came, or were asked for.
        due: Number of chunks on their way.
        asked_in: Number of the last receipt that asked for some.
        moved_s: When chunks were asked for or came.
    """

    identity: Identity
    nbytes: int
    chunks: int
    message: Reassembly | None = None
    complete: bool = False
    asked: int = 0
    due: int = 0
    asked_in: int = 0
    asked_s: float = 0.0
    moved_s: float = 0.0

    @property
    def piece_bytes(self) -> int:
        return piece_bytes(self.nbytes, self.chunks)

    def on_their_way(self, now_s: float) -> int:
        """Return the bytes that were asked for and have not come."""
        return 0 if self.is_stalled(now_s) else self.due * self.piece_bytes

    def is_stalled(self, now_s: float) -> bool:
        return self.due > 0 and now_s - self.moved_s > STALLED_S


class _Sender:
    """A process of a worker, and its batches, by number.

    Attributes:
        next: Numbers from this one on have not been passed on; earlier ones that are not coming were taken.
        shown: Below this number, all that it keeps is coming, by its last offer.
        known: Whether it has sent its first batch, or an offer: else it keeps earlier ones.
    """

    def __init__(self, incarnation: int, process: int) -> None:
        self.order, self.process = (incarnation, process), process
        self.coming: dict[int, _Coming] = {}
        self.next = self.shown = 0
        self.known = False

    def has_taken(self, sequence: int) -> bool:
        return sequence < self.next and sequence not in self.coming

    def pass_on(self) -> Iterator[Assembled[Identity]]:
        """Yield what is complete, unless it waits for an earlier batch."""
        for sequence, coming in sorted(self.coming.items()):
            if not coming.complete or sequence > max(self.next, self.shown - 1):
                return
            if coming.message:
                yield Assembled(key=coming.identity, buffer=coming.message.buffer)
                self.next, coming.message = sequence + 1, None


class Intake:
    """Chunks and offers in; complete batches, and receipts for workers, out.

    Args:
        allocate: Returns the memory of one batch.
        full: Whether enough batches wait for the learner's loop: then it asks for none.
        clock: Returns a time in seconds that never goes back.
        last_number: Receipts have greater numbers, also than those of a process before this one.

    Attributes:
        workers: Number of workers. Messages of others are ignored. It may grow, as `most` may.
        most: The most batches of a worker that come or wait.
        complete: The batches that have come and no one has removed yet, those of each worker in order.
    """

    def __init__(
        self,
        *,
        allocate: Allocate,
        full: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
        last_number: int = 0,
    ) -> None:
        self._allocate, self._full, self._clock, self._number = allocate, full, clock, last_number
        self._senders: dict[int, _Sender] = {}
        self._to_ask: dict[Identity, _Coming] = {}  # in the order of their offers
        self._asked: dict[Identity, _Coming] = {}  # and not complete
        self._unasked: dict[Identity, int] = {}  # bytes of batches that came unasked, until they are taken
        self._unasked_bytes = 0
        self.workers, self.most = 1, 4
        self.complete: deque[Assembled[Identity]] = deque()

    def add(self, chunk: Received) -> None:
        """Add a chunk. It is copied, not kept.

        Raises:
            MessageCorrupt: The chunk contradicts itself, or other chunks of its batch.
            MessageTooLarge: The batch is too large to come unasked.
        """
        header = peek(chunk)
        identity = Identity.of(header.key)
        if identity.worker >= self.workers:
            return
        if (sender := self._sender(identity)) is None:
            return
        coming = sender.coming.get(identity.sequence)
        if coming is None:
            sender.known = sender.known or not identity.sequence
            if sender.has_taken(identity.sequence) or len(sender.coming) >= self.most or not sender.known:
                return
            if header.total_bytes > UNASKED_BYTES:
                raise MessageTooLarge(header.total_bytes, UNASKED_BYTES, "an unasked batch")
            if self._unasked_bytes + header.total_bytes > MOST_UNASKED_BYTES:
                return  # its worker offers it
            coming = _Coming(identity, header.total_bytes, header.count, asked=header.count, due=header.count)
            sender.coming[identity.sequence] = coming
            self._unasked[identity] = header.total_bytes
            self._unasked_bytes += header.total_bytes
        if coming.complete or not coming.due:  # an offered batch of which nothing was asked for
            return
        if (coming.nbytes, coming.chunks) != (header.total_bytes, header.count):
            self._forget(sender, coming)
            raise MessageCorrupt(f"chunks of {identity} disagree with each other, or with its offer")
        message = self._message(coming)
        before = message.received
        message.add(header.index, piece_of(chunk))
        coming.due -= message.received - before
        coming.moved_s = self._clock()
        if message.complete:
            coming.complete = True
            self._to_ask.pop(identity, None)
            self._asked.pop(identity, None)
            self.complete += sender.pass_on()

    def offered(self, worker: int, offer: Offer) -> Receipt | None:
        """Follow a worker's offer. Returns the answer, if it needs one at once.

        Raises:
            MessageCorrupt: No worker sends such batches.
            MessageTooLarge: A batch of it is larger than any may be.
        """
        if worker >= self.workers:
            return None
        now_s, taken, held, lost = self._clock(), list[int](), list[int](), False
        of = Identity(worker=worker, incarnation=offer.incarnation, sequence=0, process=offer.process)
        if (sender := self._sender(of)) is None:
            return None
        offered, sender.known = {batch.sequence: batch for batch in offer.batches}, True
        for coming in [*sender.coming.values()]:
            if not coming.complete and coming.identity.sequence not in offered:
                self._forget(sender, coming)  # its worker has dropped it
        for sequence, batch in offered.items():
            known = sender.coming.get(sequence)
            if known and not known.complete and (known.nbytes, known.chunks) != (batch.nbytes, batch.chunks):
                self._forget(sender, known)  # its worker has cut it again, for another server
                known = None
            if sender.has_taken(sequence):
                taken.append(sequence)
            elif known and known.complete:
                held.append(sequence)
            elif known:
                late = now_s - known.asked_s >= ANSWER_S
                if batch.idle and (offer.answers >= known.asked_in or late):  # what is missing was lost
                    lost = lost or known.due > 0
                    known.asked = known.due = 0
                    self._to_ask[known.identity] = known
            elif len(sender.coming) < self.most:
                _check(batch)
                identity = Identity(
                    worker=worker, incarnation=offer.incarnation, sequence=sequence, process=offer.process
                )
                known = sender.coming[sequence] = _Coming(identity, batch.nbytes, batch.chunks)
                self._to_ask[identity] = known
            else:
                break
            sender.shown = sequence + 1
        self.complete += sender.pass_on()
        if lost:  # other workers first
            for coming in sender.coming.values():
                if self._to_ask.pop(coming.identity, None):
                    self._to_ask[coming.identity] = coming
        return Receipt(process=offer.process, taken=tuple(taken), held=tuple(held)) if taken or held else None

    def ask(self) -> dict[int, Receipt]:
        """Return what to ask of which worker now."""
        if not self._to_ask or self._full():
            return {}
        now_s, number = self._clock(), self._number + 1
        under_way = Counter[int]()  # bytes by worker
        for identity, coming in self._asked.items():
            under_way[identity.worker] += coming.on_their_way(now_s)
        room = WINDOW_BYTES - under_way.total()
        alone = len({identity.worker for identity in self._to_ask}) == 1
        share = WINDOW_BYTES if alone else STEP_BYTES  # a slow link may not take the window from others
        wanted: defaultdict[int, list[tuple[int, int, int]]] = defaultdict(list)
        for identity, coming in [*self._to_ask.items()]:
            worker, size = identity.worker, coming.piece_bytes
            while left := coming.chunks - coming.asked:
                free = min(room, max(share - under_way[worker], 0))
                if free < min(STEP_BYTES, left * size) or coming.is_stalled(now_s):
                    break
                start, end = self._message(coming).missing_from(coming.asked)
                end = min(end, start + free // size)
                if start < end:
                    wanted[worker].append((identity.sequence, start, end))
                coming.asked, coming.due = end, coming.due + end - start
                coming.asked_in, coming.asked_s, coming.moved_s = number, now_s, now_s
                room -= (end - start) * size
                under_way[worker] += (end - start) * size
                self._asked[identity] = coming
            if not left:
                del self._to_ask[identity]
        self._number = number if wanted else self._number
        return {
            worker: Receipt(process=self._senders[worker].process, number=number, send=tuple(send))
            for worker, send in wanted.items()
        }

    def reconnect(self) -> None:
        """Note a cut of the connection: requests from before it, and chunks, do not come any more."""
        for coming in self._asked.values():
            coming.asked_in = 0

    def take(self, identity: Identity) -> Receipt | None:
        """Note that the learner needs a batch no more. Returns the answer; None: its worker was replaced."""
        self._release(identity)
        sender = self._senders.get(identity.worker)
        if sender is None or sender.order != (identity.incarnation, identity.process):
            return None
        if coming := sender.coming.get(identity.sequence):
            self._forget(sender, coming)
        return Receipt(process=identity.process, taken=(identity.sequence,))

    def _sender(self, identity: Identity) -> _Sender | None:
        """Return the process that a worker is now; None: a later one has taken its place.

        What its predecessor had not sent whole never comes, and what waited for that is passed on.
        """
        sender, order = self._senders.get(identity.worker), (identity.incarnation, identity.process)
        if sender and sender.order > order:
            return None
        if sender is None or sender.order < order:
            if sender:
                for coming in [*sender.coming.values()]:
                    if not coming.complete:
                        self._forget(sender, coming)
                sender.shown = MAX_COUNT
                self.complete += sender.pass_on()
            sender = self._senders[identity.worker] = _Sender(*order)
        return sender

    def _message(self, coming: _Coming) -> Reassembly:
        if coming.message is None:
            coming.message = Reassembly(self._allocate(coming.nbytes), coming.chunks)
        return coming.message

    def _forget(self, sender: _Sender, coming: _Coming) -> None:
        del sender.coming[coming.identity.sequence]
        self._to_ask.pop(coming.identity, None)
        self._asked.pop(coming.identity, None)
        if not coming.complete:
            self._release(coming.identity)

    def _release(self, identity: Identity) -> None:
        self._unasked_bytes -= self._unasked.pop(identity, 0)


def _check(batch: KeptBatch) -> None:
    """Check that a batch could come. Raises what `offered` does."""
    if batch.nbytes > LARGEST_BATCH_BYTES:
        raise MessageTooLarge(batch.nbytes, LARGEST_BATCH_BYTES, "an offered batch")
    size = piece_bytes(batch.nbytes, batch.chunks)
    if size > CHUNK_BYTES or (batch.chunks - 1) * size >= batch.nbytes:
        raise MessageCorrupt(f"offered {batch.nbytes} bytes in {batch.chunks} chunks")
