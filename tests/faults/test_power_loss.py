"""A power loss of NATS: its storage is older than what everybody saw. Nothing hangs, and what is lost is counted.

NATS confirms messages before it writes them to its disk. Here its storage is copied, the job goes on, and the copy
takes its place.
"""

import re
from collections.abc import Callable
from typing import Any

import pytest
from tests.faults.fleet import Fleet
from tests.faults.record import missing

SPEC: dict[str, Any] = {
    "workers": 2,
    "env": {"entrypoint": "traced_env:TracedEnv", "numEnvs": 2},
    "policy": {"mlp": {"hidden": [32]}},
    "collect": {"framesPerBatch": 64},
    "delivery": {"maxBytes": "16Mi", "maxBatchesAhead": 3},
    "weights": {"interval": 0, "maxLag": 1_000_000},
}
UNDER_WAY = 2  # batches of a killed worker that its last heartbeat did not name as stored


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("mode", ["Sync", "Async"])
@pytest.mark.parametrize("dies", ["nobody", "a worker"])
def test_a_power_loss_of_nats_hangs_nothing_and_its_losses_are_counted(
    mode: str, dies: str, start_fleet: Callable[..., Fleet]
) -> None:
    fleet = start_fleet(mode=mode, **SPEC)
    for index in range(2):
        fleet.start_worker(index)
    fleet.start_learner()

    def handed_over(count: int) -> Callable[[], bool]:
        before = len(fleet.events("handed over"))
        return lambda: len(fleet.events("handed over")) >= before + count

    fleet.wait_for(handed_over(5), "the first batches", 120.0)
    copy = fleet.copied_store()
    fleet.wait_for(handed_over(20), "batches that the copy does not have", 120.0)
    fleet.end_nats()
    if dies == "a worker":
        fleet.workers[0].kill()
    fleet.start_nats(store=copy)
    if dies == "a worker":
        fleet.start_worker(0)
    again_s = max(each["s"] for each in fleet.events("handed over"))

    def continues() -> bool:
        since = [each for each in fleet.events("handed over") if each["s"] > again_s]
        workers_seen = {fragment["identity"].split(".")[0] for each in since for fragment in each["fragments"]}
        alive = {process.pid for process in fleet.workers.values()}
        return len(since) >= 10 and len(workers_seen) == 2 and alive <= {each["pid"] for each in fleet.events("stored")}

    fleet.wait_for(continues, "batches of every worker", 120.0)
    for process in fleet.workers.values():
        process.terminate()
    for process in fleet.workers.values():
        process.join(30)
        assert process.exitcode == 143, fleet.words()

    def uncounted() -> int:
        counted = re.search(r"missed=(\d+)", fleet.events("stats")[-1]["stats"])
        assert counted
        return len(missing(fleet, [])) - int(counted[1])

    most = UNDER_WAY if dies == "a worker" else 0
    fleet.wait_for(lambda: 0 <= uncounted() <= most, "each lost batch is counted")
