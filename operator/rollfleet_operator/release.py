"""Lets go of pods that somebody took away, so that their successors need not wait.

Kubernetes starts the successor of a pod that failed after ten seconds, then twenty, then forty, even where the failure
policy says that it costs nothing, as a deletion or a drained node does. It knows of the failure by the pod alone, which
a finalizer of the Job controller holds for that long; without the pod there was no failure.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from rollfleet_operator.observed import Observed
from rollfleet_operator.workloads import EXIT_TERMINATED

TRACKING: Final = "batch.kubernetes.io/job-tracking"


@dataclass(frozen=True, slots=True)
class Release:
    """Take the Job controller's finalizer off a pod.

    Attributes:
        pod: Its name.
        uid: Which one of that name.
        resource_version: The state in which the finalizers were seen.
        finalizers: Those that stay.
    """

    pod: str
    uid: str
    resource_version: str
    finalizers: tuple[str, ...]


def releases(observed: Observed) -> Iterator[Release]:
    """Pods that were deleted, have ended, and whose end costs nothing."""
    for pod in observed.pods:
        spared = pod.disrupted or (pod.crash is not None and pod.crash.code == EXIT_TERMINATED)
        if pod.deleting and pod.finished and spared and TRACKING in pod.finalizers:
            kept = tuple(each for each in pod.finalizers if each != TRACKING)
            yield Release(pod.name, pod.uid, pod.resource_version, kept)
