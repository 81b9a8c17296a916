"""On a real API server: an operator of several namespaces, one of which refuses it."""

from collections.abc import Callable

import pytest
from tests.control.api_server.lab import Lab, RunningOperator
from tests.control.kubernetes import OTHER, OTHER_TOKEN
from tests.waiting import wait_until

from rollfleet_operator import watch

pytestmark = pytest.mark.cluster


@pytest.fixture
def running(
    labs: tuple[Lab, Lab], start_operator: Callable[..., RunningOperator], monkeypatch: pytest.MonkeyPatch
) -> Callable[[], RunningOperator]:
    """Starts an operator of both namespaces, with the rights that the test has granted."""
    monkeypatch.setattr(watch, "LAST_RETRY_S", 0.1)
    settings = {"namespaces": tuple(lab.namespace for lab in labs), "resync_s": 0.2}
    return lambda: start_operator("", labs[0].nats, token=OTHER_TOKEN, **settings)


def refused(operator: RunningOperator, lab: Lab) -> bool:
    return f'rollfleet_namespace_refused{{namespace="{lab.namespace}"}} 1.0' in operator.http("/metrics")[1]


def test_namespace_without_rights_holds_up_no_other(
    labs: tuple[Lab, Lab], running: Callable[[], RunningOperator]
) -> None:
    ours, theirs = labs
    ours.grant_everything(OTHER)
    ours.apply()
    theirs.apply()
    operator = running()
    ours.run()
    wait_until(lambda: operator.http("/readyz")[0] == 200)
    wait_until(lambda: refused(operator, theirs))
    ours.seconds_pass(1.0)  # several attempts
    ours.apply(workers=3)
    wait_until(lambda: ours.run()["spec"]["parallelism"] == 3)
    assert theirs.runs() == []
    theirs.grant_everything(OTHER)
    theirs.run()
    wait_until(lambda: not refused(operator, theirs))
    theirs.apply(workers=4)
    wait_until(lambda: theirs.run()["spec"]["parallelism"] == 4)


def test_jobs_of_a_namespace_without_rights_stay_on_nats(
    labs: tuple[Lab, Lab], running: Callable[[], RunningOperator]
) -> None:
    ours, theirs = labs
    ours.grant_everything(OTHER)
    revoke = theirs.grant_everything(OTHER)
    for lab in labs:
        lab.apply()
    first = running()
    wait_until(lambda: {ours.key, theirs.key} <= set(ours.nats.published))
    first.stop()
    revoke()
    second = running()
    wait_until(lambda: refused(second, theirs))
    ours.seconds_pass(0.5)
    assert theirs.key in theirs.nats.published


def test_operator_that_is_refused_everywhere_is_not_ready(
    labs: tuple[Lab, Lab], running: Callable[[], RunningOperator]
) -> None:
    operator = running()
    wait_until(lambda: all(refused(operator, lab) for lab in labs))
    assert operator.http("/readyz")[0] == 503
    assert operator.http("/healthz")[0] == 200
