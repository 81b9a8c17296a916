"""Releases of deleted pods, so that their successors start at once.

Kubernetes starts the successor of a failed pod after ten seconds, then twenty, then forty, even if the failure policy
ignores the failure (a deletion, a drained node). It knows the failure only from the pod, which a finalizer of the Job
controller keeps for that time; without the pod there was no failure.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from rollfleet_api.exit_codes import NO_FAILURE
from rollfleet_operator.observed import Observed

TRACKING: Final = "batch.kubernetes.io/job-tracking"


@dataclass(frozen=True, slots=True)
class Release:
    """Remove the Job controller's finalizer from a pod.

    Attributes:
        pod: The pod's name.
        uid: The pod's UID.
        resource_version: The observed version of the pod.
        finalizers: The remaining finalizers.
    """

    pod: str
    uid: str
    resource_version: str
    finalizers: tuple[str, ...]


def releases(observed: Observed) -> Iterator[Release]:
    """Yield a release for each deleted pod that failed by a disruption. A pod that succeeded must be counted."""
    for pod in observed.pods:
        ignored = pod.disrupted or (pod.crash is not None and pod.crash.code in NO_FAILURE)
        if pod.deleting and pod.failed and ignored and TRACKING in pod.finalizers:
            kept = tuple(each for each in pod.finalizers if each != TRACKING)
            yield Release(pod.name, pod.uid, pod.resource_version, kept)
