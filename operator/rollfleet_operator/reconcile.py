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
from rollfleet_api.state.snapshot import Snapshot
from rollfleet_api.state.status import INVALID, status
from rollfleet_api.state.verdict import Stage, Verdict, begins_again, verdict
from rollfleet_api.validation import JobErrors, parse_job
from rollfleet_operator import nats_server
from rollfleet_operator.api import Api
from rollfleet_operator.apply import Applier, problem_of
from rollfleet_operator.autoscale import decide
from rollfleet_operator.cache import Cache
from rollfleet_operator.cluster_reader import ClusterReader
from rollfleet_operator.desired import access_objects, runs
from rollfleet_operator.errors import ApiError, NatsUnavailable, OperatorError, TemplateInvalid
from rollfleet_operator.job_memory import JobMemory, remembered
from rollfleet_operator.manifest import Manifest, ref
from rollfleet_operator.names import account
from rollfleet_operator.nats_access import NatsAccess
from rollfleet_operator.nats_port import JobKey, NatsPort
from rollfleet_operator.observed import Observed
from rollfleet_operator.plan import Apply, plan_access, plan_runs, stamp
from rollfleet_operator.retention import expires_in_s, lingers_for_s
from rollfleet_operator.scheduler import is_held
from rollfleet_operator.settings import Settings
from rollfleet_operator.status_writer import StatusWriter
from rollfleet_operator.ui.shown_jobs import ShownJobs

log = logging.getLogger(__name__)

AWAY_S: Final = 15.0
"""The longest time between attempts to reach NATS for a running job: its learner and workers wait for its state."""


class ReconcileResult(NamedTuple):
    """The result of a reconciliation.

    Attributes:
        next_s: Seconds until the next reconciliation; None: at the next change.
        problem: The error that stopped it. The status already contains it; the reconciliation must be tried again.
    """

    next_s: float | None = None
    problem: OperatorError | None = None


class Reconciler:
    """The reconciler of all jobs. `clock` returns seconds since the epoch; `page` is the page's data; None: no page."""

    def __init__(
        self,
        api: Api,
        cache: Cache,
        nats: NatsPort,
        access: NatsAccess,
        settings: Settings,
        clock: Callable[[], float] = time.time,
        page: ShownJobs | None = None,
    ) -> None:
        self._api, self._cache, self._nats, self._access = api, cache, nats, access
        self._settings, self._clock, self._page = settings, clock, page
        self._applier, self._reader = Applier(api, cache), ClusterReader(api, cache)
        self._writer = StatusWriter(api, cache, settings.status_interval_s, clock)
        self._memories: dict[JobKey, JobMemory] = {}

    async def reconcile(self, key: JobKey) -> ReconcileResult:
        """Reconcile a job.

        Raises:
            OperatorError: An error that is not in the job's status, or cannot be.
        """
        manifest = self._cache.job(key)
        if manifest is None or "deletionTimestamp" in manifest["metadata"]:
            if self._page:
                self._page.update(key)
            if manifest is None:
                self._memories.pop(key, None)
                await self._nats.remove(key)
            return ReconcileResult()
        now_s, uid = self._clock(), manifest["metadata"]["uid"]
        memory = self._memories[key] = remembered(self._memories.get(key), uid, now_s)
        problem: OperatorError | None = None
        try:
            return await self._reconcile(parse_job(manifest), memory, now_s)
        except JobErrors as errors:
            reason, message = INVALID, str(errors)
        except OperatorError:
            raise
        except Exception as error:  # a defect: without this the job would show nothing of it
            log.exception("%s/%s: error in the operator", *key)
            reason, message = "OperatorError", f"error in the operator, whose log says more: {error!r}"
            problem = OperatorError(message)
        next_s = await self._writer.report(manifest, reason, message, memory)
        if self._page:
            self._page.update(key)
        return ReconcileResult(next_s, problem)

    async def _reconcile(self, job: CollectorJob, memory: JobMemory, now_s: float) -> ReconcileResult:
        settings = self._settings
        if (other := self._reader.observe(job, memory).installation) not in ("", settings.key_secret):
            raise OperatorError(
                f"the installation with Secret {other} runs this job, and this one keeps off: set `operator.namespaces`"
                f" of both; if that one is gone, delete ServiceAccount {account(job.metadata.name)}"
            )
        blocked, unread = await self._read(job, memory, now_s)
        problem: OperatorError | None = None
        await self._reader.read_learner(job, memory)
        observed = self._reader.observe(job, memory)
        serves = nats_server.is_needed(job, observed) and (observed.server_ready or self._access.external is not None)
        away = await memory.read_heartbeats(self._nats, job, now_s, serves=serves)
        heartbeats = memory.heartbeats
        waits = memory.waits.look(now_s, heartbeats.learner, heartbeats.workers)
        found = verdict(job, observed, heartbeats, now_s)
        try:
            blocked = await self._act(job, memory, found, now_s, blocked=blocked)
            await self._scale(job, memory, found, now_s)
        except OperatorError as error:
            problem = error
        problem = problem or blocked or unread or away
        if isinstance(problem, ApiError) and problem.status in (404, 409):
            raise problem  # another client was faster: the next reconciliation sees its change
        snapshot = Snapshot(
            job=job,
            observed=self._reader.observe(job, memory),
            heartbeats=heartbeats,
            verdict=found,
            problem=problem_of(problem) if problem else None,
            frames_per_second=memory.rate.update(heartbeats.learner, now_s),
            now_s=now_s,
            bottleneck=memory.waits.bottleneck(job.spec),
            waits=waits,
        )
        now = status(snapshot)
        if self._page:
            self._page.update(JobKey(job.metadata.namespace, job.metadata.name), snapshot, now)
        wait_s = await self._writer.write(job, now, memory)
        next_s = await self._next(job, now, found, wait_s)
        if not found.stage.ended and not job.spec.suspend:
            # Each request to a NATS that is away takes seconds; when NATS is back, it may have lost the job.
            interval_s = AWAY_S if isinstance(problem, NatsUnavailable) else settings.refresh_s
            next_s = min(interval_s, math.inf if next_s is None else next_s)
        return ReconcileResult(next_s, problem)

    async def _read(
        self, job: CollectorJob, memory: JobMemory, now_s: float
    ) -> tuple[OperatorError | None, OperatorError | None]:
        """Read what is not watched into `memory`; return why new runs cannot be built, and a lesser error."""
        blocked: OperatorError | None = None
        unread: OperatorError | None = None
        try:
            await self._reader.read_namespace(job, memory)
            await self._reader.read_refusals(job, memory, now_s, self._settings.refresh_s)
        except OperatorError as error:
            unread = _unless_away(error)
        if not job.has_ended:  # the ConfigMap of an ended job may be deleted
            try:
                await self._reader.read_source(job, memory)
            except OperatorError as error:
                blocked = _unless_away(error)
        return blocked, unread

    async def _act(
        self,
        job: CollectorJob,
        memory: JobMemory,
        found: Verdict,
        now_s: float,
        *,
        blocked: OperatorError | None,
    ) -> OperatorError | None:
        """Bring the cluster to the desired state; return why the job's next runs cannot be built.

        A job whose next runs cannot be built keeps those that it has: they are stopped and scaled, and their
        credentials are renewed.
        """
        # The pods of a namespace that is being deleted keep their finalizer, and it, until their runs are deleted.
        wanted: list[Manifest] | None = [] if memory.namespace_ends else None
        if wanted is None and not blocked and memory.source_digest is not None:
            try:
                wanted = runs(job, self._settings, memory.source_digest)
            except TemplateInvalid as error:
                blocked = error
        observed = self._reader.observe(job, memory)
        lingering = found.stage is Stage.COMPLETE and lingers_for_s(job, now_s) > 0
        stopping = found.stage is not Stage.LIVE or job.spec.suspend or memory.namespace_ends
        may_start = stopping or self._may_start(job, memory, observed)
        again = begins_again(memory.heartbeats)
        actions = plan_runs(job, wanted, observed, found.stage, lingering=lingering, may_start=may_start, again=again)
        starting = any(isinstance(action, Apply) for action in actions)  # pods need their rights
        waits = any(not (pod.running or pod.finished) for pod in observed.pods)  # perhaps for a Secret
        if now_s - memory.secrets_s >= (self._settings.resync_s if waits else self._settings.verify_s):
            memory.secrets.clear()  # another client may have changed or deleted them
        needed = nats_server.is_needed(job, observed) and not memory.namespace_ends
        try:
            access = access_objects(job, self._settings, self._access, server=needed, public_host=observed.public_host)
            rights = plan_access(access, self._reader.observe(job, memory), memory.answered)
        except TemplateInvalid as error:  # of the server: one that runs stays
            rights, blocked = [], error
        for written in await self._applier.execute(job, [*rights, *actions] if starting else [*actions, *rights]):
            memory.answered[ref(written)] = stamp(written, written)
            if written["kind"] == "Secret":
                written["metadata"].pop("managedFields", None)
                memory.secrets[ref(written)], memory.secrets_s = written, now_s
        return blocked

    def _may_start(self, job: CollectorJob, memory: JobMemory, observed: Observed) -> bool:
        """Return whether pods of a live job may be created: NATS has the job, or will have it when they have started.

        A server that has found its node is ready seconds later. Of a job that a scheduler holds, it comes after them.
        """
        if memory.heartbeats.since_s < math.inf or not nats_server.is_needed(job, observed):
            return True
        if self._access.external or observed.server_ready:
            return False  # NATS does not answer
        return is_held(job.metadata.labels) or any(pod.role is Role.NATS and pod.node for pod in observed.pods)

    async def _scale(self, job: CollectorJob, memory: JobMemory, found: Verdict, now_s: float) -> None:
        """Set the number of workers of a job with `autoscale`, in its spec."""
        held = is_held(job.metadata.labels) or any(
            run.held or run.suspended for run in self._reader.observe(job, memory).runs
        )
        if found.stage is not Stage.LIVE or job.spec.suspend or held:
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


def _unless_away(error: OperatorError) -> OperatorError:
    """Raise the error if the API server did not answer: further requests would only wait as long."""
    if isinstance(error, ApiError) and not error.status:
        raise error
    return error
