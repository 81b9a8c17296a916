"""What chunking promises: messages come together in any order, and hostile senders get no memory."""

import random
import struct

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.sdk.allocations import allocates_at_most
from tests.sdk.wire.joined_chunks import split

from rollfleet.errors import MessageCorrupt, MessageTooLarge
from rollfleet.wire.chunks import CHUNK_BYTES, PREFIX_BYTES, Assembler, ChunkHeader, Identity, peek
from rollfleet.wire.codec import ALIGNMENT, Encoded, decode, encode

PREFIX = struct.Struct("<4sIHHQIIQ")

relaxed = settings(deadline=None)
identities = st.builds(
    Identity,
    worker=st.integers(0, 2**16 - 1),
    incarnation=st.integers(0, 2**16 - 1),
    process=st.integers(0, 2**16 - 1),
    sequence=st.integers(0, 2**64 - 1),
)


def sent_by(worker: int = 0, *, incarnation: int = 0, sequence: int = 0) -> Identity:
    return Identity(worker=worker, incarnation=incarnation, sequence=sequence)


def batches_of(max_message_bytes: int, *, max_pending: int = 64) -> Assembler[Identity]:
    return Assembler(Identity.of, Identity.overtakes, max_message_bytes=max_message_bytes, max_pending=max_pending)


def message(*parts: bytes) -> Encoded:
    return Encoded(parts=tuple(memoryview(part) for part in parts), nbytes=sum(map(len, parts)))


def chunks(data: bytes, identity: Identity, *, piece: int) -> list[bytes]:
    return list(split(message(data), identity, max_chunk_bytes=PREFIX_BYTES + piece))


def forged(identity: Identity, *, index: int, count: int, total_bytes: int, piece: bytes = b"") -> bytes:
    """Make a chunk with any fields."""
    of = (identity.worker, identity.incarnation, identity.process, identity.sequence)
    return PREFIX.pack(b"RLF3", *of, index, count, total_bytes) + piece


# Splitting.


@given(st.lists(st.binary(max_size=60), min_size=1, max_size=5).filter(any), identities, st.integers(1, 80))
@relaxed
def test_chunks_joined_are_the_message_and_all_but_the_last_have_one_size(
    parts: list[bytes], identity: Identity, piece: int
) -> None:
    joined = b"".join(parts)
    cut = list(split(message(*parts), identity, max_chunk_bytes=PREFIX_BYTES + piece))
    assert b"".join(chunk[PREFIX_BYTES:] for chunk in cut) == joined
    sizes = [len(chunk) for chunk in cut]
    assert max(sizes) <= PREFIX_BYTES + piece
    assert len(cut) == -(-len(joined) // piece)
    assert len(set(sizes[:-1])) <= 1
    assert PREFIX_BYTES < sizes[-1] <= sizes[0]
    for index, chunk in enumerate(cut):
        header = ChunkHeader(key=identity.key, index=index, count=len(cut), total_bytes=len(joined))
        assert peek(chunk) == header
        assert header.nbytes == sizes[index] - PREFIX_BYTES


def test_chunks_are_a_mebibyte_at_most_whatever_the_server_takes() -> None:
    encoded = encode(b"", {("a",): torch.zeros(2 * CHUNK_BYTES, dtype=torch.uint8)})
    assert max(map(len, split(encoded, sent_by(), max_chunk_bytes=1 << 23))) <= CHUNK_BYTES


def test_chunks_are_made_one_at_a_time() -> None:
    encoded = encode(b"", {("a",): torch.zeros(1 << 22, dtype=torch.uint8)})
    with allocates_at_most(300_000):
        for chunk in split(encoded, sent_by(), max_chunk_bytes=1 << 17):
            assert len(chunk) <= 1 << 17


# Putting together.


@given(
    st.dictionaries(identities, st.binary(min_size=1, max_size=100), min_size=1, max_size=5),
    st.integers(1, 30),
    st.randoms(use_true_random=False),
)
@relaxed
def test_chunks_of_many_workers_in_any_order_and_repeated_make_all_messages(
    sent: dict[Identity, bytes], piece: int, shuffler: random.Random
) -> None:
    by_worker = {identity.worker: identity for identity in sent}  # one message a worker: older ones are given up
    everything = [chunk for identity in by_worker.values() for chunk in chunks(sent[identity], identity, piece=piece)]
    everything += [chunk for chunk in everything if shuffler.random() < 0.5]
    shuffler.shuffle(everything)
    assembler = batches_of(10_000)
    got: dict[Identity, bytes] = {}
    for chunk in everything:
        assembled = assembler.add(chunk)
        if assembled is not None:
            # Repeats of a message that was already complete can complete it once more; never with other bytes.
            assert got.setdefault(assembled.key, bytes(assembled.buffer)) == bytes(assembled.buffer)
    assert got == {identity: sent[identity] for identity in by_worker.values()}


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_assembled_message_is_decoded_in_place(kind: type) -> None:
    sent = {("observation",): torch.rand(100, 7), ("next", "done"): torch.zeros(100, dtype=torch.bool)}
    assembler = batches_of(10_000)
    results = [assembler.add(kind(c)) for c in split(encode(b"m", sent), sent_by(3), max_chunk_bytes=1000)]
    assert results[:-1] == [None] * (len(results) - 1)
    assembled = results[-1]
    assert assembled is not None
    assert assembled.key == sent_by(3)
    address = assembled.buffer.__array_interface__["data"][0]
    assert address % ALIGNMENT == 0
    meta, got = decode(assembled.buffer)
    assert meta == b"m"
    assert all(torch.equal(got[key], sent[key]) for key in sent)
    assert address < got[("observation",)].data_ptr() < address + assembled.buffer.nbytes


# Giving up.


def test_incomplete_message_of_an_earlier_incarnation_is_given_up() -> None:
    assembler = batches_of(100)
    assembler.add(chunks(b"abcdef", sent_by(1, incarnation=3, sequence=50), piece=3)[0])
    assert assembler.add(chunks(b"abc", sent_by(1, incarnation=4, sequence=0), piece=3)[0]) is not None
    assert (len(assembler.pending), assembler.pending_bytes) == (0, 0)


@pytest.mark.parametrize(
    ("max_message_bytes", "max_pending", "kept"), [(10_000, 3, 3), (1000, 64, 2)], ids=["messages", "bytes"]
)
def test_of_too_many_incomplete_messages_the_oldest_go(max_message_bytes: int, max_pending: int, kept: int) -> None:
    assembler = batches_of(max_message_bytes, max_pending=max_pending)
    cut = [chunks(bytes(700), sent_by(worker), piece=350) for worker in range(10)]
    for first, _ in cut:
        assembler.add(first)
        assert assembler.pending_bytes <= 2 * max_message_bytes
    assert len(assembler.pending) == kept
    assert all(assembler.add(second) is not None for _, second in cut[-kept:])


@pytest.mark.parametrize(("total_bytes", "count"), [(7, 2), (6, 3)])
def test_chunk_that_contradicts_its_message_ends_it(total_bytes: int, count: int) -> None:
    assembler = batches_of(100)
    first, second = chunks(b"abcdef", sent_by(), piece=3)
    assembler.add(first)
    size = -(-total_bytes // count)
    with pytest.raises(MessageCorrupt, match="6 bytes in 2 chunks, or"):
        assembler.add(forged(sent_by(), index=0, count=count, total_bytes=total_bytes, piece=bytes(size)))
    assert (len(assembler.pending), assembler.pending_bytes) == (0, 0)
    assert assembler.add(second) is None  # nothing of the first attempt is left
    assert assembler.add(first) is not None


# Hostile senders.


def test_chunk_of_a_worker_that_no_job_can_have_is_corrupt() -> None:
    with pytest.raises(MessageCorrupt, match="worker 65536: a job has at most 65,536 workers"):
        batches_of(100).add(forged(sent_by(2**16), index=0, count=1, total_bytes=1, piece=b"x"))


def test_message_over_the_limit_is_refused_before_memory_is_taken_for_it() -> None:
    piece = bytes(64)
    chunk = forged(sent_by(), index=0, count=1 << 30, total_bytes=64 << 30, piece=piece)
    assembler = batches_of(1 << 20)
    with allocates_at_most(50_000), pytest.raises(MessageTooLarge) as error:
        assembler.add(chunk)
    assert (error.value.size_bytes, error.value.limit_bytes) == (64 << 30, 1 << 20)
    assert len(assembler.pending) == 0


def test_first_chunks_of_many_messages_never_take_more_memory_than_two_messages() -> None:
    limit = 1 << 20
    assembler = batches_of(limit, max_pending=1000)
    beginnings = []
    for worker in range(200):
        total = limit >> worker % 5
        count = (2, 1000, total)[worker % 3]
        piece = bytes(-(-total // count))
        if (count - 1) * len(piece) < total:
            beginnings.append(forged(sent_by(worker), index=0, count=count, total_bytes=total, piece=piece))
    assert len(beginnings) > 100
    with allocates_at_most(2 * limit + 100_000):
        for chunk in beginnings:
            assembler.add(chunk)
            assert assembler.pending_bytes <= 2 * limit


def test_largest_message_in_the_smallest_chunks_fits() -> None:
    assembler = batches_of(500)
    *_, last = [assembler.add(chunk) for chunk in chunks(bytes(range(250)) * 2, sent_by(), piece=1)]
    assert last is not None
    assert bytes(last.buffer) == bytes(range(250)) * 2


def test_chunk_cut_anywhere_or_lengthened_is_corrupt_and_leaves_the_message_pending() -> None:
    first, second = chunks(bytes(60), sent_by(), piece=30)
    assembler = batches_of(100)
    assembler.add(first)
    for wrong in [second[:length] for length in range(len(second))] + [second + b"\0"]:
        with pytest.raises(MessageCorrupt):
            assembler.add(wrong)
    assert assembler.add(second) is not None


def test_chunk_of_another_version_of_rollfleet_asks_for_one_version_on_both_sides() -> None:
    (chunk,) = chunks(b"abc", sent_by(), piece=3)
    with pytest.raises(MessageCorrupt, match="format b'RLF2', and this rollfleet reads b'RLF3': install one version"):
        peek(b"RLF2" + chunk[4:])


@pytest.mark.parametrize(
    ("index", "count", "total_bytes", "piece"),
    [
        (0, 0, 10, 10),
        (1, 1, 10, 10),
        (2**32 - 1, 2, 10, 5),
        (0, 1, 0, 0),
        (0, 11, 10, 1),
        (3, 4, 9, 0),  # three bytes a chunk leave nothing for the fourth
        (0, 2**32 - 1, 10, 1),
        (0, 2, 10, 4),
        (0, 2, 10, 6),
        (1, 2, 9, 5),
        (0, 1, 2**64 - 1, 10),
    ],
)
def test_chunk_of_contradictory_numbers_is_corrupt(index: int, count: int, total_bytes: int, piece: int) -> None:
    chunk = forged(sent_by(), index=index, count=count, total_bytes=total_bytes, piece=bytes(piece))
    assembler = batches_of(1000)
    with pytest.raises(MessageCorrupt):
        assembler.add(chunk)
    assert len(assembler.pending) == 0


small = st.integers(0, 5)


@given(st.lists(st.tuples(small, small, small, small, st.integers(0, 40), st.booleans()), max_size=60))
@settings(deadline=None, max_examples=300)
def test_bounds_hold_for_hostile_chunks(sent: list[tuple[int, int, int, int, int, bool]]) -> None:
    assembler = batches_of(30, max_pending=3)
    for worker, sequence, index, count, total, shorter in sent:
        size = -(-total // max(count, 1))
        piece = bytes(max(min(size, total - index * size) - shorter, 0))
        chunk = forged(sent_by(worker, sequence=sequence), index=index, count=count, total_bytes=total, piece=piece)
        try:
            assembled = assembler.add(chunk)
        except (MessageCorrupt, MessageTooLarge):
            assembled = None
        assert assembled is None or isinstance(assembled.buffer, np.ndarray)
        assert len(assembler.pending) <= 3
        assert 0 <= assembler.pending_bytes <= 60
        assert (len(assembler.pending) == 0) == (assembler.pending_bytes == 0)
