"""Kueue: it admits a Kubernetes Job with the label of a queue when the queue has room for all its pods."""

from collections.abc import Mapping
from typing import Final

PREFIX: Final = "kueue.x-k8s.io/"
QUEUE_NAME: Final = "kueue.x-k8s.io/queue-name"


class Kueue:
    """Kueue, as a `Scheduler`. It may also put a Kubernetes Job into the default queue of its namespace."""

    def labels(self, labels: Mapping[str, str]) -> dict[str, str]:
        """Return the queue, and what else Kueue reads, such as the priority."""
        return {key: value for key, value in labels.items() if key.startswith(PREFIX)}

    def holds(self, labels: Mapping[str, str]) -> bool:
        """Return whether there is a queue."""
        return QUEUE_NAME in labels
