"""The state of a job, its reason, and what to do."""

from typing import Any

import pytest
from tests.sdk.cluster.objects import condition, event, job

from rollfleet_api.diagnosis import ADVICE, UNSEEN, diagnose, stale


@pytest.mark.parametrize(
    ("conditions", "reason", "is_problem"),
    [
        ([condition("Failed", reason="Worst"), condition("Degraded", reason="WorkerCrashed")], "Worst", True),
        ([condition("Degraded", reason="Forbidden"), condition("Suspended", reason="Queued")], "Forbidden", True),
        ([condition("Complete", reason="TotalFrames"), condition("Degraded", "False")], "TotalFrames", False),
        ([condition("Suspended", reason="Suspended"), condition("Progressing", "False")], "Suspended", False),
        ([condition("Progressing", reason="Collecting"), condition("Ready")], "Collecting", False),
        ([], UNSEEN, True),
    ],
)
def test_the_worst_condition_is_the_reason(conditions: list[Any], reason: str, is_problem: bool) -> None:
    found = diagnose(job(conditions=conditions))
    assert (found.reason, found.is_problem) == (reason, is_problem)


@pytest.mark.parametrize(
    ("reason", "message", "advice"),
    [
        ("Unschedulable", "worker 0 waits for a node", "in `spec.template` with"),
        ("Unschedulable", "the learner waits for a node", "in `spec.learner.template` with"),
        ("Unschedulable", "the job's NATS server waits for a node", "in `spec.nats.template` with"),
        ("InsufficientResources", "the learner waits for a node", "(`resources` in `spec.learner.template`)"),
        ("InsufficientResources", "the job's NATS server waits for a node", "(`spec.nats.resources.requests`)"),
        ("Unschedulable", "environment server 3 waits for a node", "in `spec.env.servers.template` with"),
        ("InsufficientResources", "environment server 3 waits", "`spec.env.servers.resources.requests`) or fewer se"),
        ("PodSecurityViolation", 'pods are refused: pods "a-servers-1-x" is', "`spec.env.servers.template`"),
        ("ImagePullFailed", "the job's NATS server has no image", "`nats.image` of the chart"),
        ("PodSecurityViolation", 'pods are refused: pods "a-nats-1-x" is forbidden', "`spec.nats.template`"),
        ("PodSecurityViolation", 'pods are refused: pods "a-learner-1-x" is forbidden', "`spec.learner.template`"),
    ],
)
def test_advice_names_the_fields_of_the_pod_that_the_message_is_about(reason: str, message: str, advice: str) -> None:
    assert advice in diagnose(job(conditions=[condition("Degraded", reason=reason, message=message)])).advice


def test_a_warning_event_is_the_reason_while_workers_are_missing() -> None:
    missing = [condition("Ready", "False", since_s=60), condition("Progressing", reason="Starting")]
    newest, older = event("FailedMount", "secret not found"), event("Older", age_s=30)
    events = [newest, older, event("Scheduled", kind="Normal", age_s=1)]
    assert diagnose(job(conditions=missing), events).reason == "FailedMount"
    before_they_were = event("BackOff", age_s=90)
    assert diagnose(job(conditions=missing), [before_they_were]).reason == "Starting"
    assert diagnose(job(conditions=[condition("Ready"), missing[1]]), events).reason == "Starting"


def test_advice_names_the_job_and_the_worker() -> None:
    failed = condition("Failed", reason="TooManyRestarts", message="after 3 restarts worker 4 ended with code 1: no")
    assert "`rollfleet logs lab/cartpole --worker 4`" in diagnose(job(conditions=[failed])).advice
    assert "{" not in "".join(diagnose(job(conditions=[condition("Failed", reason=each)])).advice for each in ADVICE)


def test_a_wait_needs_advice_only_while_no_frames_come() -> None:
    waiting = [condition("Ready"), condition("Progressing", reason="WaitingForLearner")]
    assert diagnose(job(conditions=waiting)).advice
    assert not diagnose(job(conditions=waiting, framesPerSecond=10.0)).advice


def test_nan_is_the_reason_where_nothing_else_is_wrong_also_of_a_complete_job() -> None:
    complete, failed = condition("Complete", reason="LearnerDone"), condition("Failed", reason="WorkerFailed")
    for conditions in ([complete], [condition("Ready"), condition("Progressing", reason="Collecting")]):
        found = diagnose(job(conditions=conditions, nonFinite=3))
        assert (found.reason, found.is_problem) == ("NonFinite", True)
    assert diagnose(job(conditions=[failed], nonFinite=3)).reason == "WorkerFailed"


def test_a_change_that_no_operator_has_processed_is_reported() -> None:
    assert "generation 3, processed: 1" in stale(job(generation=3))
    assert stale(job()) == ""
