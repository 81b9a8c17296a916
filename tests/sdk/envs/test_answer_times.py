"""Which servers of environments hold the others up."""

import multiprocessing
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from tests.sdk.envs.hosts import Host

import rollfleet
from rollfleet.envs.answer_times import SAMPLES, AnswerTimes


class Light(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Takes this time for a step, besides its own."""

    def __init__(self, step_s: float = 0.0) -> None:
        super().__init__(gymnasium.make("CartPole-v1"))
        self._step_s = step_s

    def step(self, action: Any) -> Any:
        time.sleep(self._step_s)
        return super().step(action)


class Sleepy(Light):
    def __init__(self) -> None:
        super().__init__(0.02)


@pytest.mark.parametrize("remote", [False, True], ids=["processes", "hosts"])
def test_a_server_that_sleeps_is_named_in_its_workers_heartbeat(remote: bool, certificate: Path) -> None:
    with ExitStack() as stack:
        place: dict[str, Any] = {"workers": 3}
        name = "the process of environments 1 to 1"
        if remote:
            address = stack.enter_context(Host(certificate)).address
            place = {"servers": [address] * 3, "certificate": certificate}
            name = f"environment server {address}"
        envs = rollfleet.make_vec([Light, Sleepy, Light], **place)
        collector = stack.enter_context(rollfleet.Collector(envs, frames_per_batch=30, total_frames=9000))
        found = next(text for _ in collector if (text := collector.stats().workers[0].slow_servers))
    assert found.startswith("1 of 3 servers answers ")
    assert found.endswith(f" times slower than the others: {name}")


def test_a_server_that_hangs_is_measured_no_longer_than_a_step_may_take() -> None:
    (ready, answers), (hangs, _) = multiprocessing.Pipe(), multiprocessing.Pipe()
    answers.send_bytes(b"")
    times, began_s = AnswerTimes(2), time.perf_counter()
    times.measure([ready, hangs], began_s, 0.05)
    assert ready.recv_bytes() == b"", "a measurement reads nothing"
    assert 0.05 <= time.perf_counter() - began_s < 10


def test_neither_a_tail_nor_the_work_of_a_larger_group_is_slow() -> None:
    times, names = AnswerTimes(4), list("abcd")
    for step in range(2 * SAMPLES):
        times.note([0.002, 0.001, 0.05 if step % 4 == 0 else 0.001, 0.001])
        assert times.slow(names) == ""


def test_of_two_servers_the_other_one_is_the_measure() -> None:
    times = AnswerTimes(2)
    for _ in range(SAMPLES):
        times.note([0.04, 0.001])
    assert times.slow(["a", "b"]) == "1 of 2 servers answers 40 times slower than the others: a"


def test_of_many_slow_servers_some_are_named() -> None:
    times = AnswerTimes(64)
    for _ in range(SAMPLES):
        times.note([0.004 if index % 8 == 5 else 0.001 for index in range(64)])
    expected = "8 of 64 servers answer up to 4 times slower than the others: 5, 13, 21, 29 and 4 more"
    assert times.slow(list(map(str, range(64)))) == expected


def test_a_server_that_recovers_is_named_no_more() -> None:
    times, names = AnswerTimes(3), list("abc")
    for slow_s in (0.01,) * SAMPLES + (0.001,) * (SAMPLES // 2 + 1):
        times.note([0.001, slow_s, 0.001])
    assert times.slow(names) == ""
