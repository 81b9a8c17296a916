"""A network fault is noticed within a bound, and the job continues."""

import time
from collections.abc import Callable

import pytest
from tests.faults.fleet import Fleet

from rollfleet_api.permissions import Role

SPEC = {
    "workers": 1,
    "mode": "Async",
    "env": {"entrypoint": "traced_env:TracedEnv", "numEnvs": 2},
    "policy": {"random": {}},
    "collect": {"framesPerBatch": 64},
    "delivery": {"maxBytes": "64Mi"},
    "weights": {"interval": 0, "maxLag": 1_000_000},
}


def batches(fleet: Fleet, since_s: float = 0.0) -> int:
    return len([each for each in fleet.events("handed over") if each["s"] > since_s])


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("role", [Role.WORKER, Role.LEARNER])
def test_a_stalled_connection_is_replaced(role: Role, start_fleet: Callable[..., Fleet]) -> None:
    fleet = start_fleet(**SPEC)
    fleet.start_worker(0)
    fleet.start_learner()
    fleet.wait_for(lambda: batches(fleet) >= 3, "the first batches", 120.0)
    before = fleet.proxies[role].connections
    fleet.proxies[role].stall_for_good()  # open connections stay open; a new one would work
    stalled_s = time.monotonic()
    fleet.wait_for(lambda: fleet.proxies[role].connections > before, "a new connection", 60.0)
    fleet.wait_for(lambda: batches(fleet, stalled_s + 1.0) >= 5, "batches over the new connection", 60.0)
    handed = [fragment["identity"] for each in fleet.events("handed over") for fragment in each["fragments"]]
    assert len(handed) == len(set(handed))
    sequences = sorted(int(identity.split(".")[2]) for identity in handed)
    assert sequences == list(range(len(sequences)))
