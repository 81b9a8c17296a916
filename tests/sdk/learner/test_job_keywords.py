"""The keywords of `rollfleet.Collector` and the fields of a job are one declaration."""

from enum import StrEnum
from typing import Any

import pytest
from pydantic_core import PydanticUndefined
from tests.sdk.given_keywords import DEFAULTS, keywords_of

from rollfleet.learner.construction import construct
from rollfleet.learner.keywords import PLACES
from rollfleet_api.job import CollectorJobSpec
from rollfleet_api.wording import field_at

OWN_DEFAULTS = {"workers": (0, 1), "mode": ("sync", "Async")}
"""Keywords whose default is not the job's: a collector without `workers` collects in its own process, in mode sync."""


@pytest.mark.parametrize("keyword", PLACES)
def test_a_keyword_has_the_default_of_its_field(keyword: str) -> None:
    default, of_field = DEFAULTS[keyword], field_at(CollectorJobSpec, PLACES[keyword]).get_default()
    if keyword in OWN_DEFAULTS:
        assert (default, of_field) == OWN_DEFAULTS[keyword]
    elif isinstance(of_field, StrEnum):
        assert default == of_field.value.lower()
    elif of_field is PydanticUndefined:
        assert default is None  # `frames_per_batch`, which `trajs_per_batch` replaces
    else:
        assert (default, type(default)) == (of_field, type(of_field))


@pytest.mark.parametrize(
    ("given", "spec"),
    [
        ({"workers": 2, "mode": "async", "max_lag": 3}, {"workers": 2, "weights": {"maxLag": 3}}),
        ({"backend": "envpool"}, {"mode": "Sync", "env": {"id": "CartPole-v1", "backend": "EnvPool"}}),
        ({"exploration": "Mean"}, {"mode": "Sync", "collect": {"framesPerBatch": 8, "exploration": "Mean"}}),
    ],
)
def test_a_value_is_written_to_its_place_in_the_job(given: dict[str, Any], spec: dict[str, Any]) -> None:
    written: Any = construct("CartPole-v1", None, keywords_of(frames_per_batch=8, **given)).workload.job.dump()["spec"]
    del written["policy"]
    assert written == {"env": {"id": "CartPole-v1"}, "collect": {"framesPerBatch": 8}} | spec
