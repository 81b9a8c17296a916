"""What Prometheus is told: how the operator does, and how each job does, by its status."""

import time
from collections import Counter as Tally
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from rollfleet_operator.cache import Cache
from rollfleet_operator.nats_port import JobKey
from rollfleet_operator.work_queue import WorkQueue

_OF_JOBS: Final = (
    ("workers_desired", "Workers that there should be", ("workers", "desired")),
    ("workers_ready", "Workers that run and report", ("workers", "ready")),
    ("frames", "Frames that the learner has taken", ("frames",)),
    ("frames_per_second", "Frames a second, over the last half minute", ("framesPerSecond",)),
    ("published_version", "The newest version of the weights", ("publishedVersion",)),
    ("applied_version", "The oldest version that a worker still acts by", ("appliedVersion",)),
    ("batches_delivered", "Batches that the learner has taken", ("batches", "delivered")),
    ("batches_dropped", "Batches that were too old, or pushed out of a full stream", ("batches", "dropped")),
    ("worker_restarts", "Restarts of workers, all together", ("restarts",)),
)


class Outcome:
    """How a look ended."""

    def __init__(self) -> None:
        self.result = "done"

    def failed(self) -> None:
        """It could not be brought to its end."""
        self.result = "failed"


class Metrics:
    """All metrics of one operator, in a registry of their own.

    Args:
        cache: What is known of the jobs.
        queue: Jobs that wait for a look.
    """

    def __init__(self, cache: Cache, queue: WorkQueue[JobKey]) -> None:
        self._registry = CollectorRegistry()
        self._looks = Counter("rollfleet_reconciliations", "Looks at jobs", ["result"], registry=self._registry)
        self._seconds = Histogram(
            "rollfleet_reconciliation_seconds", "Seconds that a look at a job takes", registry=self._registry
        )
        self._registry.register(_Jobs(cache, queue))

    @contextmanager
    def timed(self) -> Iterator[Outcome]:
        """Count a look, and how long it takes."""
        began, outcome = time.perf_counter(), Outcome()
        try:
            yield outcome
        finally:
            self._looks.labels(outcome.result).inc()
            self._seconds.observe(time.perf_counter() - began)

    def exposition(self) -> bytes:
        """All of them, as Prometheus reads them."""
        return generate_latest(self._registry)


class _Jobs(Collector):
    """Reads the statuses at each scrape, so that a job that is gone leaves nothing behind."""

    def __init__(self, cache: Cache, queue: WorkQueue[JobKey]) -> None:
        self._cache, self._queue = cache, queue

    def collect(self) -> Iterator[Metric]:
        """The metrics now."""
        statuses = {key: manifest.get("status") or {} for key, manifest in self._cache.jobs().items()}
        yield GaugeMetricFamily("rollfleet_queue_length", "Jobs that wait for a look", value=len(self._queue))
        phases = GaugeMetricFamily("rollfleet_jobs", "CollectorJobs", labels=["phase"])
        for phase, count in Tally(status.get("phase", "Unknown") for status in statuses.values()).items():
            phases.add_metric([phase], count)
        yield phases
        for name, documentation, path in _OF_JOBS:
            family = GaugeMetricFamily(f"rollfleet_job_{name}", documentation, labels=["namespace", "name"])
            for key, status in statuses.items():
                family.add_metric(list(key), _at(status, path) or 0)
            yield family


def _at(status: Any, path: tuple[str, ...]) -> Any:
    for part in path:
        status = (status or {}).get(part)
    return status
