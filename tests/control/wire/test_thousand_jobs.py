"""A thousand jobs: the program as it is installed, beside a real API server and a real nats-server."""

import asyncio
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.control.kubernetes import ABSENT, PROGRAMS, ApiServer, find, serve_definition

from rollfleet_api.job import API_VERSION, KIND
from rollfleet_operator.nats.trust import SEED_FILE

if TYPE_CHECKING:
    from tests.control.wire.jwt_nats import NatsInJwtMode

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(600)]

JOBS, AT_ONCE = 1000, 50
WITHIN_S = 300.0
AT_MOST_MIB = 300
NAMESPACE = "default"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ApiServer]:
    """An API server of the test's own: thousands of objects would be in the way of others."""
    if not all(find(program) for program in PROGRAMS):
        pytest.skip(ABSENT)
    folder = tmp_path / "api-server"
    folder.mkdir()
    server = ApiServer(folder)
    serve_definition(server)
    yield server
    server.stop()


@pytest.fixture
def operator(server: ApiServer, nats_server: "NatsInJwtMode", tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The operator's program."""
    (tmp_path / SEED_FILE).write_text(nats_server.keys.operator.seed)
    told = {
        "KUBECONFIG": str(server.kubeconfig()),
        "ROLLFLEET_NATS_URL": nats_server.url,
        "ROLLFLEET_NATS_KEYS": str(tmp_path),
        "ROLLFLEET_PORT": "0",
    }
    with (tmp_path / "operator.log").open("wb") as log:
        command = [sys.executable, "-P", "-m", "rollfleet_operator"]
        process = subprocess.Popen(command, env=os.environ | told, stderr=log, stdin=subprocess.DEVNULL)
    yield process
    process.terminate()
    process.wait(30)


def job(number: int) -> dict[str, Any]:
    spec = {"env": {"id": "CartPole-v1"}, "policy": {"mlp": {}}, "collect": {"framesPerBatch": 64}, "suspend": True}
    metadata = {"name": f"job-{number}", "namespace": NAMESPACE}
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": spec}


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
        assert operator.poll() is None, (tmp_path / "operator.log").read_text()
        assert time.monotonic() - began < WITHIN_S, phases
        time.sleep(1)
        found = server.call(server.api.list(KIND, NAMESPACE)).items
        phases = Counter((each.get("status") or {}).get("phase", "unseen") for each in found)
    took_s = time.monotonic() - began
    peak = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{operator.pid}/status").read_text())
    assert peak
    print(f"{JOBS} jobs in {took_s:.0f} s, the operator's memory at most {int(peak[1]) >> 10} MiB")
    assert int(peak[1]) >> 10 < AT_MOST_MIB
    created = {kind: len(server.call(server.api.list(kind, NAMESPACE)).items) for kind in ("Job", "Secret")}
    assert created == {"Job": JOBS, "Secret": 2 * JOBS}
    assert {condition(each, "Degraded") for each in found} == {"False"}


def condition(manifest: dict[str, Any], kind: str) -> str:
    """Whether one holds."""
    return next(str(each["status"]) for each in manifest["status"]["conditions"] if each["type"] == kind)
