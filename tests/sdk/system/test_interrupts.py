"""Ctrl-C waits for the end of work that must not be cut, and for nothing else."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from rollfleet.system.interrupts import interruptible, uninterrupted

Done = list[str]


def press_ctrl_c() -> None:
    signal.raise_signal(signal.SIGINT)


def work(done: Done) -> None:
    with uninterrupted():
        press_ctrl_c()
        done.append("the rest")


def with_an_open_part(done: Done) -> None:
    with uninterrupted(), interruptible():
        press_ctrl_c()
        done.append("the rest")


def pressed_before_an_open_part(done: Done) -> None:
    with uninterrupted():
        press_ctrl_c()
        done.append("before")
        with interruptible():
            done.append("inside")


def work_in_an_open_part(done: Done) -> None:
    with uninterrupted(), interruptible():
        work(done)
        done.append("more")


def work_in_work(done: Done) -> None:
    with uninterrupted():
        work(done)
        done.append("more")


def pressed_twice(done: Done) -> None:
    with uninterrupted():
        press_ctrl_c()
        press_ctrl_c()
        done.append("the rest")


@pytest.mark.parametrize(
    ("begin", "does"),
    [
        (work, ["the rest"]),
        (with_an_open_part, []),
        (pressed_before_an_open_part, ["before"]),
        (work_in_an_open_part, ["the rest"]),
        (work_in_work, ["the rest", "more"]),
        (pressed_twice, []),
    ],
)
def test_ctrl_c_is_raised_after(begin: Callable[[Done], None], does: Done) -> None:
    done: Done = []
    with pytest.raises(KeyboardInterrupt):
        begin(done)
    assert done == does
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_error_of_the_work_is_the_context_of_ctrl_c() -> None:
    def work() -> None:
        with uninterrupted():
            press_ctrl_c()
            raise ValueError("mine")

    with pytest.raises(KeyboardInterrupt) as raised:
        work()
    assert isinstance(raised.value.__context__, ValueError)


def test_an_open_part_that_outlives_its_work_keeps_no_ctrl_c() -> None:
    with uninterrupted():
        part = interruptible()
        part.__enter__()
    part.__exit__(None, None, None)
    with pytest.raises(KeyboardInterrupt):
        press_ctrl_c()


@contextmanager
def handler(own: Any) -> Iterator[None]:
    before = signal.signal(signal.SIGINT, own)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def test_the_programs_own_handler_is_called_at_the_end_and_stays() -> None:
    called: list[int] = []

    def own(number: int, frame: object) -> None:
        called.append(number)

    with handler(own):
        with uninterrupted():
            press_ctrl_c()
            assert not called
        assert called == [signal.SIGINT]
        assert signal.getsignal(signal.SIGINT) is own


def test_a_handler_that_the_work_sets_stays() -> None:
    def own(number: int, frame: object) -> None: ...

    with handler(signal.default_int_handler):
        with uninterrupted():
            signal.signal(signal.SIGINT, own)
        assert signal.getsignal(signal.SIGINT) is own


def test_an_ignored_ctrl_c_stays_ignored() -> None:
    with handler(signal.SIG_IGN), uninterrupted():
        press_ctrl_c()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_work_of_other_threads_changes_nothing() -> None:
    done: Done = []

    def elsewhere() -> None:
        with uninterrupted(), interruptible():
            done.append("the rest")

    def here() -> None:
        with uninterrupted():
            thread = threading.Thread(target=elsewhere)
            thread.start()
            thread.join()
            press_ctrl_c()
            done.append("here")

    with pytest.raises(KeyboardInterrupt):
        here()
    assert done == ["the rest", "here"]
