"""Problems of pods: the words of the scheduler, the kubelet and the API server, as one reason and one sentence."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from rollfleet_api.permissions import Role
from rollfleet_api.pods import Crash, Pod
from rollfleet_api.state.processes import Processes
from rollfleet_api.text import last_line

_IMAGE: Final = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError")
_BACK_OFF: Final = re.compile(r'^Back-off pulling image "[^"]*": \w+: ')
_CONTAINER: Final = ("CreateContainerConfigError", "CreateContainerError", "RunContainerError")
_RESTARTS: Final = "CrashLoopBackOff"
_CAPACITY: Final = ("cpu", "memory", "ephemeral-storage", "pods")
_REFUSALS: Final = {
    "failed quota": "ResourcesMissing",  # one that wants each container to have requests or limits
    "exceeded quota": "QuotaExceeded",
    "violates podsecurity": "PodSecurityViolation",
    "denied the request": "PodsRefused",
    "failed to create typed": "TemplateInvalid",
    "failed to convert": "TemplateInvalid",
    "is forbidden": "Forbidden",
}
"""The reasons of refusals, by the API server's words; the first one counts."""
EARLIER_JOB: Final = "EarlierJob"
"""The reason of a job that waits until the objects of an earlier one of its name are deleted."""

MAX_MESSAGE: Final = 1024
"""The most characters of a message in conditions and events."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem of a job: its `reason` for programs, one CamelCase word, and a `message` for people, a sentence."""

    reason: str
    message: str


def why_not_running(pod: Pod) -> Problem | None:
    """Return why a pod waits; None: it does not wait, or for no problem."""
    who = title(pod)
    if pod.unplaced:
        return Problem(_shortage(pod), f"{who} waits for a node{_requested(pod)}: {pod.unplaced}")
    if pod.waiting:
        word, message = pod.waiting
        if word in _IMAGE:
            cause = _BACK_OFF.sub("", message)  # the same while the kubelet tries and while it waits
            return Problem("ImagePullFailed", f"{who} has no image: {cause or message or word}")
        if word in _CONTAINER:
            return Problem("ContainerRefused", f"{who} cannot start: {message or word}")
        if word == _RESTARTS:
            known = Problem(f"{pod.role.word}Crashed", f"a container of {who} ends again and again: {message}")
            return crashed(pod, pod.crash) if pod.crash else known
    return None


def why_no_pods(refused: str) -> Problem | None:
    """Return why the API server refuses pods; None: it does not."""
    if not refused:
        return None
    return Problem(refused_for(refused, otherwise="PodsRefused"), f"pods are refused: {refused}")


def refused_for(message: str, *, otherwise: str) -> str:
    """Return the reason of a refusal by the API server, by its message; `otherwise`: the message shows none."""
    return next((reason for words, reason in _REFUSALS.items() if words in message.lower()), otherwise)


def crashed(pod: Pod, crash: Crash) -> Problem:
    """Return the failure of a pod, with the last line of its log."""
    last = last_line(crash.message) or crash.reason
    if crash.code is None:
        return Problem("EndedByNode", f"node {pod.node} ended {title(pod)} ({crash.reason}): {last}")
    cause = " (out of memory)" if crash.reason == "OOMKilled" else ""
    who = f"init container `{pod.failed_init}` of {title(pod)}" if pod.failed_init else title(pod)
    return Problem(f"{pod.role.word}Crashed", f"{who} ended with code {crash.code}{cause}: {last}")


def problems(observed: Processes) -> Iterator[Problem]:
    """Yield all that keeps pods from running now, the worst problem first."""
    refused = why_no_pods(observed.refused_pods)
    if refused:
        yield refused
    for pod in observed.pods:
        if pod.lost:
            yield Problem("NodeLost", f"node {pod.node} of {title(pod)} does not answer (Pod {pod.name})")
    live = [pod for pod in observed.pods if not pod.deleting]
    yield from (found for pod in live if (found := why_not_running(pod)))
    newest = last_crash(live)
    if newest:
        last, crash = newest
        if not any(pod.running and (pod.run, pod.index) == (last.run, last.index) for pod in live):
            yield crashed(last, crash)


def last_crash(pods: Iterable[Pod]) -> tuple[Pod, Crash] | None:
    """Return the newest crash."""
    found = [(pod, pod.crash) for pod in pods if pod.crash]
    return max(found, key=lambda each: each[0].crashed_s, default=None)


def title(pod: Pod) -> str:
    """Return the name of a pod in messages."""
    return {Role.LEARNER: "the learner", Role.NATS: "the job's NATS server"}.get(pod.role, pod.process)


def clip(message: str) -> str:
    """Shorten a message for conditions and events: the cluster, a worker or a user may have written it."""
    return message if len(message) <= MAX_MESSAGE else f"{message[: MAX_MESSAGE - 1]}…"


def _shortage(pod: Pod) -> str:
    """Return the reason for a pod without a node: which of its requests the scheduler cannot meet."""
    missing = set(re.findall(r"Insufficient ([^\s,.]+(?:\.[^\s,.]+)*)", pod.unplaced))
    if missing & set(pod.devices):
        return "InsufficientDevices"
    return "InsufficientResources" if missing & set(_CAPACITY) else "Unschedulable"


def _requested(pod: Pod) -> str:
    devices = ", ".join(f"{amount} {resource}" for resource, amount in pod.devices.items())
    return f" with {devices}" if devices else ""
