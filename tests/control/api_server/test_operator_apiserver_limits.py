"""On a real API server: a job above a limit gets no pods, and a running one no more than it has."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from rollfleet_operator.limits import Limits

if TYPE_CHECKING:
    from tests.control.api_server.lab import Lab, RunningOperator, WaitFor

pytestmark = pytest.mark.cluster


def test_job_above_a_limit_starts_when_it_asks_for_less(
    own_lab: "Lab", start_operator: Callable[..., "RunningOperator"]
) -> None:
    start_operator(own_lab.namespace, own_lab.nats, limits_per_job=Limits((("workers", 3),)))
    own_lab.apply(workers=4)
    refused = own_lab.wait_condition("Degraded", "LimitExceeded")
    assert "asks for 4 `workers`" in refused["message"]
    assert own_lab.runs() == []
    assert own_lab.key not in own_lab.nats.published, "its storage is not reserved either"
    own_lab.apply(workers=3)
    assert own_lab.run()["spec"]["parallelism"] == 3
    own_lab.wait_condition("Degraded", "AsExpected", "False")


def test_running_job_above_a_limit_keeps_its_workers(
    own_lab: "Lab", start_operator: Callable[..., "RunningOperator"], wait_for: "WaitFor"
) -> None:
    start_operator(own_lab.namespace, own_lab.nats, limits_per_namespace=Limits((("workers", 3),)))
    own_lab.apply(workers=2)
    uid = own_lab.run()["metadata"]["uid"]
    own_lab.apply("second", workers=2)
    wait_for(lambda: reason(own_lab, "second") == "LimitExceeded")
    own_lab.apply(workers=9, image="a:2")
    own_lab.wait_condition("Degraded", "LimitExceeded")
    kept = own_lab.run()
    assert (kept["metadata"]["uid"], kept["spec"]["parallelism"]) == (uid, 2)
    assert own_lab.nats.published[own_lab.key].spec.workers == 2
    own_lab.apply(workers=9, image="a:2", suspend=True)
    wait_for(lambda: own_lab.run()["spec"]["suspend"])
    wait_for(lambda: reason(own_lab, "second") == "AsExpected")


def test_invalid_template_lifts_no_limit(
    own_lab: "Lab", start_operator: Callable[..., "RunningOperator"], wait_for: "WaitFor"
) -> None:
    start_operator(own_lab.namespace, own_lab.nats, limits_per_job=Limits((("workers", 3), ("maxBytes", 1 << 30))))
    delivery = {"maxBytes": "64Mi"}
    own_lab.apply(workers=2, delivery=delivery)
    own_lab.run()
    much: Any = {"workers": 50, "template": {"spec": 5}, "delivery": {"maxBytes": "900Gi"}}
    own_lab.apply(**much)
    own_lab.apply("second", **much)
    own_lab.wait_condition("Degraded", "TemplateInvalid")
    wait_for(lambda: reason(own_lab, "second") == "TemplateInvalid")
    assert own_lab.run()["spec"]["parallelism"] == 2
    assert own_lab.nats.published[own_lab.key].spec.delivery.max_bytes == "64Mi"
    assert {key.name for key in own_lab.nats.published} == {"cartpole"}


def test_a_later_operator_knows_what_a_refused_running_job_has(
    own_lab: "Lab", start_operator: Callable[..., "RunningOperator"], wait_for: "WaitFor"
) -> None:
    limits = {"limits_per_namespace": Limits((("workers", 4),))}
    before = start_operator(own_lab.namespace, own_lab.nats, **limits)
    own_lab.apply(workers=3)
    own_lab.run()
    own_lab.apply(workers=9)
    own_lab.wait_condition("Degraded", "LimitExceeded")
    before.stop()
    start_operator(own_lab.namespace, own_lab.nats, **limits)
    own_lab.apply("second", workers=4)
    wait_for(lambda: reason(own_lab, "second") == "LimitExceeded")
    assert len(own_lab.runs()) == 1


def reason(lab: "Lab", name: str) -> Any:
    return lab.condition("Degraded", name).get("reason")
