"""A network fault is noticed within a bound, and the job continues."""

import time
from collections.abc import Callable

import pytest
from tests.faults.fleet import SPEC, Fleet

from rollfleet_api.permissions import Role

JOB = {
    **SPEC,
    "workers": 1,
    "mode": "Async",
    "policy": {"random": {}},
    "collect": {"framesPerBatch": 64},
}


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("role", [Role.WORKER, Role.LEARNER])
def test_a_stalled_connection_is_replaced(role: Role, start_fleet: Callable[..., Fleet]) -> None:
    fleet = start_fleet(**JOB)
    fleet.start()
    before = fleet.proxies[role].connections
    fleet.proxies[role].stall_for_good()  # open connections stay open; a new one would work
    stalled_s = time.monotonic()
    fleet.wait_for(lambda: fleet.proxies[role].connections > before, "a new connection", 60.0)
    fleet.wait_for_every_worker(5, stalled_s + 1.0, 60.0)
    handed = [fragment["identity"] for each in fleet.events("handed over") for fragment in each["fragments"]]
    assert len(handed) == len(set(handed))
    sequences = sorted(int(identity.split(".")[2]) for identity in handed)
    assert sequences == list(range(len(sequences)))
