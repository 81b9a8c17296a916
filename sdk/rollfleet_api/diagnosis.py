"""The diagnosis of a job, on a cluster or on one machine, with advice: a pure function of its objects."""

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from rollfleet_api.status import Condition, ConditionType
from rollfleet_api.text import one_line
from rollfleet_api.views import EventView, JobView, View

UNSEEN: Final = "Unseen"
"""The reason of a job that no operator has processed. All other reasons come from the operator or Kubernetes."""

ADVICE: Final = {
    "ApiError": "If this lasts, the operator lacks a permission or the API server is unhealthy: see its log.",
    "ContainerRefused": "Check the commands, Secrets and ConfigMaps that `spec.template` names.",
    "EarlierJob": "Wait: Kubernetes deletes it, its pods last. If this lasts, see its finalizers.",
    "EndedByNode": "See the node's reason in the message: a limit, or a resource that it lacks. The pod is replaced.",
    "EnvServerCrashed": "See `rollfleet logs {job}`. The server restarts by itself, with new episodes.",
    "Error": "See the operator's log, and report it to the maintainers of Rollfleet.",
    "EvaluationCrashed": "See `rollfleet logs {job}`. The evaluation worker restarts by itself; the training goes on.",
    "FailedMount": "A volume of `spec.template` is missing, or the operator has not written the job's Secret yet.",
    "Forbidden": "A policy of the cluster, or a missing right, forbids it; show its administrators the message above.",
    "ImagePullFailed": "Check `spec.image`; for a private image, add `imagePullSecrets` to `spec.template`.",
    "InsufficientDevices": "Request fewer GPUs (`spec.resources.gpu`) or fewer workers, or add nodes.",
    "InsufficientResources": "Request less (`spec.resources.requests`) or fewer workers, or add nodes.",
    "Invalid": "Correct the field that the message names; `rollfleet validate` shows the correction.",
    "LearnerCrashed": "See `rollfleet logs {job} --learner`. The learner restarts by itself.",
    "LearnerFailed": "See `rollfleet logs {job} --learner`, fix it, and apply the job: a changed spec tries again.",
    "LearnerGone": "Change the spec, as each change tries again; then start the learner.",
    "NameTaken": "Rename the job, or delete the object that the message names. All that an earlier job has left: "
    "`kubectl -n {named.namespace} delete deploy,svc,job,sa,secret,netpol -l rollfleet.dev/job={named.name}`.",
    "NatsCrashed": "The server starts again by itself. See "
    "`kubectl -n {named.namespace} logs -p -l rollfleet.dev/role=nats,rollfleet.dev/job={named.name}`.",
    "NatsUnavailable": "Check that NATS runs and the operator reaches it. Workers continue as soon as it is back.",
    "NodeLost": "Repair the node. If it is gone for good: `kubectl delete node NODE`, and its pods are replaced.",
    "OperatorError": "This is a defect of the operator: report it to the maintainers of Rollfleet, with its log.",
    "NonFinite": "See the first one in the logs of workers and learner: `rollfleet logs {job}`, and with `--learner`.",
    "Pending": "See `kubectl describe pods` for the cause, then change the spec: each change tries again.",
    "PodSecurityViolation": "Remove what the namespace forbids from `spec.template`, or use another namespace.",
    "PodsRefused": "A webhook of the cluster refuses it; the message names it and its reason.",
    "Queued": "Wait for Kueue, or see its Workload: `kubectl get workloads`.",
    "QuotaExceeded": "Request less, or have the quota raised: `kubectl describe quota`.",
    "ResourcesMissing": "Write what the message asks for into `spec.resources`, or into the learner's template.",
    "SourceMissing": "Create the ConfigMap that `spec.source` names: `kubectl create configmap NAME --from-file=FILE`.",
    "Suspended": "`rollfleet resume {job}` starts the workers.",
    "TemplateInvalid": "Correct the template as the message says; `rollfleet validate` shows the place.",
    "TooManyRestarts": "See `rollfleet logs {job}{worker}`, fix it, and apply the job: a changed spec tries again.",
    "Unschedulable": "Compare node selectors and tolerations in `spec.template` with `kubectl describe nodes`.",
    UNSEEN: "If this lasts, check that the operator runs and has this namespace (`operator.namespaces` of the chart).",
    "WaitingForLearner": "Start one (`rollfleet submit JOB.yaml --learner FILE`, or `rollfleet.connect('{job}')`), or "
    "see why it is stuck: `rollfleet logs {job} --learner`.",
    "WaitingForWeights": "Let the learner send weights: `collector.update_policy_weights_()`, or `weights.interval`.",
    "WorkerCrashed": "See `rollfleet logs {job}{worker}`. The worker restarts by itself.",
    "WorkerFailed": "See `rollfleet logs {job}{worker}`, fix it, and apply the job: a changed spec tries again.",
    "WorkersLeft": "See `rollfleet logs {job}`: the image's command must be `rollfleet worker`, of the same version.",
}
"""Advice by reason, with `{job}`, `{named}` (its metadata) and `{worker}` as placeholders."""

STOPPED: Final = "Stopped"
"""The reason, and the state, of a run on one machine that its user stopped."""

_OF_A_RUN: Final = {
    "Error": "",
    "LearnerGone": "See `rollfleet logs {job} --learner`, fix it, and start the run again.",
    "NatsUnavailable": "Wait: nats-server restarts by itself, and the workers continue.",
    "NonFinite": "See the first one in the output of the run: `collect.nonFinite: Error` ends it there.",
    "WaitingForLearner": "If this lasts, see `rollfleet logs {job} --learner`.",
    "WorkerStuck": "See `rollfleet logs {job}{worker}`.",
}
"""Advice about a run on one machine, where it differs. `{job}` is its folder."""

_APPLY_IT: Final = "apply the job: a changed spec tries again"

_NOT_OF_WORKERS: Final = re.compile(
    r"pods \"\S+-(?:(learner|nats)|(server)s)-|the (?:job's )?(learner|NATS)\b|environment (server)\b"
)
_PLACES: Final = {
    "learner": {
        r"`spec\.(image|resources)[.\w]*`": r"`\1` in `spec.learner.template`",
        r"`spec\.template`": "`spec.learner.template`",
    },
    "nats": {r"`spec\.image`": "`nats.image` of the chart", r"`spec\.(resources|template)": r"`spec.nats.\1"},
    "server": {r"`spec\.(resources|template)": r"`spec.env.servers.\1", "workers": "servers"},
}
"""The fields of the learner and of servers, in place of the workers' in an advice, by the words of a message."""


class Diagnosis(View):
    """The state of a job, and its explanation.

    Attributes:
        state: The job's state, in one word.
        reason: The reason, in one CamelCase word; empty if nothing needs an explanation.
        message: The reason in the words of the operator or of Kubernetes.
        advice: What to do; empty if nothing helps or is needed.
        is_problem: Whether the user has to act.
    """

    state: str
    reason: str = ""
    message: str = ""
    advice: str = ""
    is_problem: bool = False

    def __str__(self) -> str:
        """Return all of it in one line, with the state first."""
        reason = f" ({self.reason})" if self.reason else ""
        explanation = ". ".join(one_line(text).rstrip(".") for text in (self.message, self.advice) if text)
        return f"{self.state}{reason}" + (f": {explanation}" if explanation else "")


def diagnose(job: JobView, events: Sequence[EventView] = (), *, run: str = "") -> Diagnosis:
    """Diagnose a job. NaN and infinity matter where nothing else is wrong, also at its end.

    `run` is the folder of a run on one machine; empty: the job is a cluster's.
    """
    found = _diagnose(job, events, run)
    if not job.status.non_finite or found.is_problem:
        return found
    message = "frames, or the weights, had NaN or infinity"
    return _explained(job, run, found.state, "NonFinite", message, is_problem=True)


def _diagnose(job: JobView, events: Sequence[EventView], run: str) -> Diagnosis:
    state = str(job.status.phase or "Unknown")
    if job.metadata.deletion_timestamp:
        return Diagnosis(state="Deleting", message="waiting for the deletion of its pods and Secrets")
    if failed := job.status.held(ConditionType.FAILED):
        return _explained(job, run, state, failed.reason, failed.message, is_problem=True)
    if complete := job.status.held(ConditionType.COMPLETE):
        return _explained(job, run, state, complete.reason, complete.message)
    if degraded := job.status.held(ConditionType.DEGRADED):
        return _explained(job, run, state, degraded.reason, degraded.message, is_problem=True)
    if suspended := job.status.held(ConditionType.SUSPENDED):
        state = STOPPED if suspended.reason == STOPPED else state
        return _explained(job, run, state, suspended.reason, suspended.message)
    if not job.status.conditions:
        return _explained(job, run, state, UNSEEN, "no operator has processed this job yet", is_problem=True)
    if job.status.held(ConditionType.READY) is None and (warning := _warning(job, events)):
        return _explained(
            job, run, state, warning.reason, f"{warning.involved_object.name}: {warning.message}", is_problem=True
        )
    progressing = job.status.condition(ConditionType.PROGRESSING)
    if progressing is None:
        return Diagnosis(state=state)
    found = _explained(job, run, state, progressing.reason, progressing.message)
    return found.model_copy(update={"advice": ""}) if job.status.frames_per_second else found  # it waits now and then


def stale(job: JobView) -> str:
    """Return a note if the operator has not processed the newest spec; empty otherwise."""
    seen = job.status.observed_generation
    if seen is None or seen >= job.metadata.generation:
        return ""
    return (
        f"The operator has not processed the last change yet (generation {job.metadata.generation}, processed: {seen})."
    )


def _explained(job: JobView, run: str, state: str, reason: str, message: str, *, is_problem: bool = False) -> Diagnosis:
    found = re.search(r"\bworker (\d+)\b", message)
    worker = f" --worker {found[1]}" if found else ""
    advice = ADVICE.get(reason, "")
    if run:
        advice = _OF_A_RUN.get(reason, advice.replace(_APPLY_IT, "start the run again"))
    advice = advice.format(job=run or job.key, named=job.metadata, worker=worker)
    if of := _NOT_OF_WORKERS.search(message):
        for field, place in _PLACES[of[of.lastindex or 0].lower()].items():
            advice = re.sub(field, place, advice)
    return Diagnosis(state=state, reason=reason, message=message, advice=advice, is_problem=is_problem)


def _warning(job: JobView, events: Sequence[EventView]) -> EventView | None:
    """Return the newest warning since workers are missing, such as the kubelet's, which no condition reports."""
    since = _time(job.status.condition(ConditionType.READY))
    found = [event for event in events if event.type == "Warning" and event.time >= since]
    return max(found, key=lambda event: event.time, default=None)


def _time(condition: Condition | None) -> datetime:
    if condition is None or condition.last_transition_time is None:
        return datetime.min.replace(tzinfo=UTC)
    return datetime.fromisoformat(condition.last_transition_time)
