"""On a real API server: a job above the limit of storage gets none, and a running one keeps what it has."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from tests.control.kubernetes import wait_for

from rollfleet_api.job import KIND
from rollfleet_operator import names

if TYPE_CHECKING:
    from tests.control.api_server.lab import Lab, RunningOperator

pytestmark = pytest.mark.cluster

MUCH: dict[str, Any] = {"delivery": {"maxBytes": "900Gi"}}
LITTLE: dict[str, Any] = {"delivery": {"maxBytes": "64Mi"}}


def test_job_above_the_limit_starts_when_it_asks_for_less(
    own_lab: "Lab", start_operator: Callable[..., "RunningOperator"]
) -> None:
    start_operator(own_lab.namespace, own_lab.nats, max_bytes_per_job=1 << 30)
    own_lab.apply(**MUCH)
    refused = own_lab.wait_condition("Degraded", "LimitExceeded")
    assert "asks for 921600 MiB (`delivery.maxBytes`), and a job may have 1024 MiB" in refused["message"]
    assert own_lab.runs() == []
    assert own_lab.key not in own_lab.nats.published
    own_lab.apply(**LITTLE)
    own_lab.run()
    own_lab.wait_condition("Degraded", "AsExpected", "False")


def test_running_job_above_the_limit_goes_on_with_what_it_has_until_a_rotation_revokes_it(
    own_lab: "Lab", start_operator: Callable[..., "RunningOperator"]
) -> None:
    start_operator(own_lab.namespace, own_lab.nats, max_bytes_per_job=1 << 30)
    own_lab.apply(**LITTLE)
    uid = own_lab.run()["metadata"]["uid"]
    own_lab.apply(**MUCH)
    own_lab.wait_condition("Degraded", "LimitExceeded")
    assert own_lab.run()["metadata"]["uid"] == uid
    assert own_lab.nats.published[own_lab.key].spec.delivery.max_bytes == "64Mi"
    own_lab.patch(KIND, "cartpole", {"metadata": {"annotations": {names.ROTATE: "2026-01-31T12:00:00Z"}}})
    wait_for(lambda: names.ROTATE in own_lab.nats.published[own_lab.key].metadata.annotations)
    assert own_lab.nats.published[own_lab.key].spec.delivery.limit_bytes == 1 << 30
