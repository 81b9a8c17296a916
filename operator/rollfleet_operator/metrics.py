"""Metrics for Prometheus: the operator's reconciliations, and each job's status."""

from collections import Counter as Tally
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from rollfleet_operator.cache import Cache
from rollfleet_operator.nats_port import JobKey
from rollfleet_operator.watch import Watch
from rollfleet_operator.work_queue import WorkQueue

_OF_JOBS: Final = (
    ("workers_desired", "Workers that should run", ("workers", "desired")),
    ("workers_ready", "Workers that run and send heartbeats", ("workers", "ready")),
    ("frames", "Frames that the learner has taken", ("frames",)),
    ("frames_per_second", "Frames per second over the last 30 seconds", ("framesPerSecond",)),
    ("mean_return", "Mean return of the last 100 episodes", ("meanReturn",)),
    ("episodes", "Episodes that have ended since the learner connected", ("episodes",)),
    ("evaluation_mean_return", "Mean return of the newest evaluation", ("evaluation", "meanReturn")),
    ("evaluation_version", "The version of the newest evaluation", ("evaluation", "version")),
    ("non_finite", "Frames with NaN or infinity, and versions of the weights with NaN", ("nonFinite",)),
    ("lag", "Versions between the newest one and that of the learner's last batch", ("lag",)),
    ("learner_waited_seconds", "Seconds that the learner's loop has waited for data", ("waits", "learnerSeconds")),
    (
        "workers_waited_for_learner_seconds",
        "Seconds that the workers have waited until the learner took earlier batches, or began a round",
        ("waits", "workersForLearnerSeconds"),
    ),
    (
        "workers_waited_for_weights_seconds",
        "Seconds that the workers have waited for newer weights",
        ("waits", "workersForWeightsSeconds"),
    ),
    (
        "workers_waited_for_environments_seconds",
        "Seconds that the workers' environments have taken",
        ("waits", "workersForEnvironmentsSeconds"),
    ),
    ("published_version", "The newest version of the weights", ("publishedVersion",)),
    ("applied_version", "The oldest version that a worker still uses", ("appliedVersion",)),
    ("env_version", "The newest version of the environments' settings", ("envVersion",)),
    ("batches_delivered", "Batches that the learner has taken", ("batches", "delivered")),
    ("batches_dropped", "Collected batches that were not delivered: too old, or lost", ("batches", "dropped")),
    ("worker_restarts", "Restarts of all workers", ("restarts",)),
)


_EPISODES: Final = ("episodeStatistics", "number")
_BY_NAME: Final = (
    ("episode_mean", "Mean of a number of the last 100 episodes", *_EPISODES, "mean"),
    ("episode_min", "Smallest value of a number of the last 100 episodes", *_EPISODES, "min"),
    ("episode_max", "Greatest value of a number of the last 100 episodes", *_EPISODES, "max"),
    ("episode_count", "How many of the last 100 episodes have a number", *_EPISODES, "count"),
    ("failed_episodes", "Episodes that a failure of their environment ended", "failedEpisodes", "error", None),
)
"""Metrics with a value for each of several names: their field of the status, the label, and the field of a value."""

_UNKNOWN_AT_FIRST: Final = ("mean_return", "evaluation_mean_return", "evaluation_version")
"""Metrics that are missing without a value: 0 would be a return."""


class Metrics(Collector):
    """All metrics of one operator, in a registry of their own. `dropped` returns the number of dropped messages.

    Those of jobs are read from their statuses at each scrape: a deleted job leaves nothing behind.
    """

    def __init__(
        self,
        cache: Cache,
        queue: WorkQueue[JobKey],
        watches: Sequence[Watch] = (),
        dropped: Callable[[], int] = lambda: 0,
    ) -> None:
        self._cache, self._queue, self._watches, self._dropped = cache, queue, watches, dropped
        self._registry = CollectorRegistry()
        self._reconciliations = Counter(
            "rollfleet_reconciliations", "Reconciliations of jobs", ["result"], registry=self._registry
        )
        self._seconds = Histogram(
            "rollfleet_reconciliation_seconds", "Seconds for the reconciliation of a job", registry=self._registry
        )
        self._registry.register(self)

    def count(self, seconds: float, *, failed: bool) -> None:
        """Count a reconciliation that took this long."""
        self._reconciliations.labels("failed" if failed else "done").inc()
        self._seconds.observe(seconds)

    def exposition(self) -> bytes:
        """Return all metrics in Prometheus's text format."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of the queue, the watches and the jobs; the registry calls it."""
        statuses = {key: manifest.get("status") or {} for key, manifest in self._cache.jobs().items()}
        yield GaugeMetricFamily("rollfleet_queue_length", "Jobs that wait for a reconciliation", value=len(self._queue))
        yield CounterMetricFamily(
            "rollfleet_messages_dropped",
            "Messages of jobs that the operator did not keep: too large, too many, or of workers that do not exist",
            value=self._dropped(),
        )
        refused = GaugeMetricFamily(
            "rollfleet_namespace_refused",
            "Whether the API server refuses the operator the list of a namespace; no label: of the cluster",
            labels=["namespace"],
        )
        for namespace in {watch.namespace for watch in self._watches}:
            refused.add_metric(
                [namespace or ""], any(each.refused for each in self._watches if each.namespace == namespace)
            )
        yield refused
        phases = GaugeMetricFamily("rollfleet_jobs", "CollectorJobs", labels=["phase"])
        for phase, count in Tally(status.get("phase", "Unknown") for status in statuses.values()).items():
            phases.add_metric([phase], count)
        yield phases
        for name, documentation, path in _OF_JOBS:
            family = GaugeMetricFamily(f"rollfleet_job_{name}", documentation, labels=["namespace", "name"])
            for key, status in statuses.items():
                value = _at(status, path)
                if value is not None or name not in _UNKNOWN_AT_FIRST:
                    family.add_metric(list(key), value or 0)
            yield family
        for name, documentation, field, label, part in _BY_NAME:
            family = GaugeMetricFamily(f"rollfleet_job_{name}", documentation, labels=["namespace", "name", label])
            for key, status in statuses.items():
                for each, number in (status.get(field) or {}).items():
                    family.add_metric([*key, each], number[part] if part else number)
            yield family


def _at(status: Any, path: tuple[str, ...]) -> Any:
    for part in path:
        status = (status or {}).get(part)
    return status
