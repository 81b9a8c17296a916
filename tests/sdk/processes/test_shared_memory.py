"""What processes of one machine share: regions, notices, weights, batches; each end on its own."""

import gc
import multiprocessing
import os
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import closing

import numpy as np
import psutil
import pytest
import torch

from rollfleet.data.batch import Fragment, Key
from rollfleet.errors import JobEnded, MessageCorrupt, MessageTooLarge
from rollfleet.processes.control_block import ControlBlock, Notice
from rollfleet.processes.messages import BatchReady, MessageReader, encode_message
from rollfleet.processes.worker_transport import ProcessWorkerTransport
from rollfleet.system.shared_memory import GRANULARITY, SharedMemory
from rollfleet.wire.buffer_pool import SMALL_BYTES, BufferPool
from rollfleet.wire.codec import decode, encode
from rollfleet.wire.fragment_message import unpack_fragment
from rollfleet_api.messages import BatchMeta, Control, LearnerPhase, WorkerStatus

META = BatchMeta(session=1, round=0, version=1, frames=6)
FORK = multiprocessing.get_context("fork")


# Regions.


def test_an_arena_grows_by_regions_that_are_zero_and_have_no_name() -> None:
    before = sorted(os.listdir("/dev/shm"))
    with closing(SharedMemory.create()) as shared_memory:
        assert shared_memory.grow(10) == (0, GRANULARITY)
        assert shared_memory.grow(GRANULARITY + 1) == (GRANULARITY, 2 * GRANULARITY)
        first, again = shared_memory.map(0, 10), shared_memory.map(0, 10)
        first[3] = 7
        assert (again[3], again.sum(), again.nbytes) == (7, 7, GRANULARITY)
        assert sorted(os.listdir("/dev/shm")) == before


@pytest.mark.parametrize(("start", "nbytes"), [(0, GRANULARITY + 1), (GRANULARITY, 1), (8, 1), (1 << 40, 1)])
def test_a_region_that_is_not_there_is_not_touched(start: int, nbytes: int) -> None:
    with closing(SharedMemory.create()) as shared_memory:
        shared_memory.grow(GRANULARITY)
        with pytest.raises(MessageCorrupt, match="no region"):
            shared_memory.map(start, nbytes)


# Notices.


def test_a_notice_is_read_whole_although_it_is_written_over_meanwhile() -> None:
    control_block = ControlBlock.create()
    last = 2000

    def write() -> None:
        for number in range(1, last + 1):
            control = Control(session=number, phase=LearnerPhase.RUN, round=number, version=number)
            control_block.write(Notice(control=control, taken=number))

    writer = FORK.Process(target=write)
    writer.start()
    reader, seen = ControlBlock(SharedMemory(os.dup(control_block.fileno()))), {0}
    while max(seen) < last:
        notice = reader.read()
        numbers = {notice.taken} | ({notice.control.session, notice.control.version} if notice.control else set())
        assert len(numbers) == 1
        assert numbers >= {max(seen)} or min(numbers) > max(seen)
        seen |= numbers
    writer.join()
    assert len(seen) > 2


def test_half_a_notice_is_not_believed() -> None:
    control_block = ControlBlock.create()
    reader: list[int] = []
    memory = SharedMemory(os.dup(control_block.fileno())).map(0, 4096)
    control_block.write(Notice(taken=1))
    first = memory.copy()
    control_block.write(Notice(taken=2))
    second = memory.copy()
    memory[20:] = first[20:]  # as it is seen when what was written last arrives first
    seen = threading.Thread(
        target=lambda: reader.append(ControlBlock(SharedMemory(os.dup(control_block.fileno()))).read().taken)
    )
    seen.start()
    seen.join(0.2)
    assert reader == []
    memory[:] = second
    seen.join(5)
    assert reader == [2]


def test_a_notice_that_does_not_fit_is_refused() -> None:
    control_block = ControlBlock.create()
    control_block.write(Notice(taken=1))
    long = Control(session=1, phase=LearnerPhase.RUN, round=0, version=0, some=tuple((n, n) for n in range(10_000)))
    with pytest.raises(MessageTooLarge):
        control_block.write(Notice(control=long))
    assert ControlBlock(SharedMemory(os.dup(control_block.fileno()))).read().taken == 1


# Batches.


def fragment(value: float, *, steps: int = 3, size: int = 4) -> Fragment:
    flags = torch.zeros(2, steps, 1, dtype=torch.bool)
    return Fragment(
        steps={
            ("observation",): torch.full((2, steps, size), value),
            ("action",): torch.zeros(2, steps, dtype=torch.int64),
            ("next", "reward"): torch.ones(2, steps, 1),
            ("next", "terminated"): flags,
            ("next", "truncated"): flags.clone(),
            ("collector", "traj_ids"): torch.zeros(2, steps, dtype=torch.int64),
        },
        final={("observation",): torch.full((2, size), value)},
        episode_returns=torch.empty(0, dtype=torch.float64),
        episode_lengths=torch.empty(0, dtype=torch.int64),
        version=1,
    )


class Learner:
    """The other end of a port."""

    def __init__(self, most_waiting: int) -> None:
        self.line, theirs = socket.socketpair()
        self.line.settimeout(5)
        self.control_block, self.batches, self.frames, self.taken = (
            ControlBlock.create(),
            SharedMemory.create(),
            MessageReader(),
            0,
        )
        arenas = [SharedMemory(os.dup(each.fileno())) for each in (self.control_block, self.batches)]
        self.transport = ProcessWorkerTransport(
            theirs,
            control_block=ControlBlock(arenas[0]),
            batches=arenas[1],
            weights=SharedMemory.create(),
            incarnation=0,
            most_waiting=most_waiting,
        )

    def take(self) -> float:
        """Receive one batch and take it; the value that is in it."""
        (ready,) = self.frames.add(self.line.recv(1 << 16))
        assert isinstance(ready, BatchReady)
        memory = self.batches.map(ready.start, ready.nbytes)[: ready.nbytes]
        value = float(unpack_fragment(memory, checksum=False)[1].steps["observation",].mean())
        self.taken += 1
        self.control_block.write(Notice(taken=self.taken))
        self.line.send(b"\0")
        return value

    def close(self) -> None:
        self.transport.close()
        self.line.close()


@pytest.fixture
def learner() -> Iterator[Learner]:
    with closing(Learner(2)) as learner:
        yield learner


def test_a_batch_waits_for_room_and_then_goes_out_in_order(learner: Learner) -> None:
    sent = [learner.transport.send(fragment(value), META) for value in (0.0, 1.0, 2.0)]
    assert [sending.admitted.done() for sending in sent] == [True, True, False]
    assert all(sending.stored.done() for sending in sent)
    with pytest.raises(FutureTimeout):
        sent[2].admitted.result(0.01)
    helper = threading.Timer(0.1, learner.line.send, [b"\0" * 100])  # rings that say nothing new
    helper.start()
    with pytest.raises(FutureTimeout):
        sent[2].admitted.result(0.3)
    helper.join()


def test_places_of_batches_are_used_again_and_grow(learner: Learner) -> None:
    for number in range(20):
        learner.transport.send(fragment(float(number), size=4 + 400 * (number // 10)), META).admitted.result(5)
        assert learner.take() == number
    assert os.fstat(learner.batches.fileno()).st_size < 10 * 4096 * 4


def test_a_place_is_not_used_again_before_its_batch_was_taken(learner: Learner) -> None:
    learner.transport.send(fragment(0.0), META)
    learner.transport.send(fragment(1.0), META)
    learner.transport.send(fragment(2.0), META)  # not announced yet, but written
    data = learner.line.recv(1 << 16)
    first, second = learner.frames.add(data)
    assert isinstance(first, BatchReady)
    assert isinstance(second, BatchReady)
    for ready, value in ((first, 0.0), (second, 1.0)):
        memory = learner.batches.map(ready.start, ready.nbytes)[: ready.nbytes]
        assert float(unpack_fragment(memory, checksum=False)[1].steps["observation",].mean()) == value


def test_a_worker_whose_learner_is_gone_is_told_wherever_it_waits(learner: Learner) -> None:
    sent = [learner.transport.send(fragment(0.0), META) for _ in range(3)]
    learner.line.close()
    with pytest.raises(JobEnded):
        sent[2].admitted.result(5)
    with pytest.raises(JobEnded):
        learner.transport.wait_until(lambda: False)
    learner.transport.report(WorkerStatus.starting(0, 0))  # nobody hears it, and that is all


def test_a_worker_need_not_wait_for_room_when_the_job_is_complete(learner: Learner) -> None:
    sent = [learner.transport.send(fragment(0.0), META) for _ in range(3)]
    learner.control_block.write(Notice(control=Control(session=1, phase=LearnerPhase.COMPLETE, round=0, version=0)))
    with pytest.raises(JobEnded, match="complete"):
        sent[2].admitted.result(5)


@pytest.mark.parametrize("data", [b"\x09\x00\x00\x00\x00", b"\x01\xff\xff\xff\xff", b"\x02\x02\x00\x00\x00{}"])
def test_bytes_that_are_no_messages_are_refused(data: bytes) -> None:
    with pytest.raises(MessageCorrupt):
        list(MessageReader().add(data))


def test_messages_are_put_together_from_any_pieces() -> None:
    messages = [BatchReady(sequence=n, start=n, nbytes=n) for n in range(3)]
    data, frames = b"".join(map(encode_message, messages)), MessageReader()
    assert [told for byte in data for told in frames.add(bytes([byte]))] == messages


# Memory of batches.


def test_memory_comes_back_when_the_last_tensor_of_it_is_gone_and_not_before() -> None:
    recycler = BufferPool(4)
    tensors: dict[Key, torch.Tensor] = {("a",): torch.arange(100_000), ("b",): torch.ones(10)}
    message = b"".join(encode(b"", tensors, checksum=False).parts)
    own = recycler.take(len(message))
    address = own.__array_interface__["data"][0]
    own[:] = np.frombuffer(message, np.uint8)
    _, decoded = decode(own, checksum=False)
    part = decoded["a",][5:7]
    del own, decoded
    gc.collect()
    other = recycler.take(len(message))
    assert other.__array_interface__["data"][0] != address
    assert part.tolist() == [5, 6]
    del part
    assert recycler.take(len(message)).__array_interface__["data"][0] == address


def test_tensors_of_such_memory_are_like_any_other() -> None:
    recycler = BufferPool(4)
    for dtype in (torch.uint8, torch.bool, torch.bfloat16, torch.float64):
        like = torch.zeros(SMALL_BYTES, 3, dtype=dtype)
        empty = recycler.empty_like(like)
        assert (empty.shape, empty.dtype, empty.is_contiguous()) == (like.shape, dtype, True)
        empty.fill_(1)
        address = empty.data_ptr()
        del empty
        assert recycler.empty_like(like).data_ptr() == address


def test_only_so_much_idle_memory_is_kept() -> None:
    recycler = BufferPool(2)
    lent = [recycler.take(50_000_000) for _ in range(6)]
    for each in lent:
        each[:] = 1
    del each
    held = psutil.Process().memory_info().rss
    lent.clear()
    assert held - psutil.Process().memory_info().rss > 150_000_000
