"""On a real API server: evaluation workers come and go with `spec.evaluation`, and the workers stay."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from rollfleet_api.permissions import Role
from rollfleet_operator import names

if TYPE_CHECKING:
    from tests.control.api_server.lab import Lab

pytestmark = pytest.mark.cluster
WaitFor = Callable[[Callable[[], Any]], Any]
EVALUATION: dict[str, Any] = {"every": 10, "workers": 3}


def evaluation_runs(lab: "Lab") -> list[Any]:
    return [run for run in lab.all("Job") if run["metadata"]["labels"][names.ROLE] == Role.EVALUATION]


def test_edits_of_evaluation_reach_its_workers_alone(lab: "Lab", wait_for: WaitFor) -> None:
    lab.apply()
    workers = lab.run()["metadata"]
    lab.apply(evaluation=EVALUATION)
    first = lab.run("evaluation")["metadata"]["uid"]
    lab.apply(evaluation=EVALUATION | {"episodes": 3})
    wait_for(lambda: [run for run in evaluation_runs(lab) if run["metadata"]["uid"] != first])
    wait_for(lambda: len(evaluation_runs(lab)) == 1)
    lab.apply()
    wait_for(lambda: not evaluation_runs(lab))
    assert lab.run()["metadata"]["uid"] == workers["uid"]
