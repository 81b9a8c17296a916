"""The seam to programs that decide when a job's pods start, such as Kueue.

A scheduler finds the Kubernetes Jobs by labels, which go to them from the CollectorJob; other labels make other
Kubernetes Jobs. It suspends and resumes them, so that the operator resumes none, and deletes those that must not run.
"""

from collections.abc import Mapping
from typing import Final, Protocol

from rollfleet_operator.kueue import Kueue

Labels = Mapping[str, str]


class Scheduler(Protocol):
    """A program that decides when a job's pods start.

    Example:
        >>> Kueue().holds({"kueue.x-k8s.io/queue-name": "gpus"})
        True
    """

    def labels(self, labels: Labels) -> dict[str, str]:
        """Return those of a CollectorJob's labels that its Kubernetes Jobs get."""

    def holds(self, labels: Labels) -> bool:
        """Return whether it decides when the pods of a job of either kind with these labels start."""


SCHEDULERS: Final[tuple[Scheduler, ...]] = (Kueue(),)


def scheduler_labels(labels: Labels) -> dict[str, str]:
    """Return those of a CollectorJob's labels that are for schedulers."""
    return {key: value for scheduler in SCHEDULERS for key, value in scheduler.labels(labels).items()}


def is_held(labels: Labels) -> bool:
    """Return whether a scheduler decides when the pods of an object with these labels start."""
    return any(scheduler.holds(labels) for scheduler in SCHEDULERS)
