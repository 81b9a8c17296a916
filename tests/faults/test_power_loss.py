"""A power loss of NATS: its storage is older than what everybody saw. Nothing hangs, and what is lost is counted.

NATS confirms messages before it writes them to its disk. Here its storage is copied, the job goes on, and the copy
takes its place.
"""

import re
from collections.abc import Callable

import pytest
from tests.faults.fleet import SPEC, Fleet
from tests.faults.record import missing

JOB = {**SPEC, "collect": {"framesPerBatch": 64}, "delivery": {"maxBytes": "16Mi", "maxBatchesAhead": 3}}
UNDER_WAY = 2  # batches of a killed worker that its last heartbeat did not name as stored


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("mode", ["Sync", "Async"])
@pytest.mark.parametrize("dies", ["nobody", "a worker"])
def test_a_power_loss_of_nats_hangs_nothing_and_its_losses_are_counted(
    mode: str, dies: str, start_fleet: Callable[..., Fleet]
) -> None:
    fleet = start_fleet(mode=mode, **JOB)
    fleet.start()
    copy = fleet.copied_store()
    before = len(fleet.events("handed over"))
    fleet.wait_for(lambda: len(fleet.events("handed over")) >= before + 20, "batches that the copy does not have")
    fleet.end_nats()
    if dies == "a worker":
        fleet.workers[0].kill()
    fleet.start_nats(store=copy)
    if dies == "a worker":
        fleet.start_worker(0)
    fleet.wait_for_every_worker(10, max(each["s"] for each in fleet.events("handed over")))
    fleet.end_workers()

    def uncounted() -> int:
        counted = re.search(r"missed=(\d+)", fleet.events("stats")[-1]["stats"])
        assert counted
        return len(missing(fleet, [])) - int(counted[1])

    most = UNDER_WAY if dies == "a worker" else 0
    fleet.wait_for(lambda: 0 <= uncounted() <= most, "each lost batch is counted")
