"""The programs that decide when a job's pods start, such as Kueue: a row each.

A scheduler finds the Kubernetes Jobs by labels, which go to them from the CollectorJob; other labels make other
Kubernetes Jobs. It suspends and resumes them, so that the operator resumes none, and deletes those that must not run.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple


class Scheduler(NamedTuple):
    """A program that decides when a job's pods start.

    Attributes:
        prefix: The prefix of the labels that it reads: the queue, and others such as the priority.
        queue: The label of the queue. With it, a job of either kind waits for the scheduler.
    """

    prefix: str
    queue: str


SCHEDULERS: Final = (
    # Kueue admits a Kubernetes Job when its queue has room for all its pods. It may also put one that has no queue into
    # the default queue of its namespace.
    Scheduler(prefix="kueue.x-k8s.io/", queue="kueue.x-k8s.io/queue-name"),
)


def scheduler_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """Return those of a CollectorJob's labels that are for schedulers."""
    prefixes = tuple(scheduler.prefix for scheduler in SCHEDULERS)
    return {key: value for key, value in labels.items() if key.startswith(prefixes)}


def is_held(labels: Mapping[str, str]) -> bool:
    """Return whether a scheduler decides when the pods of an object with these labels start.

    Example:
        >>> is_held({"kueue.x-k8s.io/queue-name": "gpus"})
        True
    """
    return any(scheduler.queue in labels for scheduler in SCHEDULERS)
