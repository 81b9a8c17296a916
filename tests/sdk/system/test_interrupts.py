"""Ctrl-C waits for the end of work that must not be cut, and for nothing else."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from rollfleet.system.interrupts import Uninterrupted, interruptible


def press_ctrl_c() -> None:
    signal.raise_signal(signal.SIGINT)


@contextmanager
def raises_ctrl_c() -> Iterator[None]:
    with pytest.raises(KeyboardInterrupt):
        yield


def test_ctrl_c_is_raised_at_the_end_of_the_work() -> None:
    done = []
    with raises_ctrl_c(), Uninterrupted():
        press_ctrl_c()
        done.append("the rest")
    assert done == ["the rest"]


def test_it_is_raised_at_once_in_an_interruptible_part() -> None:
    done = []
    with raises_ctrl_c(), Uninterrupted(), interruptible():
        press_ctrl_c()
        done.append("more")
    assert not done


def test_an_interruptible_part_raises_one_that_came_before() -> None:
    done = []
    with raises_ctrl_c(), Uninterrupted():
        press_ctrl_c()
        done.append("before")
        with interruptible():
            done.append("inside")
    assert done == ["before"]


def test_work_inside_an_interruptible_part_is_not_cut_either() -> None:
    done = []
    with raises_ctrl_c(), Uninterrupted(), interruptible():
        with Uninterrupted():
            press_ctrl_c()
            done.append("the inner work")
        done.append("more")
    assert done == ["the inner work"]


def test_work_inside_of_work_ends_with_it() -> None:
    done = []
    with raises_ctrl_c(), Uninterrupted():
        with Uninterrupted():
            press_ctrl_c()
        done.append("the outer work")
    assert done == ["the outer work"]


def test_a_second_ctrl_c_cuts_the_work() -> None:
    done = []
    with raises_ctrl_c(), Uninterrupted():
        press_ctrl_c()
        press_ctrl_c()
        done.append("the rest")
    assert not done


def test_an_error_of_the_work_is_the_context_of_ctrl_c() -> None:
    def work() -> None:
        with Uninterrupted():
            press_ctrl_c()
            raise ValueError("mine")

    with pytest.raises(KeyboardInterrupt) as raised:
        work()
    assert isinstance(raised.value.__context__, ValueError)


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
        with Uninterrupted():
            press_ctrl_c()
            assert not called
        assert called == [signal.SIGINT]
        assert signal.getsignal(signal.SIGINT) is own


def test_a_handler_that_the_work_sets_stays() -> None:
    def own(number: int, frame: object) -> None: ...

    with handler(signal.default_int_handler):
        with Uninterrupted():
            signal.signal(signal.SIGINT, own)
        assert signal.getsignal(signal.SIGINT) is own


def test_an_ignored_ctrl_c_stays_ignored() -> None:
    with handler(signal.SIG_IGN), Uninterrupted():
        press_ctrl_c()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_other_threads_have_nothing_to_do_with_it() -> None:
    done = []

    def work() -> None:
        with Uninterrupted(), interruptible():
            done.append("the rest")

    with raises_ctrl_c(), Uninterrupted():
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        press_ctrl_c()
        done.append("here")
    assert done == ["the rest", "here"]
