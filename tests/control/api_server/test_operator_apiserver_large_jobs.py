"""Jobs of megabytes on a real API server: the operator refuses them, and serves all others meanwhile."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from tests.control.api_server.lab import Lab
from tests.control.api_server.operator_program import StartProgram
from tests.control.kubernetes import wait_for
from tests.control.wire.jwt_nats import memory_mib

pytestmark = pytest.mark.cluster

StartOperator = Callable[..., Any]

MEMORY_MIB = 512  # the chart's limit
REPEATED: dict[str, Any] = {"spec": {"containers": [{"name": "worker", "env": [{"name": "A1"}]}] * 8000}}  # 374 KiB
EMPTY: dict[str, Any] = {"spec": {"tolerations": [[]] * 230_000}}  # 0.9 MB


def test_a_job_of_many_equal_names_is_refused_and_stops_no_other(own_lab: Lab, start_operator: StartOperator) -> None:
    lab = own_lab
    running = start_operator(lab.namespace, lab.nats)
    lab.apply("large", template=REPEATED)
    wait_for(lambda: lab.condition("Degraded", "large").get("reason") == "Invalid")
    assert "at most 65,536 are allowed" in lab.condition("Degraded", "large")["message"]
    lab.apply()
    lab.run()
    assert [running.http("/healthz")[0] for _ in range(3)] == [200, 200, 200]
    lab.apply("large", template=None)
    wait_for(lambda: lab.condition("Degraded", "large").get("status") == "False")


@pytest.mark.timeout(400)
def test_sixteen_jobs_of_nearly_a_megabyte_fit_into_the_operators_memory(
    own_lab: Lab, start_program: StartProgram
) -> None:
    for again in range(2):  # the second one lists them all at its start
        program = start_program("one")
        for index in range(0 if again else 16):
            own_lab.apply(f"large-{index}", template=EMPTY)
        wait_for(lambda: all(_is_refused(own_lab, index) for index in range(16)))
        own_lab.apply(f"small-{again}")
        wait_for(partial(_is_seen, own_lab, f"small-{again}"))
        assert memory_mib(program.process.pid) < MEMORY_MIB
        program.end()


def _is_seen(lab: Lab, name: str) -> bool:
    return "observedGeneration" in lab.status(name)


def _is_refused(lab: Lab, index: int) -> bool:
    return lab.condition("Degraded", f"large-{index}").get("reason") == "Invalid"
