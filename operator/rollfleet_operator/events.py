"""Kubernetes events about a job: the changes between two statuses, each reported once and not in a storm."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from rollfleet_api.job import API_VERSION, KIND, CollectorJob, CollectorJobStatus
from rollfleet_api.state.problems import clip
from rollfleet_api.status import Condition, ConditionStatus, ConditionType
from rollfleet_api.times import format_time
from rollfleet_operator.manifest import Manifest

QUIET_S: Final = 60.0
"""Shortest interval between equal events: a condition that flips back and forth is reported once."""

COMPONENT: Final = "rollfleet"


@dataclass(frozen=True, slots=True)
class Event:
    """An event about a job, `Normal` or `Warning`."""

    severity: str
    reason: str
    message: str


def events_between(before: CollectorJobStatus | None, now: CollectorJobStatus) -> Iterator[Event]:
    """Yield the events for the change from one status to the next."""
    before = before or CollectorJobStatus()
    known = {condition.type: condition for condition in before.conditions}
    for condition in now.conditions:
        earlier = known.get(condition.type)
        held = earlier is not None and earlier.status is ConditionStatus.TRUE
        holds = condition.status is ConditionStatus.TRUE
        same = earlier is not None and earlier.reason == condition.reason
        match condition.type:
            case ConditionType.DEGRADED if holds and not (held and same):
                yield _announce("Warning", condition)
            case ConditionType.FAILED if holds and not held:
                yield _announce("Warning", condition)
            case ConditionType.COMPLETE if holds and not held:
                yield Event("Normal", "Complete", condition.message)
            case ConditionType.SUSPENDED if holds and not held:
                yield Event("Normal", "Suspended", condition.message)
            case ConditionType.SUSPENDED if held and not holds:
                yield Event("Normal", "Resumed", "the workers may run again")
            case ConditionType.PROGRESSING if condition.reason == "Rolling" and not same:
                yield _announce("Normal", condition)
            case ConditionType.READY if holds and not held:
                yield _announce("Normal", condition)
    if before.observed_generation is not None and 0 < before.workers.desired != now.workers.desired > 0:
        scaled = f"from {before.workers.desired} to {now.workers.desired} workers"
        yield Event("Normal", "Scaled", scaled)


def _announce(severity: str, condition: Condition) -> Event:
    return Event(severity, condition.reason, condition.message)


class EventThrottle:
    """A filter that drops the repeated events of one job."""

    def __init__(self) -> None:
        self._reported_s: dict[tuple[str, str], float] = {}

    def admit(self, found: Iterable[Event], now_s: float) -> list[Event]:
        """Return the events that were not reported within `QUIET_S`."""
        self._reported_s = {
            key: reported_s for key, reported_s in self._reported_s.items() if now_s - reported_s < QUIET_S
        }
        fresh = [each for each in found if (each.severity, each.reason) not in self._reported_s]
        self._reported_s |= {(each.severity, each.reason): now_s for each in fresh}
        return fresh


def event(job: CollectorJob, announcement: Event, now_s: float) -> Manifest:
    """Build the Kubernetes event of an event."""
    now = format_time(now_s)
    metadata = job.metadata
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"generateName": f"{metadata.name}-", "namespace": metadata.namespace},
        "involvedObject": {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "name": metadata.name,
            "namespace": metadata.namespace,
            "uid": metadata.uid,
        },
        "type": announcement.severity,
        "reason": announcement.reason,
        "message": clip(announcement.message),
        "source": {"component": COMPONENT},
        "reportingComponent": COMPONENT,
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }
