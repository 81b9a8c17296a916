"""A version in chunks: whatever arrives, in any order, only a complete and correct version is returned."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.sdk.allocations import allocates_at_most

from rollfleet.errors import MessageCorrupt
from rollfleet.wire.buffer_pool import BufferPool
from rollfleet.wire.chunks import CHUNK_BYTES, PREFIX_BYTES
from rollfleet.wire.weight_chunks import MAX_PENDING, WeightAssembler, cut, manifest_of
from rollfleet_api.messages import Manifest
from rollfleet_api.versions import version_of

Version = tuple[Manifest, bytes, list[bytes]]


def version(number: int, nbytes: int = 100, chunk_bytes: int = 16, session: int = 0, *, other: bool = False) -> Version:
    data = np.random.default_rng((session, number, other)).integers(0, 256, nbytes, np.uint8).tobytes()
    of = version_of(session, number)
    manifest = manifest_of(of, (), memoryview(data), max_chunk_bytes=chunk_bytes + PREFIX_BYTES)
    return manifest, data, [b"".join(pieces) for pieces in cut(manifest, memoryview(data))]


def assembler_of(*chunks: bytes) -> WeightAssembler:
    """Return an assembler of versions of 100 bytes to which these chunks were added."""
    assembler = WeightAssembler(100)
    for chunk in chunks:
        assembler.add(chunk)
    return assembler


@given(st.integers(0, 300), st.integers(1, 40), st.randoms(use_true_random=False), st.integers(0, 3))
def test_chunks_in_any_order_and_repeated_make_the_version(nbytes: int, each: int, order: object, more: int) -> None:
    manifest, data, chunks = version(7, nbytes, each)
    arriving = chunks * (1 + more)
    order.shuffle(arriving)  # type: ignore[attr-defined]  # a random.Random
    assembler = WeightAssembler(nbytes)
    for chunk in arriving:
        assembler.add(chunk)
    assert assembler.missing(manifest) == []
    assert assembler.finish(manifest).tobytes() == data


def test_memory_is_reused_but_not_while_its_version_is_being_loaded() -> None:
    assembler = WeightAssembler(100, BufferPool(MAX_PENDING).take)

    def came(number: int) -> NDArray[np.uint8]:
        manifest, _, chunks = version(number)
        for chunk in chunks:
            assembler.add(chunk)
        return assembler.finish(manifest)

    held, newest, addresses = came(1), came(2), set()
    loaded = held[:50].view(np.int16)  # as a worker does, of an earlier version than the newest
    del held
    for number in range(3, 10):
        newest = came(number)
        assert newest.tobytes() == version(number)[1]
        addresses.add(newest.ctypes.data)
    assert loaded.tobytes() == version(1)[1][:50]
    assert len(addresses) == 2
    at = loaded.ctypes.data
    assert at not in addresses
    del loaded
    newest = came(10)
    assert newest.ctypes.data in {at} | addresses
    assert newest.tobytes() == version(10)[1]


@given(st.randoms(use_true_random=False), st.sampled_from([version(4), version(3, session=2)]))
def test_mixed_chunks_of_two_versions_or_of_two_learners_make_both(order: object, newer: Version) -> None:
    versions = version(3), newer
    arriving = versions[0][2] + versions[1][2]
    order.shuffle(arriving)  # type: ignore[attr-defined]  # a random.Random
    assembler = assembler_of(*arriving)
    for manifest, data, _ in versions:
        assert assembler.finish(manifest).tobytes() == data


def test_chunks_of_a_replaced_learner_displace_no_version() -> None:
    manifest, data, chunks = version(1, session=2)
    replaced = [chunk for number in range(50, 60) for chunk in version(number, session=1)[2]]
    assert assembler_of(*chunks[:3], *replaced, *chunks[3:]).finish(manifest).tobytes() == data


def test_chunks_fit_the_servers_largest_message_and_are_a_mebibyte_at_most() -> None:
    for max_chunk_bytes, longest in ((100, 100), (1 << 23, CHUNK_BYTES)):
        data = memoryview(bytes(2 * (longest - PREFIX_BYTES)))
        manifest = manifest_of(1, (), data, max_chunk_bytes=max_chunk_bytes)
        chunks = [b"".join(pieces) for pieces in cut(manifest, data)]
        assert len(chunks) == manifest.chunks
        assert max(map(len, chunks)) == longest


def test_missing_lists_the_chunks_that_did_not_arrive() -> None:
    manifest, data, chunks = version(1)
    assert assembler_of().missing(manifest) == list(range(7))
    assembler = assembler_of(*chunks[::3])
    assert assembler.missing(manifest) == [1, 2, 4, 5]
    with pytest.raises(MessageCorrupt, match="version 1: chunks are missing"):
        assembler.finish(manifest)
    for index in assembler.missing(manifest):
        assembler.add(chunks[index])
    assert assembler.finish(manifest).tobytes() == data


# Versions that overtake each other.


def test_chunk_of_a_newer_version_in_the_same_slot_does_not_count_for_the_older() -> None:
    older, _, old_chunks = version(1)
    _, _, new_chunks = version(3)  # the same slot
    assembler = assembler_of(*old_chunks[:3], new_chunks[3], *old_chunks[4:])
    assert assembler.missing(older) == [3]
    with pytest.raises(MessageCorrupt, match="version 1: chunks are missing"):
        assembler.finish(older)


def test_only_the_two_newest_versions_are_held() -> None:
    versions = {number: version(number) for number in (1, 3, 4, 2)}
    assembler = assembler_of(*(chunk for _, _, chunks in versions.values() for chunk in chunks))
    for number in (3, 4):
        assembler.finish(versions[number][0])
    for number in (1, 2):
        with pytest.raises(MessageCorrupt, match="chunks are missing"):
            assembler.finish(versions[number][0])


def test_older_version_is_forgotten_once_a_newer_one_is_complete() -> None:
    (older, _, old_chunks), (newer, _, new_chunks) = version(1), version(2)
    assembler = assembler_of(*old_chunks, *new_chunks)
    assembler.finish(newer)
    with pytest.raises(MessageCorrupt, match="version 1: chunks are missing"):
        assembler.finish(older)


def test_memory_of_a_finished_version_is_not_written_again() -> None:
    manifest, data, chunks = version(1)
    assembler = assembler_of(*chunks)
    got = assembler.finish(manifest)
    for chunk in version(1, other=True)[2]:
        assembler.add(chunk)
    assert got.tobytes() == data


def test_incomplete_versions_do_not_displace_the_requested_one() -> None:
    manifest, data, chunks = version(5)
    assembler = assembler_of(*(version(number)[2][0] for number in (2**62, 2**62 + 1)))
    for index in assembler.missing(manifest):
        assembler.add(chunks[index])
    assert assembler.finish(manifest).tobytes() == data


def test_manifest_overrules_chunks_of_another_size() -> None:
    manifest, data, chunks = version(5)
    assembler = assembler_of(version(5, chunk_bytes=10)[2][0])
    with pytest.raises(MessageCorrupt, match="version 5: a chunk of 7, not of 10 as before"):
        assembler.add(chunks[0])
    for index in assembler.missing(manifest):
        assembler.add(chunks[index])
    assert assembler.finish(manifest).tobytes() == data


# Invalid chunks.


@given(st.integers(0, 6), st.data())
def test_any_flipped_bit_is_noticed(index: int, data: st.DataObject) -> None:
    manifest, _, chunks = version(1)
    bit = data.draw(st.integers(0, 8 * len(chunks[index]) - 1))
    flipped = bytearray(chunks[index])
    flipped[bit // 8] ^= 1 << bit % 8
    with pytest.raises(MessageCorrupt):  # from whichever call notices it first
        assembler_of(*chunks[:index], bytes(flipped), *chunks[index + 1 :]).finish(manifest)


def test_version_whose_checksum_is_wrong_can_be_fetched_again() -> None:
    manifest, data, chunks = version(1)
    assembler = assembler_of(chunks[0][:-1] + bytes([chunks[0][-1] ^ 1]), *chunks[1:])
    with pytest.raises(MessageCorrupt, match="version 1: its checksum is wrong"):
        assembler.finish(manifest)
    assert assembler.missing(manifest) == list(range(7))
    for chunk in chunks:
        assembler.add(chunk)
    assert assembler.finish(manifest).tobytes() == data


def test_chunks_of_a_policy_of_another_size_are_ignored() -> None:
    assembler, (chunk, *_) = WeightAssembler(100), version(1, nbytes=1 << 22, chunk_bytes=1 << 10)[2]
    with allocates_at_most(200_000):
        assembler.add(chunk)
    assert assembler.missing(version(1)[0]) == list(range(7))


@pytest.mark.parametrize("total", [0, 99, 101, 2**63 - 1])
def test_manifest_of_another_size_is_corrupt(total: int) -> None:
    manifest = replace(version(1)[0], total_bytes=total)
    assembler = WeightAssembler(100)
    with allocates_at_most(200_000):
        for ask in (assembler.missing, assembler.finish):
            with pytest.raises(MessageCorrupt, match=f"its manifest says {total} bytes, the policy here has 100"):
                ask(manifest)
