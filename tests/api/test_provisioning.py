"""The plan of a job's stream: requests in their order, without a server."""

import json
from collections.abc import Mapping

import pytest
from tests.api.job_data import job_data

from rollfleet_api.jetstream import EXPECTED_SEQUENCE, JetStreamCode
from rollfleet_api.job import CollectorJob
from rollfleet_api.streams import API, Plan, Reply, Request, RequestRefused, provisioning
from rollfleet_api.validation import parse_job

KEPT = {"rollfleet.default.test.control": b"control"}
STATE = "rollfleet_default_test_state"
SPEC = "rollfleet.default.test.spec"
READ_SPEC = f"DIRECT.GET.{STATE}.{SPEC}"
ACCEPTED = b"{}"


def job(**delivery: object) -> CollectorJob:
    return parse_job(job_data({"name": "test"}, delivery=delivery))


def refusal(code: int) -> bytes:
    return json.dumps({"error": {"code": 400, "err_code": code, "description": "no"}}).encode()


def carry_out(plan: Plan, replies: Mapping[str, bytes]) -> list[Request]:
    """Send a plan's requests to a server with these replies; it accepts all other requests."""
    sent: list[Request] = []
    try:
        request = next(plan)
        while True:
            sent.append(request)
            request = plan.send(Reply.parse(request, replies.get(subject(request), ACCEPTED)))
    except StopIteration:
        return sent


def subject(request: Request) -> str:
    return request.subject.removeprefix(API)


def test_a_new_stream_is_created_and_the_state_is_restored_before_the_job_is_published() -> None:
    missing = refusal(JetStreamCode.STREAM_NOT_FOUND)
    sent = carry_out(provisioning(job(), KEPT), {f"STREAM.UPDATE.{STATE}": missing})
    assert [subject(each) for each in sent] == [f"STREAM.UPDATE.{STATE}", f"STREAM.CREATE.{STATE}", *KEPT, SPEC]
    assert sent[2].headers == {EXPECTED_SEQUENCE: "0"}


def test_workers_do_not_see_the_learners_variables() -> None:
    secret = {"spec": {"containers": [{"name": "learner", "env": [{"name": "TOKEN", "value": "secret"}]}]}}
    applied = {"kubectl.kubernetes.io/last-applied-configuration": json.dumps(secret)}
    data = job(maxBatchesAhead=2).dump()
    data["metadata"] = {"name": "test", "uid": "1", "generation": 2, "annotations": applied, "resourceVersion": "7"}
    data["spec"] |= {"learner": {"template": secret}, "template": secret}  # type: ignore[operator]
    sent = carry_out(provisioning(parse_job(data), {}), {READ_SPEC: b"{}"})[-1].data
    assert b"secret" not in sent
    found = parse_job(json.loads(sent))
    assert (found.metadata.uid, found.metadata.generation, found.spec.delivery.max_batches_ahead) == ("1", 2, 2)


def test_an_interrupted_restore_is_repeated() -> None:
    sent = carry_out(provisioning(job(), KEPT), {READ_SPEC: b""})  # the stream exists, the job does not
    assert [subject(each) for each in sent if not subject(each).startswith("STREAM.")] == [READ_SPEC, *KEPT, SPEC]


def test_a_newer_stored_message_stays() -> None:
    newer = {subject: refusal(JetStreamCode.WRONG_LAST_SEQUENCE) for subject in KEPT}
    assert carry_out(provisioning(job(), KEPT), {READ_SPEC: b""} | newer)[-1].subject == SPEC


def test_the_stream_of_an_earlier_job_of_the_name_is_made_anew() -> None:
    earlier = job().dump() | {"metadata": {"name": "test", "uid": "1"}}
    sent = carry_out(provisioning(job(), KEPT), {READ_SPEC: json.dumps(earlier).encode()})
    asked = [f"STREAM.{verb}.{STATE}" for verb in ("DELETE", "UPDATE")]
    assert [subject(each) for each in sent][2:] == [*asked, *KEPT, SPEC]


def test_a_stream_that_finds_no_memory_is_an_error_with_advice() -> None:
    code = JetStreamCode.INSUFFICIENT_RESOURCES
    advice = rf"STREAM.UPDATE.{STATE}: no; .*`spec.nats.resources.limits`.*\(error {code}\)"
    with pytest.raises(RequestRefused, match=advice) as error:
        carry_out(provisioning(job(), {}), {f"STREAM.UPDATE.{STATE}": refusal(code)})
    assert error.value.error_code == code
