"""On a real API server: a job gets more or fewer workers, and those that stay are left alone."""

from typing import Any

import pytest
from tests.control.api_server.lab import Lab
from tests.control.kubernetes import wait_for

from rollfleet_api.job import KIND
from rollfleet_api.messages import LearnerPhase

pytestmark = pytest.mark.cluster


def template(lab: Lab) -> tuple[str, str, Any]:
    """All that a running pod could be replaced for: the run, its name with its revision, and the template."""
    run = lab.run()
    return run["metadata"]["uid"], run["metadata"]["name"], run["spec"]["template"]


@pytest.mark.parametrize("mode", ["Sync", "Async"])
def test_kubectl_scale_leaves_running_workers_alone_and_an_autoscaler_finds_them(lab: Lab, mode: str) -> None:
    lab.apply(workers=2, mode=mode)
    before = template(lab)

    def scale(workers: int) -> None:
        lab.patch(KIND, "cartpole", {"spec": {"replicas": workers}}, "scale")
        wait_for(lambda: lab.run()["spec"]["parallelism"] == workers)
        wait_for(lambda: lab.nats.published[lab.key].spec.workers == workers)
        assert template(lab) == before

    scale(4)
    scale(1)
    wait_for(lambda: lab.status().get("selector"))
    found: Any = lab.read(KIND, "cartpole", "scale")
    assert found["spec"]["replicas"] == 1
    labels = lab.run()["spec"]["template"]["metadata"]["labels"]
    assert dict(pair.split("=") for pair in found["status"]["selector"].split(",")).items() <= labels.items()


def test_autoscale_sets_the_number_that_kubectl_shows_and_replaces_no_worker(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rollfleet_operator.autoscale.WINDOW_S", 1.0)
    lab.apply(workers=2, autoscale={"maxWorkers": 8})
    before = template(lab)
    lab.learner_says(LearnerPhase.RUN, workers=2, waited_s=0.0)
    lab.seconds_pass(1.0)  # it is looked at each 0.2 s
    lab.learner_says(LearnerPhase.RUN, workers=2, waited_s=50.0, frames=6400, batches=100)
    wait_for(lambda: lab.run()["spec"]["parallelism"] == 4)
    scale: Any = lab.read(KIND, "cartpole", "scale")
    assert scale["spec"]["replicas"] == 4
    assert template(lab) == before
