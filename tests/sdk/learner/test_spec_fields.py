"""The keywords of `rollfleet.Collector` and the fields of a job are one declaration."""

from enum import StrEnum
from typing import Any

import pytest
from pydantic_core import PydanticUndefined
from tests.sdk.collector.given_keywords import PARAMETERS

from rollfleet.learner.spec_fields import SPEC_FIELDS
from rollfleet_api.job import CollectorJob, CollectSpec

OWN_DEFAULTS = {"workers": (0, 1), "mode": ("sync", "Async")}
"""Keywords whose default is not the job's: a collector without `workers` collects in its own process, in mode sync."""


def test_every_collect_option_of_a_job_is_a_keyword() -> None:
    assert set(CollectSpec.model_fields) <= set(SPEC_FIELDS)


@pytest.mark.parametrize("keyword", SPEC_FIELDS)
def test_a_keyword_has_the_default_of_its_field(keyword: str) -> None:
    default, of_field = PARAMETERS[keyword].default, SPEC_FIELDS[keyword].info.get_default()
    if keyword in OWN_DEFAULTS:
        assert (default, of_field) == OWN_DEFAULTS[keyword]
    elif isinstance(of_field, StrEnum):
        assert default == of_field.value.lower()
    elif of_field is PydanticUndefined:
        assert PARAMETERS[keyword].default is PARAMETERS[keyword].empty
    else:
        assert (default, type(default)) == (of_field, type(of_field))


def test_every_keyword_leads_to_a_field_of_the_job() -> None:
    spec: Any = CollectorJob.model_json_schema(by_alias=True)["$defs"]
    parts = {
        "collect": "CollectSpec",
        "env": "EnvSpec",
        "weights": "WeightsSpec",
        "stragglers": "StragglersSpec",
        "delivery": "DeliverySpec",
        "failure": "FailureSpec",
    }
    for keyword, field in SPEC_FIELDS.items():
        part = spec["CollectorJobSpec"] if len(field.path) == 1 else spec[parts[field.path[0]]]
        assert field.path[-1] in part["properties"], keyword


@pytest.mark.parametrize(
    ("keyword", "value", "spec"),
    [
        ("frames_per_batch", 8, {"collect": {"framesPerBatch": 8}}),
        ("mode", "async", {"mode": "Async"}),
        ("backend", "envpool", {"env": {"backend": "EnvPool"}}),
        ("exploration", "greedy", {"collect": {"exploration": "greedy"}}),
    ],
)
def test_a_value_is_written_to_its_place_in_the_job(keyword: str, value: object, spec: dict[str, object]) -> None:
    written: dict[str, Any] = {}
    SPEC_FIELDS[keyword].put(written, value)
    assert written == spec
