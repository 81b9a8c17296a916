"""Memory that processes on one machine share: regions, instructions and batches. Each end is tested on its own."""

import gc
import multiprocessing
import os
import socket
from collections.abc import Iterator
from contextlib import closing
from itertools import count

import numpy as np
import psutil
import pytest
import torch
from tests.held import named_memory
from tests.sdk.nats.numbered_batches import META, fragment

from rollfleet.data.batch import Key
from rollfleet.errors import JobEnded, MessageCorrupt, MessageTooLarge
from rollfleet.processes.control_block import ControlBlock, Instructions
from rollfleet.processes.messages import BatchReady, MessageReader, encode_message
from rollfleet.processes.worker_transport import ProcessWorkerTransport
from rollfleet.system.shared_memory import GRANULARITY, SharedMemory
from rollfleet.wire.buffer_pool import SMALL_BYTES, BufferPool
from rollfleet.wire.codec import decode, encode
from rollfleet.wire.fragment_message import unpack_fragment
from rollfleet_api.messages import Control, LearnerPhase, WorkerStatus

FORK = multiprocessing.get_context("fork")


# Regions.


def test_shared_memory_grows_by_regions_of_zeros_without_a_name() -> None:
    before = named_memory()
    with closing(SharedMemory.create()) as shared_memory:
        assert shared_memory.grow(10) == (0, GRANULARITY)
        assert shared_memory.grow(GRANULARITY + 1) == (GRANULARITY, 2 * GRANULARITY)
        first, again = shared_memory.map(0, 10), shared_memory.map(0, 10)
        first[3] = 7
        assert (again[3], again.sum(), again.nbytes) == (7, 7, GRANULARITY)
        assert named_memory() <= before


@pytest.mark.parametrize(("start", "nbytes"), [(0, GRANULARITY + 1), (GRANULARITY, 1), (8, 1), (1 << 40, 1)])
def test_missing_region_is_not_touched(start: int, nbytes: int) -> None:
    with closing(SharedMemory.create()) as shared_memory:
        shared_memory.grow(GRANULARITY)
        with pytest.raises(MessageCorrupt, match="no region"):
            shared_memory.map(start, nbytes)


# Instructions.


def test_instructions_are_read_whole_while_they_are_written_over() -> None:
    control_block, done = ControlBlock.create(), FORK.Event()

    def write() -> None:
        for number in count(1):
            if done.is_set():
                return
            control = Control(session=number, phase=LearnerPhase.RUN, round=number, version=number)
            control_block.write(Instructions(control=control, taken=number))

    writer = FORK.Process(target=write)
    writer.start()
    reader, seen = ControlBlock(SharedMemory(os.dup(control_block.fileno()))), {0}
    while len(seen) < 200:
        given = reader.read()
        numbers = {given.taken} | ({given.control.session, given.control.version} if given.control else set())
        assert len(numbers) == 1
        assert numbers >= {max(seen)} or min(numbers) > max(seen)
        seen |= numbers
    done.set()
    writer.join()


def test_instructions_that_do_not_fit_are_refused() -> None:
    control_block = ControlBlock.create()
    control_block.write(Instructions(taken=1))
    long = Control(session=1, phase=LearnerPhase.RUN, round=0, version=0, some=tuple((n, n) for n in range(100_000)))
    with pytest.raises(MessageTooLarge):
        control_block.write(Instructions(control=long))
    assert ControlBlock(SharedMemory(os.dup(control_block.fileno()))).read().taken == 1


# Batches.


class Learner:
    """The learner's end of a `ProcessWorkerTransport`."""

    def __init__(self) -> None:
        self.connection, theirs = socket.socketpair()
        self.connection.settimeout(5)
        self.control_block, self.batches = ControlBlock.create(), SharedMemory.create()
        self.messages, self.taken = MessageReader(), 0
        shared = [SharedMemory(os.dup(each.fileno())) for each in (self.control_block, self.batches)]
        self.transport = ProcessWorkerTransport(
            theirs,
            control_block=ControlBlock(shared[0]),
            batches=shared[1],
            weights=SharedMemory.create(),
            incarnation=0,
            max_batches_ahead=2,
        )

    def values(self) -> list[float]:
        """Return the values of the announced batches, from their slots."""
        announced = [each for each in self.messages.add(self.connection.recv(1 << 16)) if isinstance(each, BatchReady)]
        memories = [self.batches.map(each.start, each.nbytes)[: each.nbytes] for each in announced]
        batches = [unpack_fragment(memory, checksum=False)[1] for memory in memories]
        return [float(batch.steps["observation",].mean()) for batch in batches]

    def take(self) -> float:
        (value,) = self.values()
        self.taken += 1
        self.control_block.write(Instructions(taken=self.taken))
        self.connection.send(b"\0")
        return value

    def close(self) -> None:
        self.transport.close()
        self.connection.close()


@pytest.fixture
def learner() -> Iterator[Learner]:
    with closing(Learner()) as learner:
        yield learner


def test_slots_of_batches_are_reused_and_grow(learner: Learner) -> None:
    for number in range(20):
        learner.transport.send(fragment(float(number), size=4 + 400 * (number // 10)), META).admitted.result(0)
        assert learner.take() == number
    assert os.fstat(learner.batches.fileno()).st_size < 10 * 4096 * 4


def test_slot_is_not_reused_before_its_batch_is_taken(learner: Learner) -> None:
    for value in (0.0, 1.0, 2.0):  # the last one is not announced yet, but written
        learner.transport.send(fragment(value), META)
    assert learner.values() == [0.0, 1.0]


def test_every_wait_of_a_worker_ends_when_its_learner_is_gone(learner: Learner) -> None:
    sent = [learner.transport.send(fragment(0.0), META) for _ in range(3)]
    learner.connection.close()
    with pytest.raises(JobEnded):
        learner.transport.wait_until(sent[2].admitted.done)
    with pytest.raises(JobEnded):
        learner.transport.wait_until(lambda: False)
    learner.transport.report(WorkerStatus(worker=0, incarnation=0))  # no learner reads it, and no error is raised


@pytest.mark.parametrize("data", [b"\x09\x00\x00\x00\x00", b"\x01\xff\xff\xff\xff", b"\x02\x02\x00\x00\x00{}"])
def test_invalid_messages_are_refused(data: bytes) -> None:
    with pytest.raises(MessageCorrupt):
        list(MessageReader().add(data))


def test_messages_are_decoded_from_any_pieces() -> None:
    messages = [BatchReady(sequence=n, start=n, nbytes=n) for n in range(3)]
    data, reader = b"".join(map(encode_message, messages)), MessageReader()
    assert [message for byte in data for message in reader.add(bytes([byte]))] == messages


# Memory of batches.


def test_memory_is_reused_only_after_its_last_tensor_is_gone() -> None:
    pool = BufferPool(4)
    tensors: dict[Key, torch.Tensor] = {("a",): torch.arange(100_000), ("b",): torch.ones(10)}
    message = b"".join(encode(b"", tensors, checksum=False).parts)
    own = pool.take(len(message))
    address = own.__array_interface__["data"][0]
    own[:] = np.frombuffer(message, np.uint8)
    _, decoded = decode(own, checksum=False)
    part = decoded["a",][5:7]
    del own, decoded
    gc.collect()
    other = pool.take(len(message))
    assert other.__array_interface__["data"][0] != address
    assert part.tolist() == [5, 6]
    del part
    assert pool.take(len(message)).__array_interface__["data"][0] == address


def test_tensors_in_pooled_memory_have_ordinary_layout() -> None:
    pool = BufferPool(4)
    for dtype in (torch.uint8, torch.bool, torch.bfloat16, torch.float64):
        shape = torch.Size((SMALL_BYTES, 3))
        empty = pool.empty(shape, dtype)
        assert (empty.shape, empty.dtype, empty.is_contiguous()) == (shape, dtype, True)
        empty.fill_(1)
        address = empty.data_ptr()
        del empty
        assert pool.empty(shape, dtype).data_ptr() == address


def test_memory_of_sizes_that_do_not_come_again_is_given_back() -> None:
    pool = BufferPool(100)
    before = psutil.Process().memory_info().rss
    for each in range(20):
        pool.take((each % 5 + 1) ** 2 * 4_000_000)[:] = 1
    assert psutil.Process().memory_info().rss - before < 150_000_000


def test_pool_bounds_its_idle_memory() -> None:
    pool = BufferPool(2)
    lent = [pool.take(50_000_000) for _ in range(6)]
    for each in lent:
        each[:] = 1
    del each
    held = psutil.Process().memory_info().rss
    lent.clear()
    assert held - psutil.Process().memory_info().rss > 150_000_000
