"""The reconciliation of a job: read its state, act on it, write its status. All actions of the operator start here.

A reconciliation needs no reason, and no memory that it could not lose: a superfluous one changes nothing, and the next
one makes up for a missed one.
"""

import logging
import math
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from rollfleet_api.job import KIND, CollectorJob, CollectorJobStatus
from rollfleet_api.permissions import Role
from rollfleet_api.validation import JobErrors, parse_stored_job
from rollfleet_operator import access, names
from rollfleet_operator.api import Api
from rollfleet_operator.apply import Applier, PlanOutdated, problem_of
from rollfleet_operator.autoscale import decide
from rollfleet_operator.cache import Cache
from rollfleet_operator.cluster_reader import ClusterReader
from rollfleet_operator.desired import Inputs, access_objects, desired, kept_runs
from rollfleet_operator.errors import (
    ApiError,
    LabelsRefused,
    LimitExceeded,
    NatsFull,
    NatsUnavailable,
    OperatorError,
    TemplateInvalid,
)
from rollfleet_operator.job_memory import JobMemory
from rollfleet_operator.limits import refusal
from rollfleet_operator.manifest import Ref
from rollfleet_operator.nats_port import JobKey, NatsPort
from rollfleet_operator.observed import Observed
from rollfleet_operator.plan import Delete, label_changes, plan, shrinks, starts
from rollfleet_operator.retention import expires_in_s, is_over, lingers_for_s
from rollfleet_operator.rotation import rotation_s, unreadable
from rollfleet_operator.settings import Settings
from rollfleet_operator.snapshot import Snapshot
from rollfleet_operator.status import invalid, not_reconciled, status
from rollfleet_operator.status_writer import StatusWriter
from rollfleet_operator.ui.fleet import Fleet
from rollfleet_operator.verdict import Stage, Verdict, ended, left_early, verdict
from rollfleet_operator.workloads import queued

log = logging.getLogger(__name__)

AWAY_S: Final = 15.0
"""The longest time between attempts to reach NATS for a running job: its learner and workers wait for their streams."""

GROW_STALLED_S: Final = 10.0
"""The time between checks whether a job without new frames lacks space on NATS."""

GROW_S: Final = 60.0
"""The same for other jobs: they only get on faster with more space."""

WORKERS_AGAIN_S: Final = 60.0
"""The least time between two creations of workers that exit with 0 before the learner has completed the job."""


class ReconcileResult(NamedTuple):
    """The result of a reconciliation.

    Attributes:
        next_s: Seconds until the next reconciliation; None: at the next change.
        problem: The error that stopped it. The status already contains it; the reconciliation must be tried again.
    """

    next_s: float | None = None
    problem: OperatorError | None = None


class Reconciler:
    """The reconciler of all jobs.

    Args:
        api: The API server.
        cache: The watched objects.
        nats: NATS.
        settings: The operator's settings.
        clock: Returns seconds since the epoch.
        fleet: Receives the page's data; None without a page.

    Example:
        >>> await Reconciler(api, cache, nats, settings).reconcile(JobKey("default", "cartpole"))
        ReconcileResult(next_s=5.0, problem=None)
    """

    def __init__(
        self,
        api: Api,
        cache: Cache,
        nats: NatsPort,
        settings: Settings,
        clock: Callable[[], float] = time.time,
        fleet: Fleet | None = None,
    ) -> None:
        self._fleet = fleet
        self._api, self._cache, self._nats, self._settings, self._clock = api, cache, nats, settings, clock
        self._applier, self._reader = Applier(api, cache), ClusterReader(api, cache)
        self._writer = StatusWriter(api, cache, settings.status_interval_s, clock)
        self._memories: dict[str, JobMemory] = {}
        self._stored: set[JobKey] = set()

    async def reconcile(self, key: JobKey) -> ReconcileResult:
        """Reconcile a job.

        Raises:
            OperatorError: An error that is not in the job's status, or cannot be.
        """
        manifest = self._cache.job(key)
        if manifest is None:
            if self._fleet:
                self._fleet.gone(key)
            if key in self._stored or key in self._cache.deleted:
                await self._forget(key)
            return ReconcileResult()
        if "deletionTimestamp" in manifest["metadata"]:
            if self._fleet:
                self._fleet.update(key)
            return ReconcileResult()
        memory = self._memories.setdefault(manifest["metadata"]["uid"], JobMemory())
        try:
            job, ignored = parse_stored_job(manifest)
            await self._writer.report_ignored(job, (*ignored, *filter(None, [unreadable(job)])), memory)
            return await self._reconcile(job, memory)
        except JobErrors as errors:
            next_s = await self._writer.report(manifest, invalid, str(errors), memory)
            if self._fleet:
                self._fleet.update(key)
            return ReconcileResult(next_s)
        except OperatorError:
            raise
        except Exception as error:  # a defect: without this the job would show nothing of it
            log.exception("%s/%s: error in the operator", *key)
            message = f"error in the operator, whose log says more: {error!r}"
            await self._writer.report(manifest, not_reconciled, message, memory)
            return ReconcileResult(problem=OperatorError(message))

    def doubt(self) -> None:
        """Verify everything at the next reconciliations, and forget deleted jobs."""
        alive = {manifest["metadata"]["uid"] for manifest in self._cache.jobs().values()}
        self._memories = {uid: memory for uid, memory in self._memories.items() if uid in alive}
        for memory in self._memories.values():
            memory.doubt()

    async def on_nats(self) -> set[JobKey]:
        """Return the jobs with data on NATS. The next reconciliation of one that needs none any more removes it.

        Raises:
            NatsUnavailable: NATS did not list its jobs.
        """
        self._stored = await self._nats.provisioned()
        return self._stored

    async def _forget(self, key: JobKey) -> None:
        """Remove a job's data from NATS."""
        await self._nats.deprovision(key)
        self._stored.discard(key)
        self._cache.deleted.discard(key)

    async def _reconcile(self, job: CollectorJob, memory: JobMemory) -> ReconcileResult:
        now_s, settings = self._clock(), self._settings
        problem = away = await self._read_heartbeats(job, memory, now_s)
        frames_per_second = memory.rate.update(memory.heartbeats.learner, now_s)
        blocked: OperatorError | None = None
        try:
            if job.spec.source is None or not ended(job):  # the ConfigMap of an ended job may be deleted
                await self._reader.read_source(job, memory)
        except OperatorError as error:
            problem = blocked = _unless_away(error)
        if not ended(job) and (above := refusal(job, settings.max_bytes_per_job)):
            problem = blocked = above
        try:
            await self._reader.read_refusals(job, memory, now_s, settings.refresh_s)
        except OperatorError as error:
            problem = _unless_away(error)
        observed = self._reader.observe(job, memory)
        found = verdict(job, observed, memory.heartbeats, now_s)
        try:
            await self._reader.remember_secrets(job, memory, now_s, settings.resync_s)
            observed = self._reader.observe(job, memory)
            blocked = await self._act(job, memory, observed, found, now_s, blocked=blocked, nats_answers=away is None)
            problem = blocked or problem
            await self._scale(job, memory, found, now_s)
            if away is None and found.stage is Stage.LIVE and not job.spec.suspend:
                problem = await self._grow(job, memory, now_s, stalled=not frames_per_second) or problem
        except PlanOutdated:
            return ReconcileResult(next_s=0.0)
        except OperatorError as error:
            problem = error
        if isinstance(problem, ApiError) and problem.status in (404, 409):
            raise problem  # another client was faster: the next reconciliation sees its change
        observed = self._reader.observe(job, memory)
        snapshot = Snapshot(
            job=job,
            observed=observed,
            heartbeats=memory.heartbeats,
            verdict=found,
            problem=problem_of(problem) if problem else None,
            frames_per_second=frames_per_second,
            now_s=now_s,
        )
        now = status(snapshot)
        if self._fleet:
            self._fleet.update(JobKey(job.metadata.namespace, job.metadata.name), snapshot, now)
        wait_s = await self._writer.write(job, now, memory)
        next_s = await self._next(job, now, found, wait_s)
        live = not found.ended and not job.spec.suspend
        if live:
            # Each request to a NATS that is away takes seconds; when NATS is back, it may have lost the job.
            interval_s = AWAY_S if isinstance(problem, NatsUnavailable) else self._settings.refresh_s
            next_s = min(interval_s, math.inf if next_s is None else next_s)
        return ReconcileResult(next_s, problem)

    async def _read_heartbeats(self, job: CollectorJob, memory: JobMemory, now_s: float) -> OperatorError | None:
        """Read the job's heartbeats into `memory`; return the error of NATS, which does not stop the reconciliation."""
        if job.status is None or not _belongs_on_nats(job, memory, now_s):  # NATS has no data of it
            return None
        if memory.unverified:  # the job is published first, which shows whether NATS is there
            return None
        try:
            memory.heartbeats = await self._nats.heartbeats(job)
        except NatsUnavailable as error:
            memory.unverified = True  # it may come back without its data
            return error
        return None

    async def _act(
        self,
        job: CollectorJob,
        memory: JobMemory,
        observed: Observed,
        found: Verdict,
        now_s: float,
        *,
        blocked: OperatorError | None,
        nats_answers: bool,
    ) -> OperatorError | None:
        """Bring NATS and the cluster to the desired state.

        A job whose next runs cannot be built keeps those that it has: they are suspended and scaled, and their
        credentials are renewed. A job above the limit of storage keeps them too, and is not published.

        Args:
            job: The job.
            memory: Its memory.
            observed: Its children.
            found: Its stage.
            now_s: The time, seconds since the epoch.
            blocked: Why its next runs cannot be built; None: they can, as far as is known.
            nats_answers: Whether NATS answered a moment ago. If not, it is not asked again: each request to a NATS that
                is away takes seconds.

        Returns:
            Why its next runs cannot be built, or the labels of its runs cannot be changed.
        """
        nats = self._nats
        credentials = {
            role: await nats.credentials(job, role, _mounted(job, role, memory)) for role in access.roles(job)
        }
        lingering = found.stage is Stage.COMPLETE and lingers_for_s(job, now_s) > 0
        inputs = Inputs(
            settings=self._settings,
            endpoint=nats.endpoint,
            credentials=credentials,
            source_digest=memory.source_digest or "",
            stopped=found.stage is not Stage.LIVE and not lingering,
            queued=_is_queued(observed, memory),
        )
        refused = isinstance(blocked, LimitExceeded)
        keep = [*access_objects(job, inputs), *kept_runs(job, inputs, observed)]
        try:
            wanted = keep if blocked or memory.source_digest is None else desired(job, inputs)
        except TemplateInvalid as error:
            wanted, blocked = keep, error
        retry, again = found.stage is Stage.RETRY, None
        if found.stage is Stage.LIVE and nats_answers and not memory.unverified:
            again = left_early(job, observed, memory.heartbeats)
            again = again if again and now_s - again.created_s >= WORKERS_AGAIN_S else None
        actions = plan(wanted, observed, retry=retry, again=again, ended=found.ended)
        known = memory.provisioned == job.metadata.generation
        due = (memory.unverified and nats_answers) or not known
        live = not found.ended or rotation_s(job, now_s) is not None  # credentials of a failed job are refused, too
        publish = due and not refused and live and _belongs_on_nats(job, memory, now_s)
        if refused and nats_answers and observed.runs:
            memory.unverified = False  # NATS has what was admitted before
        # A worker whose index exceeds the published number fails for good: delete its pod before the job is published.
        publish_last = shrinks(actions, observed)
        away = await self._publish(job, memory) if publish and not publish_last else None
        if away and not known and starts(actions, observed):
            actions = [each for each in actions if not starts([each], observed) and not isinstance(each, Delete)]
        for written in await self._applier.execute(job, actions):
            if written["kind"] == "Secret":
                written["metadata"].pop("managedFields", None)
                memory.secrets[Ref("Secret", written["metadata"]["name"])] = written
        for role in set(Role).difference(access.roles(job)):
            memory.secrets.pop(Ref("Secret", names.secret(job.metadata.name, role)), None)
        if publish and publish_last:
            away = await self._publish(job, memory)
        try:
            await self._applier.label(job, label_changes(wanted, observed))
        except LabelsRefused as error:
            blocked = blocked or error
        if away:
            raise away
        key = JobKey(job.metadata.namespace, job.metadata.name)
        if is_over(job, now_s) and key in self._stored:
            await self._forget(key)
        return blocked

    async def _publish(self, job: CollectorJob, memory: JobMemory) -> NatsUnavailable | None:
        """Publish the job on NATS; return the error, if any."""
        try:
            await self._nats.provision(job)
        except NatsUnavailable as error:
            return error
        memory.provisioned, memory.unverified = job.metadata.generation, False
        return None

    async def _grow(self, job: CollectorJob, memory: JobMemory, now_s: float, *, stalled: bool) -> NatsFull | None:
        """Give a running job the space on NATS that it needs; return why NATS has too little."""
        every_s = GROW_STALLED_S if stalled else GROW_S
        if memory.provisioned == job.metadata.generation and now_s - memory.grown_s >= every_s:
            memory.full = None
            try:
                memory.grown_s = 0.0 if await self._nats.grow(job) else now_s
            except NatsFull as error:
                memory.full, memory.grown_s = error, now_s
        return memory.full

    async def _scale(self, job: CollectorJob, memory: JobMemory, found: Verdict, now_s: float) -> None:
        """Set the number of workers of a job with `autoscale`, in its spec."""
        if found.stage is not Stage.LIVE or job.spec.suspend or queued(job) or memory.queued:
            memory.history.forget()
            return
        workers = decide(job, memory.heartbeats, memory.history, now_s)
        if workers != job.spec.workers:
            log.info("%s: scaled from %d to %d workers", job.key, job.spec.workers, workers)
            # The subresource needs fewer rights than a write of the job. The version: a user may just have edited it.
            patch = {"metadata": {"resourceVersion": job.metadata.resource_version}, "spec": {"replicas": workers}}
            await self._api.patch(KIND, job.metadata.namespace, job.metadata.name, patch, "scale")

    async def _next(
        self, job: CollectorJob, now: CollectorJobStatus, found: Verdict, wait_s: float | None
    ) -> float | None:
        """Delete the job if its time to live is over; return the seconds until time alone changes something."""
        left_s = expires_in_s(job, now, self._clock())
        if left_s == 0 and job.status and job.status.completion_time:  # the status has the end
            metadata = job.metadata
            await self._api.delete(KIND, metadata.namespace, metadata.name, str(metadata.uid))
            return None
        times = [each for each in (left_s, wait_s) if each is not None]
        if found.stage is Stage.COMPLETE and (lingers_s := lingers_for_s(job, self._clock())) > 0:
            times.append(lingers_s)
        return min(times, default=None)


def _belongs_on_nats(job: CollectorJob, memory: JobMemory, now_s: float) -> bool:
    """Return whether NATS must have a job, for which it reserves space: from its first start to its end."""
    started = job.status is not None and job.status.start_time is not None
    waits = job.spec.suspend and not started and memory.provisioned is None
    return not waits and not is_over(job, now_s)


def _unless_away(error: OperatorError) -> OperatorError:
    """Raise the error if the API server did not answer: further requests would only wait as long."""
    if isinstance(error, ApiError) and not error.status:
        raise error
    return error


def _is_queued(observed: Observed, memory: JobMemory) -> bool:
    """Return whether another client decides when runs start; a job that is stopped then has no run that shows it."""
    if observed.runs:
        memory.queued = any(run.queued for run in observed.runs)
    return memory.queued


def _mounted(job: CollectorJob, role: Role, memory: JobMemory) -> bytes | None:
    secret = memory.secrets.get(Ref("Secret", names.secret(job.metadata.name, role)))
    return access.mounted_credentials(secret) if secret else None
