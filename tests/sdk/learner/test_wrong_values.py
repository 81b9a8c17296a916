"""Wrong and odd values of every keyword: each works, or is an error of one line that names the keyword.

The collectors of this process are started; those of worker processes and jobs are refused, or not, before that.
"""

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.sdk.given_keywords import DEFAULTS, keywords_of

import rollfleet
from rollfleet import Collector
from rollfleet.errors import ConnectionFailed, RollfleetError
from rollfleet.learner.construction import construct
from rollfleet.processes.inline import InlineTransport

EXAMPLES = settings(
    max_examples=24,
    deadline=None,
    suppress_health_check=[HealthCheck.differing_executors, HealthCheck.function_scoped_fixture],
)

NUMBERS = st.one_of(
    st.integers(-3, 9),
    st.sampled_from([-(2**70), -(2**63), 2**31, 2**53, 2**63, 2**70, -1.0, 0.5, 8.0, 1e300]),
    st.sampled_from([float("nan"), float("inf"), -0.0, 3 + 4j]),
    st.sampled_from([np.int64(8), np.uint8(2), np.float32(0.5), np.float64("nan"), np.True_, np.str_("async")]),
)
TEXTS = st.one_of(
    st.sampled_from(["", "8", "true", "sync", "Async", "random", "spawn", "cpu", "meta", "cuda:99", "a\nb", "x" * 200]),
    st.text(max_size=8),
)
ODD = st.one_of(
    st.none(),
    st.booleans(),
    NUMBERS,
    TEXTS,
    st.lists(st.one_of(NUMBERS, TEXTS, st.none()), max_size=3),
    st.dictionaries(st.one_of(NUMBERS, TEXTS), NUMBERS, max_size=2),
    st.sampled_from([object(), object, len, print, b"8", {8}, range(8), Ellipsis, NotImplemented]),
    st.sampled_from([np.arange(3), np.array(8), np.array("cpu"), torch.zeros(3), torch.tensor(8), torch.nn.Identity()]),
)

SLOW_TO_TRY = {"frames_per_batch", "num_envs", "workers", "trajs_per_batch"}  # a large number of these is no error
WORDS = {"env": ("env", "environment"), "policy": ("policy",), "job": ("job",), "env_kwargs": ("keyword arguments",)}


def assert_works_or_names(keyword: str, value: object, call: Callable[[], object]) -> None:
    try:
        call()
    except ConnectionFailed:
        pass  # all arguments were accepted
    except RollfleetError as error:
        text = str(error)
        assert "\n" not in text, text
        assert any(word in text for word in (keyword, *WORDS.get(keyword, ()))), (text, value)


@pytest.mark.parametrize("keyword", ["env", "policy", *DEFAULTS])
@EXAMPLES
@given(value=ODD, place=st.sampled_from([{}, {"workers": 2}, {"workers": 2, "mode": "async"}]))
def test_a_collector_works_or_names_the_keyword(keyword: str, value: Any, place: dict[str, Any]) -> None:
    def collect() -> None:
        smallest = {"env": "CartPole-v1", "policy": None, "frames_per_batch": 8}
        given: dict[str, Any] = smallest | place | {keyword: value}
        env, policy = given.pop("env"), given.pop("policy")
        construction = construct(env, policy, keywords_of(**given))
        if construction.in_this_process and not (
            keyword in SLOW_TO_TRY and construction.workload.job.spec.collect.frames_per_batch > 99
        ):
            InlineTransport(construction.workload).close()

    assert_works_or_names(keyword, value, collect)


@pytest.mark.parametrize("keyword", [*inspect.signature(rollfleet.connect).parameters])
@EXAMPLES
@given(value=ODD)
def test_connect_names_the_keyword_before_it_connects(
    keyword: str, value: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_server(*_: object, **__: object) -> Any:
        raise ConnectionFailed("no server")

    monkeypatch.setattr("rollfleet.nats.opening.Link", no_server)
    monkeypatch.setenv("KUBECONFIG", "/nope")
    arguments: dict[str, Any] = {"job": "a/b", "address": "nats://localhost:1", "device": "cpu", keyword: value}
    assert_works_or_names(keyword, value, lambda: rollfleet.connect(**arguments))


OF_EVERY_PLACE = [name for name in inspect.signature(Collector.over).parameters if name in DEFAULTS]


@pytest.mark.parametrize("keyword", OF_EVERY_PLACE)
@EXAMPLES
@given(value=ODD)
def test_the_same_wrong_value_is_the_same_error_in_every_place(keyword: str, value: Any) -> None:
    def error_of(call: Callable[[], object]) -> str | None:
        try:
            call()
        except ConnectionFailed:
            return None
        except RollfleetError as error:
            return str(error)
        return None

    def here() -> object:
        return construct("CartPole-v1", None, keywords_of(frames_per_batch=8, workers=2, **{keyword: value}))

    def there() -> object:
        return rollfleet.connect("a/b", address="nats://user@:1", timeout_s=0, **{keyword: value})

    assert error_of(here) == error_of(there)
