"""A thousand jobs: the program as it is installed, beside a real API server and a real nats-server."""

import asyncio
import subprocess
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.api.job_data import job_data
from tests.control.kubernetes import ApiServer
from tests.control.wire.job_nats import memory_mib

from rollfleet_api.job import KIND

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(600)]

JOBS, AT_ONCE = 1000, 50
WITHIN_S = 300.0
AT_MOST_MIB = 300
NAMESPACE = "default"


def job(number: int) -> dict[str, Any]:
    return job_data({"name": f"job-{number}", "namespace": NAMESPACE}, suspend=True)


def test_a_thousand_suspended_jobs_are_made_within_minutes_and_little_memory(
    server: ApiServer, operator: "subprocess.Popen[bytes]", tmp_path: Path
) -> None:
    async def apply_all() -> None:
        for first in range(0, JOBS, AT_ONCE):
            await asyncio.gather(*(server.api.create(job(number)) for number in range(first, first + AT_ONCE)))

    began = time.monotonic()
    server.call(apply_all(), timeout_s=WITHIN_S)
    phases: Counter[str] = Counter()
    found: list[dict[str, Any]] = []
    while phases["Suspended"] < JOBS:
        assert operator.poll() is None, (tmp_path / "nats/operator.log").read_text()
        assert time.monotonic() - began < WITHIN_S, phases
        time.sleep(1)
        found = server.call(server.api.list(KIND, NAMESPACE))
        phases = Counter((each.get("status") or {}).get("phase", "unseen") for each in found)
    took_s = time.monotonic() - began
    peak = memory_mib(operator.pid)
    print(f"{JOBS} jobs in {took_s:.0f} s, the operator's memory at most {peak} MiB")
    assert peak < AT_MOST_MIB
    created = {kind: len(server.call(server.api.list(kind, NAMESPACE))) for kind in ("Job", "Secret")}
    assert created == {"Job": 0, "Secret": 2 * JOBS + 1}  # and the installation's key
    conditions = [condition for each in found for condition in each["status"]["conditions"]]
    assert {each["status"] for each in conditions if each["type"] == "Degraded"} == {"False"}
