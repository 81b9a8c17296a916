"""Jobs of megabytes on a real API server: the operator refuses them, and serves all others meanwhile."""

from functools import partial
from typing import Any

import pytest
from tests.control.api_server.lab import Lab
from tests.control.api_server.operator_program import StartProgram
from tests.control.wire.job_nats import memory_mib
from tests.waiting import wait_until

pytestmark = pytest.mark.cluster

MEMORY_MIB = 512  # the chart's limit
EMPTY: dict[str, Any] = {"spec": {"tolerations": [[]] * 230_000}}  # 0.9 MB


@pytest.mark.timeout(400)
def test_sixteen_jobs_of_nearly_a_megabyte_fit_into_the_operators_memory(
    own_lab: Lab, start_program: StartProgram
) -> None:
    for again in range(2):  # the second one lists them all at its start
        program = start_program("one")
        for index in range(0 if again else 16):
            own_lab.apply(f"large-{index}", template=EMPTY)
        wait_until(lambda: all(_is_refused(own_lab, index) for index in range(16)))
        own_lab.apply(f"small-{again}")
        wait_until(partial(_is_seen, own_lab, f"small-{again}"))
        assert program.answers("/healthz")
        assert memory_mib(program.process.pid) < MEMORY_MIB
        program.end()


def _is_seen(lab: Lab, name: str) -> bool:
    return int(lab.status(name)["observedGeneration"]) > 0


def _is_refused(lab: Lab, index: int) -> bool:
    return lab.condition("Degraded", f"large-{index}").get("reason") == "Invalid"
