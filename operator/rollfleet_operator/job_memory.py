"""The operator's memory of a job between reconciliations. All of it can be lost, and is found again."""

from dataclasses import dataclass, field, replace
from math import inf
from typing import TypeVar

from rollfleet_api.frame_rate import FrameRate
from rollfleet_api.job import CollectorJob
from rollfleet_api.messages import LearnerStatus, WorkerStatus
from rollfleet_api.state.processes import Heartbeats
from rollfleet_api.waits import Waits
from rollfleet_operator.autoscale import History
from rollfleet_operator.errors import NatsUnavailable
from rollfleet_operator.events import EventThrottle
from rollfleet_operator.manifest import Manifest, Ref
from rollfleet_operator.nats_port import JobKey, NatsPort
from rollfleet_operator.plan import Stamp

B = TypeVar("B", WorkerStatus, LearnerStatus)


@dataclass(slots=True, kw_only=True)
class PodRefusal:
    """Why a job's pods could not be created when the API server was last asked.

    Attributes:
        message: The reason, in the API server's words; empty: they could.
        asked_s: Time of that question.
        lacking_s: Time since when pods are missing and none was created; 0: none is missing.
    """

    message: str = ""
    asked_s: float = 0.0
    lacking_s: float = 0.0


@dataclass(slots=True, kw_only=True)
class JobMemory:
    """The memory of one job.

    Attributes:
        uid: The job's UID.
        looked_s: Time of the last look at the job.
        secrets: The job's Secrets, as they were written: the operator has no right to read Secrets.
        secrets_s: Time of that write.
        answered: The API server's answers to what was applied.
        refusal: Why pods could not be created.
        heartbeats: The last heartbeats, also while NATS is away.
        rate: The job's frame rate.
        namespace_ends: Whether the job's namespace is being deleted.
        source_digest: Digest of the job's ConfigMap, when it last existed; None: not read yet.
        written_s: Time of the last write of the status.
        waits: Who waits for whom.
        history: Measurements for the number of workers.
        throttle: The filter of repeated events.
        read_s: Time of the last answer of NATS.
        dates: The time of each process' heartbeat by its clock and by the operator's, by index; -1: the learner.
    """

    uid: str = ""
    looked_s: float = 0.0
    secrets: dict[Ref, Manifest] = field(default_factory=dict)
    secrets_s: float = 0.0
    answered: dict[Ref, Stamp] = field(default_factory=dict)
    refusal: PodRefusal = field(default_factory=PodRefusal)
    heartbeats: Heartbeats = field(default_factory=lambda: Heartbeats(since_s=inf))
    rate: FrameRate = field(default_factory=FrameRate)
    namespace_ends: bool = False
    source_digest: str | None = None
    written_s: float = 0.0
    waits: Waits = field(default_factory=Waits)
    history: History = field(default_factory=History)
    throttle: EventThrottle = field(default_factory=EventThrottle)
    read_s: float = 0.0
    dates: dict[int, tuple[float, float]] = field(default_factory=dict)

    async def read_heartbeats(
        self, nats: NatsPort, job: CollectorJob, now_s: float, *, serves: bool
    ) -> NatsUnavailable | None:
        """Read the heartbeats from NATS, or leave NATS if the job does not need it, or its server goes (not `serves`).

        Returns:
            The error of NATS, which stops nothing else.
        """
        since_s, self.heartbeats = self.heartbeats.since_s, replace(self.heartbeats, since_s=inf)
        key = JobKey(job.metadata.namespace, job.metadata.name)
        try:
            if serves:
                found = await nats.heartbeats(job)
                workers = {index: self._dated(index, beat, now_s) for index, beat in found.workers.items()}
                learner = self._dated(-1, found.learner, now_s) if found.learner else None
                self.heartbeats = replace(found, workers=workers, learner=learner, since_s=min(since_s, now_s))
                self.read_s = now_s
            else:
                await (nats.remove(key) if job.has_ended else nats.disconnect(key))
        except NatsUnavailable as error:
            return error
        return None

    def _dated(self, index: int, beat: B, now_s: float) -> B:
        """Return a heartbeat with a time of the operator's clock: a new one came since the last answer of NATS."""
        sent_s, dated_s = self.dates.get(index, (None, 0.0))
        if beat.time_s != sent_s:
            dated_s = max(self.read_s, min(beat.time_s, now_s))
            self.dates[index] = beat.time_s, dated_s
        return beat if beat.time_s == dated_s else replace(beat, time_s=dated_s)


def remembered(known: JobMemory | None, uid: str, now_s: float) -> JobMemory:
    """Return the memory of a job, by its UID, for a look at this time: `known`, or an empty one.

    Another job's is not its own. If the last look was later than this one, the clock was set back: nothing waits for
    the times of before.
    """
    memory = known if known and known.uid == uid and known.looked_s <= now_s else JobMemory(uid=uid)
    memory.looked_s = now_s
    return memory
