"""Why workers do not run: what the scheduler, the kubelet and the API server say, in one word and one sentence."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from rollfleet_api.permissions import Role
from rollfleet_operator.observed import Crash, Observed, Pod

_IMAGE: Final = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError")
_CONTAINER: Final = ("CreateContainerConfigError", "CreateContainerError", "RunContainerError")
_CAPACITY: Final = ("cpu", "memory", "ephemeral-storage", "pods")
MAX_MESSAGE: Final = 1024


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong.

    Attributes:
        reason: One word in CamelCase, for programs.
        message: For people.
    """

    reason: str
    message: str


def why_not_running(pod: Pod) -> Problem | None:
    """Why a pod waits; None: it does not, or there is nothing wrong with it."""
    who = title(pod)
    if pod.unplaced:
        return Problem(_shortage(pod), f"{who} waits for a node{_wish(pod)}: {pod.unplaced}")
    if pod.waiting:
        word, message = pod.waiting
        if word in _IMAGE:
            return Problem("ImagePullFailed", f"{who} has no image: {message or word}")
        if word in _CONTAINER:
            return Problem("ContainerRefused", f"{who} cannot be started: {message or word}")
    return None


def why_no_pods(refused: str) -> Problem | None:
    """Why the API server lets a Kubernetes Job make no pods; None: it does."""
    if not refused:
        return None
    lowered = refused.lower()
    if "exceeded quota" in lowered:
        reason = "QuotaExceeded"
    elif "violates podsecurity" in lowered:
        reason = "PodSecurityViolation"
    else:
        reason = "Forbidden" if "forbidden" in lowered else "PodsRefused"
    return Problem(reason, f"pods are refused: {refused}")


def crashed(pod: Pod, crash: Crash) -> Problem:
    """How a pod ended, with the last line that it wrote."""
    lines = [line.strip() for line in crash.message.splitlines() if line.strip()]
    said = lines[-1] if lines else crash.reason
    cause = " (out of memory)" if crash.reason == "OOMKilled" else ""
    kind = "Worker" if pod.role is Role.WORKER else "Learner"
    return Problem(f"{kind}Crashed", f"{title(pod)} ended with code {crash.code}{cause}: {said}"[:MAX_MESSAGE])


def problems(observed: Observed) -> Iterator[Problem]:
    """All that keeps pods from running now, the worst first."""
    refused = why_no_pods(observed.refused_pods)
    if refused:
        yield refused
    live = [pod for pod in observed.pods if not pod.deleting]
    yield from (found for pod in live if (found := why_not_running(pod)))
    newest = last_crash(live)
    if newest and not any(_stands_in(other, newest[0]) for other in live):
        yield crashed(*newest)


def last_crash(pods: Iterable[Pod]) -> tuple[Pod, Crash] | None:
    """The crash that happened last."""
    found = [(pod, pod.crash) for pod in pods if pod.crash]
    return max(found, key=lambda each: each[1].finished_s, default=None)


def title(pod: Pod) -> str:
    """What a pod is called in messages."""
    return f"worker {pod.index}" if pod.role is Role.WORKER else "the learner"


def _stands_in(pod: Pod, crashed: Pod) -> bool:
    """Whether a pod runs in place of one that crashed."""
    return pod.running and (pod.run, pod.index) == (crashed.run, crashed.index)


def _shortage(pod: Pod) -> str:
    """What the scheduler found too little of, of what this pod asks for."""
    missing = set(re.findall(r"Insufficient ([^\s,.]+(?:\.[^\s,.]+)*)", pod.unplaced))
    if missing & set(pod.devices):
        return "InsufficientDevices"
    return "InsufficientResources" if missing & set(_CAPACITY) else "Unschedulable"


def _wish(pod: Pod) -> str:
    wishes = ", ".join(f"{amount} {resource}" for resource, amount in pod.devices.items())
    return f" with {wishes}" if wishes else ""
