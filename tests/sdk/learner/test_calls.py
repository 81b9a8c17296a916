"""The calls of a collector: their arguments, an error in the background, the end."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tests.sdk.counting import OPTIONS, Learned, always_0
from tests.sdk.places import Collect
from tests.waiting import wait_until
from torch.utils.data import DataLoader, IterableDataset

import rollfleet
from rollfleet import Collector
from rollfleet.errors import JobEnded, JobInvalid, RollfleetError
from rollfleet.testing import CountingEnv

Call = Callable[[Collector], Any]

WRONG: list[tuple[Call, str]] = [
    (lambda c: c.set_seed(-1), "seed: must be at least 0, got -1"),
    (lambda c: c.set_seed(2**53), "seed: must be at most 9007199254740991, got 9007199254740992"),
    (lambda c: c.set_seed(2**70), "seed: must be at most"),
    (lambda c: c.set_seed(True), "seed: expected an int, got True"),
    (lambda c: c.set_seed(1.0), "seed: expected an int, got 1.0"),  # type: ignore[arg-type]
    (lambda c: c.set_seed(np.True_), "seed: expected an int, got True"),  # type: ignore[arg-type]
    (lambda c: c.set_seed("5"), "seed: expected an int, got '5'"),  # type: ignore[arg-type]
    (lambda c: c.set_seed(5, static_seed=5), "static_seed: expected True or False, got 5"),  # type: ignore[arg-type]
    (lambda c: c.update_policy_weights_(worker_ids="0"), "worker_ids: expected an int, got '0'"),  # type: ignore[arg-type]
    (lambda c: c.update_policy_weights_(worker_ids=True), "worker_ids: expected an int, got True"),
    (lambda c: c.update_policy_weights_(worker_ids=[0.5]), "worker_ids: expected an int, got 0.5"),  # type: ignore[list-item]
    (lambda c: c.update_policy_weights_(worker_ids=torch.device("cpu")), r"worker_ids: expected an int, got device"),  # type: ignore[arg-type]
    (lambda c: c.update_policy_weights_(worker_ids=torch.tensor(0)), "worker_ids: expected an int or a list of them"),
    (lambda c: c.update_policy_weights_(weights_dict=5), "`weights_dict`"),  # type: ignore[arg-type]
    (lambda c: c.wait_for_version("1", 1.0), "version: expected an int, got '1'"),  # type: ignore[arg-type]
    (lambda c: c.wait_for_version(1, "a"), "timeout_s: expected a number of seconds, got 'a'"),  # type: ignore[arg-type]
    (lambda c: c.wait_for_version(1, -1), r"timeout_s: .* got -1"),
    (lambda c: c.wait_for_version(1, float("nan")), r"timeout_s: .* got nan"),
    (lambda c: c.shutdown(-1), r"timeout_s: .* got -1"),
    (lambda c: c.detach("a"), "timeout_s: expected a number of seconds, got 'a'"),  # type: ignore[arg-type]
    (lambda c: c.async_shutdown("a"), "timeout_s: expected a number of seconds, got 'a'"),  # type: ignore[arg-type]
    (lambda c: c.add_workers("x"), "count: expected an int, got 'x'"),  # type: ignore[arg-type]
    (lambda c: c.add_workers(-1), "count: must be at least 0, got -1"),
    (lambda c: c.remove_workers(None), "worker_ids: expected an int or a list of them, got None"),  # type: ignore[arg-type]
    (lambda c: c.load_state_dict({}), r"state: expected the result of state_dict\(\); 'version', 'frames', .* missing"),
    (lambda c: c.load_state_dict(5), r"state: expected the result of state_dict\(\), got 5"),  # type: ignore[arg-type]
    (lambda c: c.load_state_dict(c.state_dict() | {"version": -1}), r"state\['version'\]: must be at least 0, got -1"),
    (lambda c: c.load_state_dict(c.state_dict() | {"version": 2**40}), r"state\['version'\]: must be at most"),
    (lambda c: c.load_state_dict(c.state_dict() | {"seed": 2**64}), r"state\['seed'\]: must be at most"),
    (
        lambda c: c.load_state_dict(c.state_dict() | {"episode_returns": 5}),
        r"state\['episode_returns'\]: expected a list",
    ),
]


def test_a_wrong_argument_is_named_and_changes_nothing(collect: Collect) -> None:
    collector = collect(CountingEnv, Learned(), total_frames=48, **OPTIONS)
    next(collector)
    before = collector.state_dict()
    for call, message in WRONG:
        with pytest.raises(JobInvalid, match=message):
            call(collector)
    assert collector.state_dict() == before
    assert len(list(collector)) == 2


def test_numpys_integers_are_numbers_and_the_largest_seed_has_a_successor(collect: Collect) -> None:
    collector = collect(CountingEnv, Learned(), weights_interval=0, **OPTIONS)
    next(collector)
    assert collector.set_seed(np.int64(2**53 - 1)) == 0  # type: ignore[arg-type]  # the largest one
    assert collector.set_seed(np.int64(0)) == 1  # type: ignore[arg-type]
    assert collector.update_policy_weights_(worker_ids=np.int64(0)) == 2  # type: ignore[arg-type]
    assert collector.update_policy_weights_(worker_ids=np.array([0])) == 3
    collector.wait_for_version(np.int8(3), np.float32(20))  # type: ignore[arg-type]
    state = collector.state_dict()
    collector.load_state_dict(state | {"version": np.int64(state["version"])})
    assert list(collector.episode_returns) == state["episode_returns"]
    next(collector)
    collector.shutdown(np.float64(3))


READS: dict[str, Call] = {
    "frames": lambda c: c.frames,
    "batches": lambda c: c.batches,
    "version": lambda c: c.version,
    "versions": lambda c: c.versions(),
    "workers": lambda c: c.workers,
    "stats": lambda c: c.stats(),
    "mean_return": lambda c: c.mean_return,
    "episode_returns": lambda c: c.episode_returns,
    "episode_lengths": lambda c: c.episode_lengths,
    "episode_table": lambda c: c.episode_table(),
    "state_dict": lambda c: c.state_dict(),
    "len": len,
}
ACTS: dict[str, Call] = {
    "next": next,
    "update_policy_weights_": lambda c: c.update_policy_weights_(),
    "wait_for_version": lambda c: c.wait_for_version(1, 1.0),
    "set_seed": lambda c: c.set_seed(1),
    "pause": lambda c: c.pause().__enter__(),
    "start": lambda c: c.start(),
    "add_workers": lambda c: c.add_workers(1),
    "remove_workers": lambda c: c.remove_workers(0),
    "call": lambda c: c.call(None, "env.spec"),
    "load_state_dict": lambda c: c.load_state_dict(_state()),
    "ack": lambda c: c.ack(),
}


def _state() -> dict[str, Any]:
    counts = dict.fromkeys(("version", "frames", "batches", "seeding", "origin"), 1)
    return counts | {"seed": None, "static_seed": False, "episode_returns": [], "episode_lengths": []}


def test_at_the_end_no_call_waits_for_workers_that_have_left(collect: Collect) -> None:
    collector = collect(CountingEnv, Learned(), total_frames=32, **OPTIONS)
    next(collector)
    state = collector.state_dict()
    list(collector)
    calls: dict[str, Call] = {name: ACTS[name] for name in ("set_seed", "add_workers", "remove_workers", "call")}
    calls["load_state_dict"] = lambda c: c.load_state_dict(state)
    for call in calls.values():
        with pytest.raises(JobEnded, match="is complete, and its workers leave; make a new collector"):
            call(collector)
    assert collector.frames == 32
    with pytest.raises(StopIteration):
        next(collector)


@pytest.mark.parametrize("what", ["environment", "buffer"])
def test_every_call_raises_an_error_of_the_background_which_is_logged(
    collect: Collect, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    class Full(rollfleet.ReplayBuffer):
        def extend(self, batch: Any) -> Any:
            super().extend(batch)
            if what == "buffer" and self.write_count > 40:
                raise MemoryError("the buffer is full")

    buffer = Full(1000)
    env_kwargs = {"breaks_at": 0 if what == "buffer" else 30}
    collector = collect(
        CountingEnv, Learned(), env_kwargs=env_kwargs, replay_buffer=buffer, total_frames=10_000, **OPTIONS
    )
    assert not collector.is_running
    expected = "the buffer is full" if what == "buffer" else "the simulator broke"
    errors = (RollfleetError, ArithmeticError, MemoryError)
    collector.start()

    def loop_of_the_page() -> None:
        while collector.frames < 1000:
            if len(buffer):
                assert len(buffer.sample(4)) == 4

    with pytest.raises(errors, match=expected):
        loop_of_the_page()
    assert not collector.is_running
    for call in (READS | ACTS).values():
        with pytest.raises(errors, match=expected):
            call(collector)
    assert len(buffer.sample(16)) == 16
    with pytest.raises(errors, match=expected):
        collector.async_shutdown()
    collector.shutdown()
    assert collector.frames > 0
    assert "the collector's next call raises" in caplog.text


def test_the_end_raises_an_error_of_the_background_that_no_call_has_raised(here: Collect) -> None:
    collector = here(CountingEnv, always_0, env_kwargs={"breaks_at": 30}, replay_buffer=[], **OPTIONS)
    collector.start()
    wait_until(lambda: not collector.is_running)
    with pytest.raises((RollfleetError, ArithmeticError), match="the simulator broke"):
        collector.shutdown()
    collector.shutdown()


@pytest.mark.parametrize("end", ["shutdown", "async_shutdown"])
def test_after_the_end_a_call_that_would_act_raises_and_the_counters_stay(collect: Collect, end: str) -> None:
    buffer = rollfleet.ReplayBuffer(100)
    collector = collect(CountingEnv, Learned(), total_frames=64, replay_buffer=buffer, **OPTIONS)
    next(collector)
    collector.wait_for_version(collector.version, timeout_s=20)  # the heartbeat that says so may come after the batch
    before = {name: read(collector) for name, read in READS.items() if name not in ("stats", "workers", "state_dict")}
    getattr(collector, end)()
    for call in ACTS.values():
        with pytest.raises(JobEnded, match=r"the collector of default/\w+ was shut down"):
            call(collector)
    assert {name: read(collector) for name, read in READS.items() if name in before} == before
    assert collector.stats().frames == 16
    assert collector.state_dict()["frames"] == 16
    for again in ("shutdown", "detach", "async_shutdown"):
        getattr(collector, again)()


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_the_length_counts_whole_batches(apart: Collect, mode: str) -> None:
    collector = apart(CountingEnv, always_0, num_envs=2, frames_per_batch=12, total_frames=110, workers=3, mode=mode)
    assert len(collector) == len(list(collector)) == 10


def test_an_endless_collector_has_no_length_and_is_true(here: Callable[..., Collector]) -> None:
    collector = here(CountingEnv, always_0, **OPTIONS)
    with pytest.raises(TypeError, match="`total_frames`"):
        len(collector)
    assert collector
    for padded in ({"trajs_per_batch": 2}, {"reset_when_done": False}):
        with pytest.raises(TypeError, match="if no batch has padding"):
            len(here(CountingEnv, always_0, total_frames=64, **OPTIONS | padded))


def test_the_length_is_the_number_of_batches_until_total_frames_also_in_a_data_loader(collect: Collect) -> None:
    collector = collect(CountingEnv, always_0, total_frames=40, **OPTIONS)
    assert isinstance(collector, IterableDataset)
    loader: Any = DataLoader(collector, batch_size=None, collate_fn=lambda batch: batch)  # torch converts no TensorDict
    assert len(loader) == len(collector) == 3
    batches = list(loader)
    assert [batch.batch_size for batch in batches] == [(2 * collect.workers, 8 // collect.workers)] * 3
    assert (batches[0]["next", "reward"] == 1).all()
    assert len(collector) == 3
    assert (collector.frames, collector.total_frames) == (48, 40)
    with pytest.raises(StopIteration):
        next(collector)
