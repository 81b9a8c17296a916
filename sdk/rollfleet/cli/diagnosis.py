"""What is the matter with a job on a cluster, and what to do about it: a pure function of what kubectl shows."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from rollfleet.cli.kubectl_objects import EventView, JobView
from rollfleet_api.status import Condition, ConditionType

UNSEEN: Final = "Unseen"
"""Our own word for a job that no operator has looked at; the other words are the operator's, or Kubernetes'."""

ADVICE: Final = {
    "ApiError": "If it stays: the operator lacks a right, or the API server is in trouble; its log says more.",
    "ContainerRefused": "Check what `spec.template` names: a command, a Secret or a ConfigMap that is not there.",
    "Error": "Look into the operator's log, and tell us.",
    "FailedMount": "A volume of `spec.template` is not there, or the operator has not written the job's Secret yet.",
    "Forbidden": "A policy of the cluster refuses the pods; ask whoever runs it, with the message above.",
    "ImagePullFailed": "Check `spec.image`; for a private one, add `imagePullSecrets` to `spec.template`.",
    "InsufficientDevices": "Ask for fewer GPUs (`spec.resources.gpu`), for fewer workers, or add nodes.",
    "InsufficientResources": "Ask for less (`spec.resources.requests`), for fewer workers, or add nodes.",
    "Invalid": "Correct the field that the message names; `rollfleet validate` says more.",
    "LearnerCrashed": "See `rollfleet logs {job} --learner`. It is started again by itself.",
    "LearnerFailed": "See `rollfleet logs {job} --learner`, mend it, and apply the job: a changed spec is tried again.",
    "NameTaken": "Delete or rename the object that the message names, or give the job another name.",
    "NatsUnavailable": "See whether NATS runs and the operator reaches it. Workers go on as soon as it is back.",
    "Pending": "See `kubectl describe pods` for what the pod waits for, then change the spec: that tries it again.",
    "PodSecurityViolation": "Take out of `spec.template` what the namespace does not allow, or use another namespace.",
    "PodsRefused": "A webhook of the cluster refuses the pods; its message tells which one, and why.",
    "Queued": "Wait for Kueue, or see its Workload: `kubectl get workloads`.",
    "QuotaExceeded": "Ask for less, or have the quota raised: `kubectl describe quota`.",
    "SourceMissing": "Make the ConfigMap that `spec.source` names: `kubectl create configmap NAME --from-file=FILE`.",
    "Suspended": "`rollfleet resume {job}` starts the workers.",
    "TemplateInvalid": "Correct `spec.template` as the message says.",
    "TooManyRestarts": "See `rollfleet logs {job}{worker}`, mend it, and apply the job: a changed spec is tried again.",
    "Unschedulable": "Compare node selectors and tolerations in `spec.template` with `kubectl describe nodes`.",
    UNSEEN: "See whether the operator runs, and watches this namespace (`operator.namespaces` of the chart).",
    "WaitingForLearner": "Start the learner, or see why it stands: `rollfleet logs {job} --learner` where it is a pod.",
    "WaitingForWeights": "The learner has to send some: `collector.update_policy_weights_()`, or `weights.interval`.",
    "WorkerCrashed": "See `rollfleet logs {job}{worker}`. It is started again by itself.",
    "WorkerHopeless": "See `rollfleet logs {job}{worker}`, mend it, and apply the job: a changed spec is tried again.",
}
"""What to do, by the reason that is told; `{job}` and `{worker}` are put in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What is the matter.

    Attributes:
        state: Of the job, in one word.
        reason: Why, in one CamelCase word; empty: there is nothing to explain.
        message: Why, in the words of whoever found it.
        advice: What to do; empty: nothing, or nothing that we know.
        wrong: Whether somebody should do something.
    """

    state: str
    reason: str = ""
    message: str = ""
    advice: str = ""
    wrong: bool = False


def diagnose(job: JobView, events: Sequence[EventView] = ()) -> Diagnosis:
    """What is the matter with a job.

    Args:
        job: The job.
        events: Of the job and of what was made for it.
    """
    state = str(job.status.phase or "Unknown")
    if job.metadata.deletion_timestamp:
        holding = "it waits for what it owns to be gone"
        return Diagnosis(state="Deleting", message=holding)
    if failed := job.held(ConditionType.FAILED):
        return _told(job, state, failed.reason, failed.message, wrong=True)
    if complete := job.held(ConditionType.COMPLETE):
        return _told(job, state, complete.reason, complete.message)
    if degraded := job.held(ConditionType.DEGRADED):
        return _told(job, state, degraded.reason, degraded.message, wrong=True)
    if suspended := job.held(ConditionType.SUSPENDED):
        return _told(job, state, suspended.reason, suspended.message)
    if not job.status.conditions:
        return _told(job, state, UNSEEN, "no operator has looked at this job", wrong=True)
    if job.held(ConditionType.READY) is None and (warning := _warning(job, events)):
        return _told(job, state, warning.reason, f"{warning.involved_object.name}: {warning.message}", wrong=True)
    progressing = job.condition(ConditionType.PROGRESSING)
    return _told(job, state, progressing.reason, progressing.message) if progressing else Diagnosis(state=state)


def stale(job: JobView) -> str:
    """What to say where the operator has not seen the newest spec; empty: it has."""
    seen = job.status.observed_generation
    if seen is None or seen >= job.metadata.generation:
        return ""
    return f"The operator has not looked at the last change yet (generation {job.metadata.generation}, seen: {seen})."


def _told(job: JobView, state: str, reason: str, message: str, *, wrong: bool = False) -> Diagnosis:
    named = re.search(r"\bworker (\d+)\b", message)
    advice = ADVICE.get(reason, "").format(job=job.key, worker=f" --worker {named[1]}" if named else "")
    return Diagnosis(state=state, reason=reason, message=message, advice=advice, wrong=wrong)


def _warning(job: JobView, events: Sequence[EventView]) -> EventView | None:
    """The newest warning since workers are missing: the kubelet's, for one, which no condition tells of."""
    since = _time(job.condition(ConditionType.READY))
    found = [event for event in events if event.type == "Warning" and event.time >= since]
    return max(found, key=lambda event: event.time, default=None)


def _time(condition: Condition | None) -> datetime:
    if condition is None or condition.last_transition_time is None:
        return datetime.min.replace(tzinfo=UTC)
    return datetime.fromisoformat(condition.last_transition_time)
