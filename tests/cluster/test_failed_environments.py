"""Environments in pods that fail one by one: the job goes on, and its status counts them."""

from pathlib import Path

import pytest
from tests.cluster.lab import Lab, counting_job

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]


def test_environments_that_die_cost_episodes_and_no_restart(lab: Lab, repository: Path) -> None:
    code = repository / "tests/cluster/failing_env.py"
    lab.kubectl("create", "configmap", "envs", f"--from-file=failing_env.py={code}")
    job = counting_job(lab, repository)
    job["spec"] |= {
        "env": {"entrypoint": "failing_env:make", "numEnvs": 4, "vectorization": "Async"},
        "source": {"configMap": "envs"},
        "failure": {"environments": {"stepTimeoutSeconds": 30}},
    }
    lab.apply(job)
    status = lab.wait_until(
        "counting", lambda status: status.get("failedEpisodes", {}).get("ChildProcessError", 0) > 8, "failed episodes"
    )
    assert (status["restarts"], status["phase"]) == (0, "Running")
    assert status["episodes"] > 0
