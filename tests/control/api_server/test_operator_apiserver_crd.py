"""What the API server refuses by itself, before any operator sees it."""

from typing import TYPE_CHECKING, Any

import pytest

from rollfleet_api.messages import LearnerPhase
from rollfleet_operator.errors import ApiError

if TYPE_CHECKING:
    from tests.control.api_server.lab import Lab

pytestmark = pytest.mark.cluster


def refusal(lab: "Lab", **spec: Any) -> str:
    with pytest.raises(ApiError) as refused:
        lab.apply(**spec)
    assert refused.value.status == 422
    return str(refused.value)


def test_name_that_is_too_long_is_refused_with_its_limit(lab: "Lab") -> None:
    assert "at most 40 characters" in refusal(lab, name="x" * 41)


def test_mode_is_fixed(lab: "Lab") -> None:
    lab.apply(mode="Async")
    assert "delete and recreate the job" in refusal(lab, mode="Sync")


def test_storage_is_fixed(lab: "Lab") -> None:
    lab.apply()
    assert "NATS cannot move" in refusal(lab, delivery={"storage": "Memory"})


def test_complete_job_takes_no_edits(lab: "Lab") -> None:
    lab.apply()
    lab.learner_says(LearnerPhase.COMPLETE)
    lab.wait_condition("Complete", "LearnerDone")
    assert "the job is complete" in refusal(lab, workers=5)


def test_defaults_are_filled_in(lab: "Lab") -> None:
    spec = lab.apply()["spec"]
    assert (spec["mode"], spec["failure"]["maxRestartsPerWorker"], spec["delivery"]["maxBytes"]) == ("Async", 10, "4Gi")
