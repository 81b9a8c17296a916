"""No value that a call takes ends in an error from inside, hangs the job, or reaches its messages unchecked."""

from collections.abc import Callable
from contextlib import suppress
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.sdk.counting import OPTIONS, Learned
from tests.sdk.places import Collect

from rollfleet import Collector
from rollfleet.errors import RollfleetError
from rollfleet.testing import CountingEnv

TEXT = st.text(st.characters(exclude_categories=["Cc"]), max_size=5)  # a parameter's name is shown as it is
ONE: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([2**31, 2**32, 2**53 - 1, 2**53, 2**63 - 1, 2**63, 2**64, -1]),
    st.floats(),
    TEXT,
    st.binary(max_size=5),
    st.integers(-(2**63), 2**63 - 1).map(np.int64),
    st.floats().map(np.float64),
    st.sampled_from([np.True_, np.zeros(2), torch.zeros(()), torch.device("cpu"), object(), ..., type]),
)
VALUES = st.one_of(ONE, st.lists(ONE, max_size=3), st.dictionaries(TEXT, ONE, max_size=2))
KEYS = ("version", "frames", "batches", "seed", "static_seed", "seeding", "origin", "episode_returns")


def _load(collector: Collector, value: Any) -> None:
    for key in KEYS:
        with suppress(RollfleetError):
            collector.load_state_dict(collector.state_dict() | {key: value} | {"frames": 0, "batches": 0})
    collector.load_state_dict(value)


def _add(collector: Collector, value: Any) -> None:
    if not isinstance(value, int | np.integer) or not 0 <= value < 2**16:  # such a number of workers would be started
        collector.add_workers(value)


def _remove(collector: Collector, value: Any) -> None:
    collector.remove_workers([value, 99_999])  # whatever else, there is no such worker


CALLS: dict[str, Callable[[Collector, Any], object]] = {
    "set_seed": lambda c, value: c.set_seed(value),
    "static_seed": lambda c, value: c.set_seed(1, value),
    "update_policy_weights_": lambda c, value: c.update_policy_weights_(value),
    "weights": lambda c, value: c.update_policy_weights_(weights=value),
    "policy": lambda c, value: c.update_policy_weights_(policy=value),
    "worker_ids": lambda c, value: c.update_policy_weights_(worker_ids=value),
    "model_id": lambda c, value: c.update_policy_weights_(Learned(), model_id=value),
    "weights_dict": lambda c, value: c.update_policy_weights_(weights_dict=value),
    "wait_for_version": lambda c, value: c.wait_for_version(value, 0),
    "wait_for_version timeout_s": lambda c, value: c.wait_for_version(0, value),
    "load_state_dict": _load,
    "add_workers": _add,
    "remove_workers": _remove,
    "call worker_ids": lambda c, value: c.call(value, "env.missing"),
    "call method": lambda c, value: c.call(None, value),
    "call argument": lambda c, value: c.call(None, "env.missing", value, name=value),
}


# Of the global `random`: a thread of NATS's client uses it while hypothesis draws a value.
@pytest.mark.filterwarnings("ignore:Do not use the `random` module")
def test_each_call_takes_any_value_or_raises_one_of_our_errors(collect: Collect) -> None:
    collector = collect(CountingEnv, Learned(), weights_interval=0, **OPTIONS)
    next(collector)
    messages: list[str] = []

    @settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(call=st.sampled_from(list(CALLS)), value=VALUES)
    def fuzz(call: str, value: Any) -> None:
        try:
            CALLS[call](collector, value)
        except RollfleetError as error:
            messages.append(str(error))

    fuzz()
    assert not [message for message in messages if "\n" in message]
    collector.update_policy_weights_(Learned())
    collector.set_seed(1)
    assert [batch.numel() for batch in islice(collector, 2)] == [16, 16]
    collector.wait_for_version(collector.version, timeout_s=20)
