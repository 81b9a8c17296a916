"""Kueue, which decides when the pods of jobs in its queues start.

It finds the Kubernetes Jobs by labels, which go to them from the CollectorJob; other labels make other Kubernetes Jobs.
It admits a Kubernetes Job when its queue has room for all its pods: it suspends and resumes them, so that the operator
resumes none, and deletes those that must not run.
"""

from collections.abc import Mapping
from typing import Final

PREFIX: Final = "kueue.x-k8s.io/"
"""The prefix of the labels that it reads: the queue, and others such as the priority."""

QUEUE: Final = f"{PREFIX}queue-name"
"""The label of the queue. Kueue may also put a Kubernetes Job without it into the default queue of its namespace."""


def scheduler_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """Return those of a CollectorJob's labels that Kueue reads."""
    return {key: value for key, value in labels.items() if key.startswith(PREFIX)}


def is_held(labels: Mapping[str, str]) -> bool:
    """Return whether Kueue decides when the pods of an object with these labels start.

    Example:
        >>> is_held({"kueue.x-k8s.io/queue-name": "gpus"})
        True
    """
    return QUEUE in labels
