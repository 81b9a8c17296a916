"""Two operator programs on a real API server and a real NATS: one of them works."""

import json
import signal
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest
from tests.control.api_server.lab import Lab
from tests.control.api_server.operator_program import StartProgram
from tests.control.chart.helm import Rendered
from tests.control.kubernetes import AUDIT_LOG, OTHER, OTHER_TOKEN, ApiServer
from tests.waiting import wait_until

from rollfleet_operator.leadership import EXIT_LOST, VALID_S

pytestmark = pytest.mark.cluster
READS = {"get", "list", "watch"}


@pytest.fixture
def start(own_lab: Lab, start_program: StartProgram) -> StartProgram:
    """Starts operators that share a Lease; returns when a probe succeeds."""
    return partial(start_program, **own_lab.share_a_lease())


def leads(lab: Lab, pod: str) -> bool:
    lease: Any = lab.get("Lease", "rollfleet")
    return bool(lease.get("spec", {}).get("holderIdentity") == pod)


def since_renewal_s(lab: Lab) -> float:
    lease: Any = lab.get("Lease", "rollfleet")
    return (datetime.now(UTC) - datetime.fromisoformat(lease["spec"]["renewTime"])).total_seconds()


def image_of_a_new_job(lab: Lab, name: str) -> str:
    lab.apply(name)
    runs: Any = wait_until(lambda: [run for run in lab.all("Job") if run["metadata"]["name"].startswith(f"{name}-")])
    return str(runs[0]["spec"]["template"]["spec"]["containers"][0]["image"])


def requests_of_other(server: ApiServer, start: int = 0) -> list[tuple[str, str]]:
    """The verbs and resources of user `other` after a position in the log."""
    events = [json.loads(line) for line in (server.folder / AUDIT_LOG).read_text()[start:].splitlines()]
    return [(each["verb"], (each.get("objectRef") or {}).get("resource", "")) for each in events]


def test_the_second_operator_waits_and_takes_over_when_the_first_ends(
    own_lab: Lab, api_server: ApiServer, start: StartProgram
) -> None:
    own_lab.grant_everything(OTHER)
    first = start("first")
    assert leads(own_lab, "first")
    log_length = (api_server.folder / AUDIT_LOG).stat().st_size
    second = start("second", OTHER_TOKEN)
    assert image_of_a_new_job(own_lab, "a") == first.image
    assert second.answers("/healthz")
    assert set(requests_of_other(api_server, log_length)) == {("get", "leases")}
    first.process.terminate()
    assert first.process.wait(30) == 0
    assert not leads(own_lab, "first")
    assert image_of_a_new_job(own_lab, "b") == second.image


def test_a_waiting_operator_ends_on_sigterm(own_lab: Lab, start: StartProgram) -> None:
    start("first")
    second = start("second")
    second.process.terminate()
    assert second.process.wait(30) == 0
    assert leads(own_lab, "first")


def test_an_operator_without_its_lease_is_not_ready_and_makes_it_by_the_charts_rights(
    own_lab: Lab, api_server: ApiServer, rendered: Rendered, start: StartProgram
) -> None:
    own_lab.delete("Lease", "rollfleet")
    api_server.grant(OTHER, own_lab.namespace, *rendered.of("Role")["rollfleet-leader"]["rules"])
    operator = start("first", OTHER_TOKEN, until="/healthz")
    assert not operator.answers("/readyz")
    wait_until(lambda: own_lab.get("Lease", "rollfleet") and leads(own_lab, "first"))
    own_lab.grant_everything(OTHER)
    wait_until(lambda: operator.answers("/readyz"))


@pytest.mark.slow
def test_a_deleted_lease_is_made_again_and_one_operator_leads(own_lab: Lab, start: StartProgram) -> None:
    operators = {pod: start(pod) for pod in ("first", "second")}
    own_lab.delete("Lease", "rollfleet")
    wait_until(lambda: own_lab.get("Lease", "rollfleet") and any(leads(own_lab, pod) for pod in operators))
    (leader,) = (pod for pod in operators if leads(own_lab, pod))
    assert image_of_a_new_job(own_lab, "a") == operators[leader].image


@pytest.mark.slow
def test_a_stopped_operator_that_continues_sends_what_it_had_begun_and_ends(
    own_lab: Lab, api_server: ApiServer, start: StartProgram
) -> None:
    own_lab.grant_everything(OTHER)
    first, second = start("first", OTHER_TOKEN), start("second")
    assert image_of_a_new_job(own_lab, "a") == first.image
    first.process.send_signal(signal.SIGSTOP)
    wait_until(lambda: leads(own_lab, "second"))
    log_length = (api_server.folder / AUDIT_LOG).stat().st_size
    own_lab.apply("a", workers=3)  # the first one gets to know it when it continues
    assert image_of_a_new_job(own_lab, "b") == second.image
    first.process.send_signal(signal.SIGCONT)
    assert first.process.wait(30) == EXIT_LOST
    # It looks at one job at a time here. The stop may have come between its check of the Lease and its request.
    assert len([asked for asked in requests_of_other(api_server, log_length) if asked[0] not in READS]) <= 1


@pytest.mark.slow
def test_an_operator_that_cannot_renew_writes_nothing_until_it_can(
    own_lab: Lab, api_server: ApiServer, start_program: StartProgram
) -> None:
    elsewhere = Lab(api_server, own_lab.nats)
    own_lab.grant_everything(OTHER)
    revoke = elsewhere.grant_everything(OTHER)
    operator = start_program("first", OTHER_TOKEN, **elsewhere.share_a_lease())
    revoke()
    wait_until(lambda: since_renewal_s(elsewhere) > VALID_S)
    log_length = (api_server.folder / AUDIT_LOG).stat().st_size
    own_lab.apply("a")
    wait_until(lambda: "is not renewed: no writes" in operator.log.read_text())
    assert {verb for verb, resource in requests_of_other(api_server, log_length) if resource != "leases"} <= READS
    elsewhere.grant_everything(OTHER)
    assert image_of_a_new_job(own_lab, "a") == operator.image
