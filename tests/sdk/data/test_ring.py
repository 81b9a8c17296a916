"""A replay buffer in shared memory: sampling while other processes write, and while writers are killed."""

import itertools
import multiprocessing
import os
import pickle
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from tests.held import held, named_memory
from tests.waiting import wait_until
from torch import Tensor

from rollfleet.data.batch import Key
from rollfleet.data.replay_buffer import ReplayBuffer
from rollfleet.data.ring import Ring
from rollfleet.data.write_quota import WriteQuota
from rollfleet.errors import JobInvalid

FORK = multiprocessing.get_context("fork")
PATIENCE_S = 60.0
NUMBERS = 10**9  # numbers that each writer has for its rows
TURNS = 300  # batches that a writer may write before it is killed: on a fast machine it would fill any buffer


def frames(*numbers: int) -> TensorDict:
    number = torch.tensor(numbers)
    return TensorDict({"n": number, "next": {"x": number.float().unsqueeze(-1)}}, batch_size=[len(numbers)])


def drawn(buffer: ReplayBuffer) -> set[int]:
    return set(buffer.sample(1000)["n"].tolist())


def rows(*numbers: int, width: int = 1) -> dict[Key, Tensor]:
    """Return rows with their number in every element of every column, so that a torn row is detected."""
    number = torch.tensor(numbers)
    return {("n",): number, ("next", "x"): number[:, None].expand(-1, width).clone(), ("m",): number.clone()}


def ring_of(buffer: ReplayBuffer) -> Ring:
    assert buffer.ring is not None
    return buffer.ring


class Interrupted(Mapping[Key, Tensor]):
    """Columns that call a function while they are copied, after the first column."""

    def __init__(self, columns: dict[Key, Tensor], happens: Callable[[], object]) -> None:
        self._columns, self._happens, self._times = columns, happens, 0

    def __getitem__(self, key: Key) -> Tensor:
        return self._columns[key]

    def __len__(self) -> int:
        return len(self._columns)

    def __iter__(self) -> Iterator[Key]:
        self._times += 1
        for position, key in enumerate(self._columns):
            if position == 1 and self._times == 3:  # the size, the layout, the copy
                self._happens()
            yield key


def signal_and_wait(begun: Any, go_on: Any) -> None:
    begun.set()
    go_on.wait()


def kill_me() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.fixture
def fork() -> Iterator[Callable[..., Any]]:
    """Run functions in forked processes, which are killed after the test."""
    with ExitStack() as stack:

        def run(function: Callable[..., object], *args: Any) -> None:
            torch.set_num_threads(1)  # a fork would wait for torch's other threads, which it lacks
            function(*args)

        def fork(function: Callable[..., object], *args: Any) -> Any:
            process = FORK.Process(target=run, args=(function, *args))
            process.start()
            stack.callback(process.join, PATIENCE_S)
            stack.callback(process.kill)
            return process

        yield fork


Fork = Callable[..., Any]


# The same behaviour as a buffer of one process.


def test_the_same_seed_draws_the_same_from_shared_and_private_memory() -> None:
    shared, own = ReplayBuffer(8, shared=True), ReplayBuffer(8)
    for buffer in (shared, own):
        buffer.extend(frames(*range(11)))
    one, other = (buffer.sample(64, torch.Generator().manual_seed(3)) for buffer in (shared, own))
    assert (one == other).all()
    assert one["next", "x"].dtype is torch.float32
    assert torch.equal(one["n"].float(), one["next", "x"].squeeze(-1))
    for sample, buffer in ((one, shared), (other, own)):
        sample["n"].fill_(99)
        assert 99 not in drawn(buffer)


@pytest.mark.parametrize("into_shared", [False, True])
def test_shared_and_private_buffers_restore_each_others_state_oldest_first(into_shared: bool) -> None:
    buffer, other = ReplayBuffer(4, shared=not into_shared), ReplayBuffer(4, shared=into_shared)
    assert buffer.state_dict()["frames"] is None
    other.extend(frames(90, 91))
    buffer.extend(frames(*range(6)))
    state = buffer.state_dict()
    assert state["frames"]["n"].tolist() == [2, 3, 4, 5]
    other.load_state_dict(state)
    assert (len(other), other.write_count, drawn(other)) == (4, 6, {2, 3, 4, 5})
    other.extend(frames(6))
    assert drawn(other) == {3, 4, 5, 6}
    other.load_state_dict(ReplayBuffer(4).state_dict())
    assert (len(other), other.write_count) == (0, 0)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(
    "others",
    [
        frames(1).set("more", torch.zeros(1)),
        frames(1).set("n", torch.zeros(1)),
        frames(1).set("n", torch.zeros(1, 2).long()),
    ],
)
def test_frames_of_another_layout_are_an_error_that_names_the_key(shared: bool, others: TensorDict) -> None:
    buffer = ReplayBuffer(8, shared=shared)
    buffer.extend(frames(1, 2))
    with pytest.raises(JobInvalid, match=r"differ from those in the buffer in \['(more|n)'\]"):
        buffer.extend(others)
    assert (len(buffer), buffer.write_count, drawn(buffer)) == (2, 2, {1, 2})


def test_every_dtype_is_returned_unchanged() -> None:
    buffer = ReplayBuffer(3, shared=True)
    dtypes = (torch.bool, torch.uint8, torch.int32, torch.float64, torch.bfloat16, torch.float16)
    given = {str(dtype): torch.ones(3, 2, dtype=dtype) for dtype in dtypes} | {"none": torch.zeros(3, 0)}
    buffer.extend(TensorDict(given, batch_size=[3]))
    found = buffer.sample(5)
    for name, value in given.items():
        assert found[name].dtype is value.dtype
        assert (found[name] == value[:1]).all()


def test_invalid_uses_are_refused() -> None:
    with pytest.raises(JobInvalid, match="remove `device`"):
        ReplayBuffer(8, device="cuda", shared=True)
    for shared in (False, True):
        with pytest.raises(JobInvalid, match="empty"):
            ReplayBuffer(8, shared=shared).sample(1)
    with pytest.raises(TypeError, match="cannot be pickled: pass it to a collector"):
        pickle.dumps(ReplayBuffer(8, shared=True))


def test_its_memory_has_no_name_and_is_freed_with_it() -> None:
    before = held()
    buffer = ReplayBuffer(1000, shared=True)
    buffer.extend(frames(1))
    assert named_memory() <= before
    assert held() - before  # its descriptors
    del buffer
    assert held() <= before


# Several writers.


def write_forever(buffer: ReplayBuffer, writer: int, count: int, written: Any, width: int, turns: Any = None) -> None:
    """Write batches of `count` rows, numbered by writer and row, and report the number of rows after each.

    Args:
        buffer: The buffer.
        writer: The writer's number.
        count: Rows of a batch.
        written: Rows that each writer has written.
        width: Columns of `x`.
        turns: A semaphore that is acquired for each batch; None: write without end.
    """
    for first in itertools.count(0, count):
        if turns is not None:
            turns.acquire()
        numbers = range(writer * NUMBERS + first, writer * NUMBERS + first + count)
        ring_of(buffer).write(rows(*numbers, width=width))
        written[writer] = first + count


def test_rows_of_several_processes_and_the_learner_are_present_once_each(fork: Fork) -> None:
    buffer = ReplayBuffer(10_000, shared=True)

    def write(writer: int) -> None:
        for first in range(0, 2000, 20):
            buffer.extend(frames(*range(10_000 * writer + first, 10_000 * writer + first + 20)))

    processes = [fork(write, writer) for writer in (1, 2, 3)]
    write(4)
    for process in processes:
        process.join(PATIENCE_S)
        assert process.exitcode == 0
    state = buffer.state_dict()
    assert (len(buffer), buffer.write_count) == (8000, 8000)
    expected = [10_000 * writer + number for writer in (1, 2, 3, 4) for number in range(2000)]
    assert sorted(state["frames"]["n"].tolist()) == expected
    assert torch.equal(state["frames"]["next"]["x"].squeeze(1).long(), state["frames"]["n"])


def test_rows_drawn_during_overwrites_are_never_torn(fork: Fork) -> None:
    """The ring is so small that it is overwritten several times during the copy of one sample."""
    buffer, width, written = ReplayBuffer(64, shared=True), 20_000, FORK.RawArray("q", 2)
    writers = [fork(write_forever, buffer, writer, 8, written, width) for writer in (0, 1)]
    wait_until(lambda: min(written) > 64)
    seen: set[int] = set()
    before = list(written)
    while len(seen) <= 64 or any(now - then < 500 for now, then in zip(written, before, strict=True)):
        assert all(writer.is_alive() for writer in writers)
        sample = buffer.sample(32)
        assert (sample["next", "x"] == sample["n"][:, None]).all()
        assert torch.equal(sample["m"], sample["n"])
        seen |= set(sample["n"].tolist())


def test_rows_are_drawn_only_once_they_are_complete(fork: Fork) -> None:
    buffer, go_on, begun = ReplayBuffer(8, shared=True), FORK.Event(), FORK.Event()
    buffer.extend(TensorDict({"n": torch.arange(6), "m": torch.arange(6)}, batch_size=[6]))

    def write() -> None:
        columns: dict[Key, Tensor] = {("n",): torch.tensor([70, 80, 90, 100]), ("m",): torch.tensor([70, 80, 90, 100])}
        ring_of(buffer).write(Interrupted(columns, partial(signal_and_wait, begun, go_on)))

    writer = fork(write)
    assert begun.wait(PATIENCE_S)
    assert (len(buffer), buffer.write_count) == (4, 6)  # the two oldest of 6 rows are overwritten
    assert drawn(buffer) == {2, 3, 4, 5}
    assert sorted(buffer.state_dict()["frames"]["n"].tolist()) == [2, 3, 4, 5]
    go_on.set()
    writer.join(PATIENCE_S)
    assert (len(buffer), buffer.write_count) == (8, 10)
    assert drawn(buffer) == {2, 3, 4, 5, 70, 80, 90, 100}


def test_a_writer_waits_before_it_overtakes_a_slow_one_by_a_whole_round(fork: Fork) -> None:
    buffer, go_on, begun = ReplayBuffer(8, shared=True), FORK.Event(), FORK.Event()

    def write() -> None:
        ring_of(buffer).write(Interrupted(rows(1, 2, 3), partial(signal_and_wait, begun, go_on)))

    slow = fork(write)
    assert begun.wait(PATIENCE_S)
    ring_of(buffer).write(rows(4, 5, 6, 7))
    fast = threading.Thread(target=ring_of(buffer).write, args=[rows(8, 9)])
    fast.start()
    fast.join(0.2)
    assert fast.is_alive()
    assert drawn(buffer) == {4, 5, 6, 7}  # meanwhile others can draw
    go_on.set()
    fast.join(PATIENCE_S)
    slow.join(PATIENCE_S)
    assert sorted(buffer.state_dict()["frames"]["n"].tolist()) == [2, 3, 4, 5, 6, 7, 8, 9]
    assert buffer.write_count == 9


def test_rows_whose_copy_fails_are_left_out() -> None:
    buffer = ReplayBuffer(8, shared=True)
    ring_of(buffer).write(rows(1, 2))
    with pytest.raises(ZeroDivisionError):
        ring_of(buffer).write(Interrupted(rows(3, 4), lambda: 1 // 0))
    assert (len(buffer), buffer.write_count, drawn(buffer)) == (2, 2, {1, 2})
    for number in range(5, 15):
        ring_of(buffer).write(rows(number))
    assert (len(buffer), drawn(buffer)) == (8, set(range(7, 15)))


# Killed writers.


def test_the_unfinished_write_of_a_killed_writer_is_never_drawn_nor_counted(fork: Fork) -> None:
    buffer = ReplayBuffer(8, shared=True)
    quota = WriteQuota.open(ring_of(buffer), limit=0)
    ring_of(buffer).write(rows(1, 2), quota=quota.number)
    killed = fork(lambda: ring_of(buffer).write(Interrupted(rows(3, 4, 5), kill_me), quota=quota.number))
    killed.join(PATIENCE_S)
    assert killed.exitcode == -signal.SIGKILL
    assert (len(buffer), buffer.write_count, quota.written) == (2, 2, 2)
    assert drawn(buffer) == {1, 2}
    for number in range(6, 14):  # over its rows and on: no one waits for a dead writer
        ring_of(buffer).write(rows(number), quota=quota.number)
        assert drawn(buffer) <= {1, 2, *range(6, 14)}
    assert (len(buffer), buffer.write_count, quota.written) == (8, 10, 10)
    assert drawn(buffer) == set(range(6, 14))


def test_complete_writes_of_killed_writers_are_whole_and_counted_exactly(fork: Fork) -> None:
    """Writers are killed at any point, repeatedly, while others write and the learner draws."""
    count, width, written = 16, 200, FORK.RawArray("q", 21)
    turns = [FORK.Semaphore(TURNS) for _ in written]
    buffer = ReplayBuffer(2 * TURNS * count * len(written), shared=True)  # room for all of them
    survivor = fork(write_forever, buffer, 0, count, written, width, turns[0])
    for writer in range(1, len(written)):
        process = fork(write_forever, buffer, writer, count, written, width, turns[writer])
        wait_until(lambda: written[writer] >= 3 * count)  # noqa: B023
        time.sleep(0.0007 * writer)
        process.kill()
        process.join(PATIENCE_S)
        sample = buffer.sample(32)
        assert (sample["next", "x"] == sample["n"][:, None]).all()
        before = written[0]
        for _ in range(TURNS):
            turns[0].release()
        wait_until(lambda: written[0] > before)  # noqa: B023  # the survivor continues
    survivor.kill()
    survivor.join(PATIENCE_S)
    numbers = buffer.state_dict()["frames"]["n"]
    assert len(buffer) == buffer.write_count == len(numbers)
    for writer, last in enumerate(written):
        mine = (numbers[numbers // NUMBERS == writer] % NUMBERS).tolist()
        assert mine == list(range(len(mine)))
        assert len(mine) in (last, last + count)  # it may have been killed before its report
    assert torch.equal(buffer.state_dict()["frames"]["next"]["x"][:, -1], numbers)


def test_a_lock_is_freed_when_its_holder_dies_during_a_change(fork: Fork) -> None:
    buffer = ReplayBuffer(8, shared=True)
    ring_of(buffer).write(rows(1, 2))

    def change() -> None:
        with ring_of(buffer).changing() as state:
            state["held"] = state["written"] = 1000
            kill_me()

    fork(change).join(PATIENCE_S)
    assert (len(buffer), buffer.write_count, drawn(buffer)) == (2, 2, {1, 2})


# Quotas.


def test_a_quota_accepts_nothing_past_its_limit_and_frees_reservations_of_dead_writers(fork: Fork) -> None:
    buffer = ReplayBuffer(100, shared=True)
    ring = ring_of(buffer)
    quota, other = WriteQuota.open(ring, limit=5), WriteQuota.open(ring, limit=0)
    assert ring.write(rows(1, 2, 3), quota=quota.number)
    fork(lambda: ring.write(Interrupted(rows(4, 5, 6), kill_me), quota=quota.number)).join(PATIENCE_S)
    assert ring.write(rows(7, 8, 9), quota=quota.number)  # a write that reaches the limit is accepted as a whole
    assert not ring.write(rows(10), quota=quota.number)
    assert ring.write(rows(11), quota=other.number)
    ring.write(rows(12))
    assert (quota.written, other.written, buffer.write_count) == (6, 1, 8)
    quota.close()
    quota.close()
    assert quota.written == 6
    again = WriteQuota.open(ring, limit=0)
    assert (again.number, again.written) == (quota.number, 0)


def test_a_paused_quota_waits_for_writes_in_progress_and_accepts_no_more(fork: Fork) -> None:
    buffer, go_on, begun = ReplayBuffer(100, shared=True), FORK.Event(), FORK.Event()
    ring = ring_of(buffer)
    quota = WriteQuota.open(ring, limit=0)
    columns = Interrupted(rows(1, 2), partial(signal_and_wait, begun, go_on))
    fork(lambda: ring.write(columns, quota=quota.number))
    assert begun.wait(PATIENCE_S)
    shutting = threading.Thread(target=quota.pause)
    shutting.start()
    shutting.join(0.1)
    assert shutting.is_alive()
    go_on.set()
    shutting.join(PATIENCE_S)
    assert quota.written == 2
    assert not ring.write(rows(3), quota=quota.number)
    quota.resume()
    assert ring.write(rows(3), quota=quota.number)


def test_too_many_collectors_are_refused() -> None:
    ring = Ring.create(4)
    _ = [WriteQuota.open(ring, limit=0) for _ in range(64)]
    with pytest.raises(JobInvalid, match="64 collectors fill this replay buffer already"):
        WriteQuota.open(ring, limit=0)
