"""The reconciliation of a job: read its state, act on it, write its status. All actions of the operator start here.

A reconciliation needs no reason, and no memory that it could not lose: a superfluous one changes nothing, and the next
one makes up for a missed one.
"""

import logging
import math
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from rollfleet_api.job import API_VERSION, KIND, CollectorJob, CollectorJobStatus
from rollfleet_api.permissions import Role
from rollfleet_api.validation import JobErrors, parse_job
from rollfleet_operator import access, names
from rollfleet_operator.api import Api
from rollfleet_operator.apply import Applier, PlanOutdated, problem_of
from rollfleet_operator.autoscale import decide
from rollfleet_operator.cache import Cache
from rollfleet_operator.cluster_reader import ClusterReader
from rollfleet_operator.desired import Inputs, desired
from rollfleet_operator.errors import ApiError, NatsUnavailable, OperatorError
from rollfleet_operator.events import event, events_between
from rollfleet_operator.job_memory import JobMemory
from rollfleet_operator.manifest import Manifest, Ref
from rollfleet_operator.nats_port import JobKey, NatsPort
from rollfleet_operator.observed import Observed
from rollfleet_operator.plan import plan, shrinks, starts
from rollfleet_operator.release import releases
from rollfleet_operator.retention import expires_in_s, is_over, lingers_for_s
from rollfleet_operator.settings import Settings
from rollfleet_operator.snapshot import Snapshot
from rollfleet_operator.status import invalid, is_transition, ours, status
from rollfleet_operator.verdict import Stage, Verdict, ended, verdict
from rollfleet_operator.workloads import queued

log = logging.getLogger(__name__)

AWAY_S: Final = 15.0
"""The longest time between attempts to reach NATS for a running job: its learner and workers end 60 s after NATS loses
its streams."""


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

        ple:
        >>> await Reconciler(api, cache, nats, settings).reconcile(JobKey("default", "cartpole"))
        ReconcileResult(next_s=5.0, problem=None)
    """

    def __init__(
        self, api: Api, cache: Cache, nats: NatsPort, settings: Settings, clock: Callable[[], float] = time.time
    ) -> None:
        self._api, self._cache, self._nats, self._settings, self._clock = api, cache, nats, settings, clock
        self._applier, self._reader = Applier(api, cache), ClusterReader(api, cache)
        self._memories: dict[str, JobMemory] = {}

    async def reconcile(self, key: JobKey) -> ReconcileResult:
        """Reconcile a job.

        Raises:
            OperatorError: An error that is not in the job's status, or cannot be.
        """
        manifest = self._cache.job(key)
        if manifest is None:
            await self._nats.deprovision(key)
            return ReconcileResult()
        if "deletionTimestamp" in manifest["metadata"]:
            return ReconcileResult()
        memory = self._memories.setdefault(manifest["metadata"]["uid"], JobMemory())
        try:
            job = parse_job(manifest)
        except JobErrors as errors:
            return ReconcileResult(next_s=await self._report_invalid(manifest, errors, memory))
        return await self._reconcile(job, memory)

    def doubt(self) -> None:
        """Verify everything at the next reconciliations, and forget deleted jobs."""
        alive = {manifest["metadata"]["uid"] for manifest in self._cache.jobs().values()}
        self._memories = {uid: memory for uid, memory in self._memories.items() if uid in alive}
        for memory in self._memories.values():
            memory.doubt()

    async def orphans(self) -> set[JobKey]:
        """Return deleted jobs with data on NATS: their reconciliation removes it.

        Raises:
            NatsUnavailable: NATS did not list its jobs.
        """
        watched = self._settings.namespaces
        known = await self._nats.provisioned()
        return {key for key in known - set(self._cache.jobs()) if not watched or key.namespace in watched}

    async def _reconcile(self, job: CollectorJob, memory: JobMemory) -> ReconcileResult:
        now_s, refused = self._clock(), ""
        problem = await self._read_heartbeats(job, memory, now_s)
        try:
            if not ended(job):  # the ConfigMap of an ended job may be deleted
                await self._reader.read_source(job, memory)
            await self._reader.remember_secrets(job, memory)
            refused = await self._reader.why_pods_are_refused(job, self._reader.observe(job, memory))
        except OperatorError as error:
            problem = error
        observed = self._reader.observe(job, memory, refused_pods=refused)
        found = verdict(job, observed, memory.heartbeats, now_s)
        if problem is None or isinstance(problem, NatsUnavailable):
            try:
                await self._act(job, memory, observed, found, now_s, nats_answers=problem is None)
                await self._scale(job, memory, found, now_s)
            except PlanOutdated:
                return ReconcileResult(next_s=0.0)
            except OperatorError as error:
                problem = error
        if isinstance(problem, ApiError) and problem.status in (404, 409):
            raise problem  # another client was faster: the next reconciliation sees its change
        observed = self._reader.observe(job, memory, refused_pods=refused)
        snapshot = Snapshot(
            job=job,
            observed=observed,
            heartbeats=memory.heartbeats,
            verdict=found,
            problem=problem_of(problem) if problem else None,
            frames_per_second=memory.rate.update(memory.heartbeats.learner, now_s),
            now_s=now_s,
        )
        now = status(snapshot)
        wait_s = await self._write(job, now, memory)
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
        if memory.doubted:  # the job is published first, which shows whether NATS is there
            return None
        try:
            memory.heartbeats = await self._nats.heartbeats(job)
        except NatsUnavailable as error:
            memory.doubted = True  # it may come back without its data
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
        nats_answers: bool,
    ) -> None:
        """Bring NATS and the cluster to the desired state.

        If NATS did not answer a moment ago, it is not asked again: each request to a NATS that is away takes seconds.
        """
        nats = self._nats
        credentials = {role: await nats.credentials(job, role, _mounted(job, role, memory)) for role in Role}
        lingering = found.stage is Stage.COMPLETE and lingers_for_s(job, now_s) > 0
        inputs = Inputs(
            settings=self._settings,
            endpoint=nats.endpoint,
            credentials=credentials,
            source_digest=memory.source_digest,
            stopped=found.stage is not Stage.LIVE and not lingering,
        )
        wanted = desired(job, inputs)
        actions = plan(wanted, observed, retry=found.stage is Stage.RETRY, ended=found.ended)
        known = memory.provisioned == job.metadata.generation
        due = (memory.doubted and nats_answers) or not known
        publish = due and not found.ended and _belongs_on_nats(job, memory, now_s)
        # A worker whose index exceeds the published number fails for good: delete its pod before the job is published.
        publish_last = shrinks(actions, observed)
        away = await self._publish(job, memory) if publish and not publish_last else None
        if away and not known and starts(actions, observed):
            raise away
        for written in await self._applier.execute(job, [*actions, *releases(observed)]):
            if written["kind"] == "Secret":
                written["metadata"].pop("managedFields", None)
                memory.secrets[Ref("Secret", written["metadata"]["name"])] = written
        if publish and publish_last:
            away = await self._publish(job, memory)
        if away:
            raise away
        if is_over(job, now_s) and not memory.released:
            await nats.deprovision(JobKey(job.metadata.namespace, job.metadata.name))
            memory.released = True

    async def _publish(self, job: CollectorJob, memory: JobMemory) -> NatsUnavailable | None:
        """Publish the job on NATS; return the error, if any."""
        try:
            await self._nats.provision(job)
        except NatsUnavailable as error:
            return error
        memory.provisioned, memory.doubted = job.metadata.generation, False
        return None

    async def _scale(self, job: CollectorJob, memory: JobMemory, found: Verdict, now_s: float) -> None:
        """Set the number of workers of a job with `autoscale`, in its spec."""
        if found.stage is not Stage.LIVE or job.spec.suspend or queued(job):
            memory.history.forget()
            return
        workers = decide(job, memory.heartbeats, memory.history, now_s)
        if workers != job.spec.workers:
            log.info("%s: scaled from %d to %d workers", job.key, job.spec.workers, workers)
            # The subresource needs fewer rights than a write of the job.
            await self._api.patch(
                KIND, job.metadata.namespace, job.metadata.name, {"spec": {"replicas": workers}}, "scale"
            )

    async def _write(self, job: CollectorJob, now: CollectorJobStatus, memory: JobMemory) -> float | None:
        """Write the status if it has changed and is due; return the seconds until it is due, if it waits."""
        if job.status is not None and now == ours(job.status):
            return None
        now_s = self._clock()
        due_s = memory.written_s + self._settings.status_interval_s - now_s
        if due_s > 0 and not is_transition(job.status, now):
            return due_s
        await self._put_status(job.metadata.namespace, job.metadata.name, str(job.metadata.uid), now)
        memory.written_s = now_s
        for announcement in memory.throttle.admit(events_between(job.status, now), now_s):
            try:
                await self._api.create(event(job, announcement, now_s))
            except ApiError as error:
                log.warning("%s: event %s was not written: %s", job.key, announcement.reason, error)
        return None

    async def _put_status(self, namespace: str, name: str, uid: str, now: CollectorJobStatus) -> None:
        """Write a status, unless another job has taken the name."""
        held = self._cache.job(JobKey(namespace, name))
        if held is None or held["metadata"]["uid"] != uid:
            raise ApiError(409, "Conflict", f"{KIND} {name} has been replaced")
        fields = now.model_dump(mode="json", by_alias=True, exclude_none=True)
        # The API server stores 0.0 as 0, and would see a difference between them at the next apply of the job.
        whole = {key: int(value) for key, value in fields.items() if isinstance(value, float) and value.is_integer()}
        manifest = {
            "apiVersion": API_VERSION,
            "kind": KIND,
            # The API server does not check the UID here; it checks the version.
            "metadata": {"namespace": namespace, "name": name, "resourceVersion": held["metadata"]["resourceVersion"]},
            "status": fields | whole,
        }
        self._cache.put(await self._api.apply(manifest, "status"))

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

    async def _report_invalid(self, manifest: Manifest, errors: JobErrors, memory: JobMemory) -> float | None:
        """Write into the status that a job is invalid (stored before the API server had the rule); change nothing else.

        Returns:
            Seconds until the write is due; None: nothing to write.
        """
        now_s, metadata = self._clock(), manifest["metadata"]
        now = invalid(manifest.get("status") or {}, metadata.get("generation"), str(errors), now_s)
        if now is None:
            return None
        due_s = memory.written_s + self._settings.status_interval_s - now_s
        if due_s > 0:
            return due_s
        await self._put_status(metadata["namespace"], metadata["name"], metadata["uid"], now)
        memory.written_s = now_s
        return None


def _belongs_on_nats(job: CollectorJob, memory: JobMemory, now_s: float) -> bool:
    """Return whether NATS must have a job, for which it reserves space: from its first start to its end."""
    started = job.status is not None and job.status.start_time is not None
    waits = job.spec.suspend and not started and memory.provisioned is None
    return not waits and not is_over(job, now_s)


def _mounted(job: CollectorJob, role: Role, memory: JobMemory) -> bytes | None:
    secret = memory.secrets.get(Ref("Secret", names.secret(job.metadata.name, role)))
    return access.mounted_credentials(secret) if secret else None
