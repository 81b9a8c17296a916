"""What a learner asks of its workers: every batch comes once, whatever is lost, and no worker fills its memory."""

import asyncio
import random
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.api.job_data import job_data
from tests.sdk.nats.numbered_batches import META, fragment, of
from tests.sdk.wire.joined_chunks import split

from rollfleet.errors import MessageCorrupt, MessageTooLarge
from rollfleet.nats import intake, outbox
from rollfleet.nats.intake import ANSWER_S, MOST_UNASKED_BYTES, STALLED_S, WINDOW_BYTES, Intake
from rollfleet.nats.outbox import UNASKED_BYTES, Outbox
from rollfleet.transports.worker_side import PendingBatch
from rollfleet.wire.chunks import CHUNK_BYTES, PREFIX_BYTES, Assembled, Identity
from rollfleet.wire.codec import LARGEST_BATCH_BYTES, Encoded
from rollfleet.wire.fragment_message import pack_fragment, unpack_fragment
from rollfleet_api.messages import pack, unpack
from rollfleet_api.subjects import Subjects
from rollfleet_api.transfers import KeptBatch, Offer, Receipt
from rollfleet_api.validation import parse_job

WORKERS = 3
TICK_S, DELAY_S = 0.1, 0.2  # a message is under way for at most `DELAY_S`
SCALE = 1024  # by which windows, chunks and batches are smaller than in a job
SIZES = [100, 2_000, 9_000, 40_000]  # bytes: unasked; a window holds several, one, and less than one


@dataclass
class Wire:
    """A worker's link, whose messages are under way until the test delivers or loses them."""

    under_way: deque[tuple[float, str, bytes]] = field(default_factory=deque)
    now_s: float = 0.0
    client: Any = field(default_factory=lambda: type("Client", (), {"max_payload": (1 << 20) // SCALE + PREFIX_BYTES}))
    subjects: Subjects = field(default_factory=lambda: Subjects.parse("test"))

    async def publish(self, subject: str, data: Any) -> None:
        self.under_way.append((self.now_s, subject, data if isinstance(data, bytes) else b"".join(data.pieces)))


class Fleet:
    """Workers' outboxes and a learner's intake, between which messages are lost by chance."""

    def __init__(self, chance: random.Random, ahead: int) -> None:
        self.chance, self.now_s, self.loss = chance, 0.0, 0.0
        self.waiting: list[Assembled[Identity]] = []
        self.received: list[tuple[int, int, float]] = []
        self.receipts: deque[tuple[float, int, Receipt]] = deque()
        self.intake = Intake(
            allocate=lambda nbytes: np.empty(nbytes, np.uint8), full=lambda: len(self.waiting) >= 2, clock=self.time_s
        )
        self.intake.workers, self.intake.most = WORKERS, 2 * (ahead + 1)
        self.wires = [Wire() for _ in range(WORKERS)]
        self.outboxes = [Outbox(self.wires[each], each, each) for each in range(WORKERS)]  # type: ignore[arg-type]
        job = parse_job(job_data(workers=WORKERS, delivery={"maxBatchesAhead": ahead}))
        for each in self.outboxes:
            each.follow(job)

    def time_s(self) -> float:
        return self.now_s

    def lost(self) -> bool:
        return self.chance.random() < self.loss

    async def tick(self) -> None:
        """Let some messages arrive and the learner's loop take some batches; workers offer once a second."""
        self.now_s += TICK_S
        ticks = round(self.now_s / TICK_S)
        for worker, (wire, sender) in enumerate(zip(self.wires, self.outboxes, strict=True)):
            wire.now_s = self.now_s
            if ticks % 10 == worker:
                await sender.offer()
        self.check_window()
        while self.receipts and self.is_due(self.receipts[0][0]):
            _, worker, receipt = self.receipts.popleft()
            if not self.lost():
                await self.outboxes[worker].answer(unpack(Receipt, pack(receipt)))
        self.check_window()
        for worker, wire in enumerate(self.wires):
            while wire.under_way and self.is_due(wire.under_way[0][0]):
                _, subject, data = wire.under_way.popleft()
                if not self.lost():
                    self.arrive(worker, subject, data)
        while self.waiting and self.chance.random() < 0.5:
            assembled = self.waiting.pop(0)
            identity, (_, whole) = assembled.key, unpack_fragment(assembled.buffer)
            self.received.append((identity.worker, identity.sequence, float(whole.steps["observation",].mean())))
            self.send(identity.worker, self.intake.take(identity))
            self.ask()

    def is_due(self, sent_s: float) -> bool:
        return self.now_s - sent_s >= DELAY_S or self.chance.random() < 0.5

    def arrive(self, worker: int, subject: str, data: bytes) -> None:
        if subject.endswith(".offer"):
            self.send(worker, self.intake.offered(worker, unpack(Offer, data)))
        else:
            self.intake.add(data)
        self.waiting += came(self.intake)
        self.ask()

    def ask(self) -> None:
        for worker, receipt in self.intake.ask().items():
            self.send(worker, receipt)

    def send(self, worker: int, receipt: Receipt | None) -> None:
        if receipt:
            self.receipts.append((self.now_s, worker, receipt))

    def check_window(self) -> None:
        chunks = [data for wire in self.wires for _, subject, data in wire.under_way if subject.endswith(".chunk")]
        assert sum(map(len, chunks)) <= (WINDOW_BYTES + UNASKED_BYTES) // SCALE + len(chunks) * PREFIX_BYTES


async def run(fleet: Fleet, sizes: list[list[int]], loss: float) -> None:
    left, last = [deque(enumerate(each)) for each in sizes], [_done() for _ in range(WORKERS)]
    fleet.loss = loss
    while any(left) or len(fleet.received) < sum(map(len, sizes)):
        for worker, sender in enumerate(fleet.outboxes):
            if left[worker] and last[worker].admitted.done():
                number, size = left[worker].popleft()
                last[worker] = PendingBatch(admitted=Future(), delivered=Future())
                batch = fragment(float(number), envs=1, steps=1, size=size // 8)
                await sender.add(pack_fragment(batch, META), last[worker])
        if not any(left) or fleet.now_s > 20.0:
            fleet.loss = 0.0
        assert fleet.now_s < 200.0, f"received only {fleet.received}"
        await fleet.tick()
    for _ in range(30):  # repetitions that are under way
        await fleet.tick()
    assert all(each.delivered.done() for each in last)


def _done() -> PendingBatch:
    pending = PendingBatch(admitted=Future(), delivered=Future())
    pending.admitted.set_result(None)
    pending.delivered.set_result(None)
    return pending


@given(
    sizes=st.lists(st.lists(st.sampled_from(SIZES), max_size=4), min_size=WORKERS, max_size=WORKERS),
    loss=st.sampled_from([0.0, 0.1, 0.5]),
    ahead=st.sampled_from([1, 2]),
    chance=st.randoms(use_true_random=False),
)
@example(sizes=[[9_000] * 2] * WORKERS, loss=0.1, ahead=1, chance=random.Random(1))
@settings(deadline=None, max_examples=50)
def test_every_batch_comes_once_and_whole_and_in_order_within_the_window_whatever_is_lost(
    sizes: list[list[int]], loss: float, ahead: int, chance: random.Random
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for module, name in ((intake, "WINDOW_BYTES"), (intake, "STEP_BYTES"), (outbox, "UNASKED_BYTES")):
            patch.setattr(module, name, getattr(module, name) // SCALE)
        fleet = Fleet(chance, ahead)
        asyncio.run(run(fleet, sizes, loss))
    assert sorted(fleet.received, key=lambda each: each[0]) == [
        (worker, number, float(number)) for worker, batches in enumerate(sizes) for number in range(len(batches))
    ]


def came(learner: Intake) -> list[Assembled[Identity]]:
    """Return what has come since the last call."""
    found = [*learner.complete]
    learner.complete.clear()
    return found


# Hostile workers.


class Learner(Intake):
    """An intake on a clock that the test sets. `held_bytes` is the memory that it has asked for."""

    def __init__(self, full: Callable[[], bool] = lambda: False) -> None:
        self.now_s, self.held_bytes = 0.0, 0
        super().__init__(allocate=self.counted, full=full, clock=lambda: self.now_s)
        self.workers = WORKERS

    def brings(self, *chunks: bytes) -> list[int]:
        """Return the numbers of the batches that come with these chunks."""
        for chunk in chunks:
            self.add(chunk)
        return [each.key.sequence for each in came(self)]

    def counted(self, nbytes: int) -> Any:
        self.held_bytes += nbytes
        return np.empty(nbytes, np.uint8)


def offer(*batches: tuple[int, int]) -> Offer:
    """Offer batches of these bytes and chunks."""
    kept = tuple(
        KeptBatch(sequence=sequence, nbytes=nbytes, chunks=chunks, idle=True)
        for sequence, (nbytes, chunks) in enumerate(batches)
    )
    return Offer(incarnation=0, process=0, batches=kept)


def cut(nbytes: int, identity: Identity, piece: int) -> list[bytes]:
    message = Encoded(parts=(memoryview(bytes(nbytes)),), nbytes=nbytes)
    return list(split(message, identity, max_chunk_bytes=PREFIX_BYTES + piece))


@pytest.mark.parametrize(
    ("nbytes", "chunks"), [(0, 1), (LARGEST_BATCH_BYTES, 1), (CHUNK_BYTES + 1, 1), (10, 7), (10, 11)]
)
def test_an_impossible_offer_is_refused_and_the_next_workers_batch_is_asked_for(nbytes: int, chunks: int) -> None:
    learner = Learner()
    with pytest.raises(MessageCorrupt, match=f"offered {nbytes} bytes in {chunks} chunks"):
        learner.offered(0, offer((nbytes, chunks)))
    assert learner.offered(1, offer((10, 2))) is None
    assert learner.ask() == {1: Receipt(process=0, number=1, send=((0, 0, 2),))}


def test_an_offer_of_more_than_any_batch_may_have_is_refused() -> None:
    with pytest.raises(MessageTooLarge):
        Learner().offered(0, offer((LARGEST_BATCH_BYTES + 1, 1 << 13)))


@pytest.mark.parametrize("offers", [1, 1000], ids=["once", "every second"])
def test_batches_that_are_offered_and_never_sent_keep_others_waiting_for_seconds_only(offers: int) -> None:
    learner = Learner()
    huge = offer(*[(LARGEST_BATCH_BYTES, 4096)] * learner.most)
    learner.offered(0, huge)
    learner.ask()
    learner.offered(1, offer((10, 2)))
    while 1 not in learner.ask():
        learner.now_s += 1.0
        if learner.now_s < offers:
            learner.offered(0, huge)
        assert learner.now_s < (learner.most + 1) * (STALLED_S + 1.0)


def test_chunks_that_were_not_asked_for_cost_no_memory() -> None:
    learner = Learner(full=lambda: True)
    chunks = cut(4 * (piece := CHUNK_BYTES - PREFIX_BYTES), of(0, 0), piece)
    learner.offered(0, offer((4 * piece, 4)))
    assert learner.brings(*chunks) == []
    assert learner.held_bytes == 0


@pytest.mark.parametrize("whole", [True, False])
def test_a_flood_of_unasked_batches_holds_bounded_memory(whole: bool) -> None:
    learner = Learner()
    for number in range(200):
        identity = Identity(worker=number % WORKERS, incarnation=number, sequence=0, process=number)
        chunks = cut(CHUNK_BYTES, identity, CHUNK_BYTES // 2)
        for chunk in chunks[: 2 if whole else 1]:
            learner.add(chunk)
    found = came(learner)
    assert len(found) == (MOST_UNASKED_BYTES // CHUNK_BYTES if whole else 0)
    if whole:
        assert learner.held_bytes <= MOST_UNASKED_BYTES
        learner.take(found[0].key)  # of a process that was replaced
        assert learner.brings(*chunks) == [0]
    else:
        last = Identity(worker=0, incarnation=200, sequence=0)
        assert learner.brings(*cut(CHUNK_BYTES // 2, last, CHUNK_BYTES)) == [0]  # what a predecessor left was let go


def test_an_unasked_batch_that_is_too_large_is_refused() -> None:
    first, *_ = cut(UNASKED_BYTES + 1, of(0, 0), CHUNK_BYTES)
    with pytest.raises(MessageTooLarge):
        Learner().add(first)


def test_messages_of_workers_outside_the_job_are_ignored() -> None:
    learner = Learner()
    assert learner.brings(*cut(10, of(WORKERS, 0), 10)) == []
    assert learner.offered(WORKERS, offer((10, 1))) is None
    assert not learner.ask()


def test_chunks_that_contradict_their_offer_end_their_batch() -> None:
    learner = Learner()
    learner.offered(0, offer((20, 2)))
    learner.ask()
    with pytest.raises(MessageCorrupt, match="disagree"):
        learner.add(cut(30, of(0, 0), 10)[0])
    first, second = cut(20, of(0, 0), 10)
    assert learner.brings(second) == []  # nothing of the first attempt is left
    assert learner.brings(first) == [0]


# A worker's processes.


def test_a_predecessor_that_talks_on_changes_nothing() -> None:
    learner, first = Learner(), cut(20, of(0, 0), 10)
    successor = Identity(worker=0, incarnation=1, sequence=0, process=7)
    one, two = cut(20, successor, 10)
    assert learner.brings(one, first[0]) == []
    assert learner.offered(0, offer((20, 2))) is None
    assert learner.brings(two) == [0]


def test_a_slow_link_is_sent_nothing_twice_and_takes_a_part_of_the_window_only() -> None:
    learner, piece = Learner(), CHUNK_BYTES - PREFIX_BYTES
    for worker in (0, 1):
        learner.offered(worker, offer((32 * piece, 32)))
    asked = learner.ask()
    assert {worker: each.send[-1][2] for worker, each in asked.items()} == {0: 4, 1: 4}
    learner.now_s += ANSWER_S - 1.0
    learner.offered(0, replace(offer((32 * piece, 32)), answers=asked[0].number - 1))  # from before the request
    assert 0 not in learner.ask()


def test_a_new_process_ends_what_its_predecessor_had_not_sent_whole() -> None:
    learner = Learner()
    learner.add(cut(20, of(0, 0), 10)[0])
    successor = Identity(worker=0, incarnation=1, sequence=0, process=7)
    assert learner.brings(*cut(20, successor, 20)) == [0]
    assert learner.take(of(0, 0)) is None
    assert learner.take(successor) == Receipt(process=7, taken=(0,))


def test_only_what_is_missing_is_asked_for_again() -> None:
    learner = Learner()
    chunks = cut(100, of(0, 0), 10)
    for index in (0, 3, 4, 9):
        learner.add(chunks[index])
    learner.now_s += ANSWER_S
    learner.offered(0, offer((100, 10)))
    assert learner.ask() == {0: Receipt(process=0, number=1, send=((0, 1, 3), (0, 5, 9)))}


def test_a_batch_that_waits_for_the_loop_is_held_and_one_that_it_has_is_taken() -> None:
    learner = Learner()
    assert learner.brings(*cut(10, of(0, 0), 10), *cut(10, of(0, 1), 10)) == [0, 1]
    learner.take(of(0, 0))
    assert learner.offered(0, offer((10, 1), (10, 1))) == Receipt(process=0, taken=(0,), held=(1,))


# The order of a worker's batches.


def numbered(*numbers: int) -> list[bytes]:
    return [chunk for number in numbers for chunk in cut(10, of(0, number), 10)]


def kept(*numbers: int) -> Offer:
    batches = tuple(KeptBatch(sequence=number, nbytes=10, chunks=1, idle=True) for number in numbers)
    return Offer(incarnation=0, process=0, batches=batches)


def test_a_batch_waits_for_one_before_it_that_was_lost() -> None:
    learner = Learner()
    assert learner.brings(*numbered(0, 2, 3)) == [0]
    assert learner.offered(0, kept(1, 2, 3)) == Receipt(process=0, held=(2, 3))
    assert learner.ask() == {0: Receipt(process=0, number=1, send=((1, 0, 1),))}
    assert learner.brings(*numbered(1)) == [1, 2, 3]
    assert learner.brings(*numbered(1, 2, 3)) == []


def test_a_batch_does_not_wait_for_one_that_an_earlier_learner_has_taken() -> None:
    learner = Learner()
    learner.offered(0, kept(7, 9))
    learner.ask()
    assert learner.brings(*numbered(9)) == []
    assert learner.brings(*numbered(7)) == [7, 9]
    assert learner.brings(*numbered(11)) == []
    learner.offered(0, kept(11))
    assert learner.brings() == [11]


def test_a_batch_does_not_wait_for_one_that_died_with_its_worker() -> None:
    learner = Learner()
    assert learner.brings(*numbered(0, 2)) == [0]
    learner.add(cut(20, Identity(worker=0, incarnation=1, sequence=0, process=7), 10)[0])
    assert [each.key for each in came(learner)] == [of(0, 2)]
