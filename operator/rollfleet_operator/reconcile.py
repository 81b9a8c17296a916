"""One look at one job: see what is there, do what is to be done, write down what is seen. All that happens begins here.

A look needs no reason and has no memory that it could not do without: a look too many changes nothing, and one that
was missed is made up for by the next.
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
from rollfleet_operator.apply import Applier, SeenAnew, problem_of
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
from rollfleet_operator.status import Snapshot, invalid, is_transition, ours, status
from rollfleet_operator.verdict import Stage, Verdict, ended, verdict
from rollfleet_operator.workloads import queued

log = logging.getLogger(__name__)

AWAY_S: Final = 15.0
"""The most between two attempts to reach NATS for a job that runs: workers and learner end the job after 60 s, if its
streams are gone."""


class ReconcileResult(NamedTuple):
    """How a look ended.

    Attributes:
        again_s: Seconds until the job is to be looked at again; None: when something happens.
        problem: What stood in the way. It is in the job's status by now, and is to be tried again.
    """

    again_s: float | None = None
    problem: OperatorError | None = None


class Reconciler:
    """Looks at jobs.

    Args:
        api: The API server.
        cache: What the watches told.
        wire: NATS.
        settings: The operator's.
        clock: Seconds since the epoch.
    """

    def __init__(
        self, api: Api, cache: Cache, wire: NatsPort, settings: Settings, clock: Callable[[], float] = time.time
    ) -> None:
        self._api, self._cache, self._wire, self._settings, self._clock = api, cache, wire, settings, clock
        self._applier, self._reader = Applier(api, cache), ClusterReader(api, cache)
        self._memories: dict[str, JobMemory] = {}

    async def reconcile(self, key: JobKey) -> ReconcileResult:
        """Look at a job.

        Raises:
            OperatorError: Something stood in the way that is not, or cannot be, written into the job's status.
        """
        manifest = self._cache.job(key)
        if manifest is None:
            await self._wire.deprovision(key)
            return ReconcileResult()
        if "deletionTimestamp" in manifest["metadata"]:
            return ReconcileResult()
        memory = self._memories.setdefault(manifest["metadata"]["uid"], JobMemory())
        try:
            job = parse_job(manifest)
        except JobErrors as errors:
            return ReconcileResult(again_s=await self._tell_invalid(manifest, errors, memory))
        return await self._look(job, memory)

    def doubt(self) -> None:
        """Take nothing for granted at the next looks, and forget jobs that are gone."""
        alive = {manifest["metadata"]["uid"] for manifest in self._cache.jobs().values()}
        self._memories = {uid: memory for uid, memory in self._memories.items() if uid in alive}
        for memory in self._memories.values():
            memory.doubt()

    async def orphans(self) -> set[JobKey]:
        """Jobs that NATS still holds something of, deleted while nobody watched: a look takes it away.

        Raises:
            NatsUnavailable: NATS could not be asked.
        """
        watched = self._settings.namespaces
        known = await self._wire.provisioned()
        return {key for key in known - set(self._cache.jobs()) if not watched or key.namespace in watched}

    async def _look(self, job: CollectorJob, memory: JobMemory) -> ReconcileResult:
        now_s, refused = self._clock(), ""
        problem = await self._listen(job, memory, now_s)
        try:
            if not ended(job):  # what an ended job was made from may be gone
                await self._reader.read_source(job, memory)
            await self._reader.remember_secrets(job, memory)
            refused = await self._reader.why_pods_are_refused(job, self._reader.observe(job, memory))
        except OperatorError as error:
            problem = error
        observed = self._reader.observe(job, memory, refused_pods=refused)
        found = verdict(job, observed, memory.heard, now_s)
        if problem is None or isinstance(problem, NatsUnavailable):
            try:
                await self._make(job, memory, observed, found, now_s, heard=problem is None)
                await self._scale(job, memory, found, now_s)
            except SeenAnew:
                return ReconcileResult(again_s=0.0)
            except OperatorError as error:
                problem = error
        if isinstance(problem, ApiError) and problem.status in (404, 409):
            raise problem  # somebody was faster: the next look sees it
        observed = self._reader.observe(job, memory, refused_pods=refused)
        snapshot = Snapshot(
            observed=observed,
            heartbeats=memory.heard,
            verdict=found,
            problem=problem_of(problem) if problem else None,
            frames_per_second=memory.rate.update(memory.heard.learner, now_s),
            now_s=now_s,
        )
        now = status(job, snapshot)
        wait_s = await self._write(job, now, memory)
        again_s = await self._next(job, now, found, wait_s)
        live = not found.ended and not job.spec.suspend
        if live:
            # Each question to a NATS that is away takes its time; when it is back, it may have lost the job.
            soon_s = AWAY_S if isinstance(problem, NatsUnavailable) else self._settings.refresh_s
            again_s = min(soon_s, math.inf if again_s is None else again_s)
        return ReconcileResult(again_s, problem)

    async def _listen(self, job: CollectorJob, memory: JobMemory, now_s: float) -> OperatorError | None:
        """Hear what there is to hear. Returns what stood in the way: the cluster is looked after all the same."""
        if job.status is None or not _belongs_on_nats(job, memory, now_s):  # NATS does not know it
            return None
        if memory.doubted:  # to tell it again comes first, and shows whether it is there
            return None
        try:
            memory.heard = await self._wire.heartbeats(job)
        except NatsUnavailable as error:
            memory.doubted = True  # it may be back, without what it had
            return error
        return None

    async def _make(
        self, job: CollectorJob, memory: JobMemory, observed: Observed, found: Verdict, now_s: float, *, heard: bool
    ) -> None:
        """Make what should be there, on NATS and on the cluster.

        A NATS that was not heard is not told again in the same look: it may take seconds to find that it is away.
        """
        wire = self._wire
        credentials = {role: await wire.credentials(job, role, _mounted(job, role, memory)) for role in Role}
        lingering = found.stage is Stage.COMPLETE and lingers_for_s(job, now_s) > 0
        inputs = Inputs(
            settings=self._settings,
            endpoint=wire.endpoint,
            credentials=credentials,
            source_digest=memory.source_digest,
            stopped=found.stage is not Stage.LIVE and not lingering,
        )
        wanted = desired(job, inputs)
        actions = plan(wanted, observed, anew=found.stage is Stage.AGAIN, ended=found.ended)
        known = memory.provisioned == job.metadata.generation
        publish = not found.ended and _belongs_on_nats(job, memory, now_s) and ((memory.doubted and heard) or not known)
        # A worker that finds itself one too many gives up for good: its pod goes before it could find that out.
        last = shrinks(actions, observed)
        away = await self._publish(job, memory) if publish and not last else None
        if away and not known and starts(actions, observed):
            raise away
        for made in await self._applier.execute(job, [*actions, *releases(observed)]):
            if made["kind"] == "Secret":
                made["metadata"].pop("managedFields", None)
                memory.secrets[Ref("Secret", made["metadata"]["name"])] = made
        if publish and last:
            away = await self._publish(job, memory)
        if away:
            raise away
        if is_over(job, now_s) and not memory.released:
            await wire.deprovision(JobKey(job.metadata.namespace, job.metadata.name))
            memory.released = True

    async def _publish(self, job: CollectorJob, memory: JobMemory) -> NatsUnavailable | None:
        """Tell NATS of the job. Returns what stood in the way."""
        try:
            await self._wire.provision(job)
        except NatsUnavailable as error:
            return error
        memory.provisioned, memory.doubted = job.metadata.generation, False
        return None

    async def _scale(self, job: CollectorJob, memory: JobMemory, found: Verdict, now_s: float) -> None:
        """Choose the number of workers, where that is ours. It is written where anybody would: in the spec."""
        if found.stage is not Stage.LIVE or job.spec.suspend or queued(job):
            memory.history.forget()
            return
        workers = decide(job, memory.heard, memory.history, now_s)
        if workers != job.spec.workers:
            log.info("%s: from %d to %d workers", job.key, job.spec.workers, workers)
            # By the subresource: a right to write jobs would be one to write everything in them.
            await self._api.patch(
                KIND, job.metadata.namespace, job.metadata.name, {"spec": {"replicas": workers}}, "scale"
            )

    async def _write(self, job: CollectorJob, now: CollectorJobStatus, memory: JobMemory) -> float | None:
        """Write status, if it says something new and it is time. Returns after how long it will be time."""
        if job.status is not None and now == ours(job.status):
            return None
        now_s = self._clock()
        due_s = memory.written_s + self._settings.status_interval_s - now_s
        if due_s > 0 and not is_transition(job.status, now):
            return due_s
        await self._put_status(job.metadata.namespace, job.metadata.name, str(job.metadata.uid), now)
        memory.written_s = now_s
        for announcement in memory.quiet.admit(events_between(job.status, now), now_s):
            try:
                await self._api.create(event(job, announcement, now_s))
            except ApiError as error:
                log.warning("%s: %s could not be announced: %s", job.key, announcement.reason, error)
        return None

    async def _put_status(self, namespace: str, name: str, uid: str, now: CollectorJobStatus) -> None:
        """Write a status down, unless the job has changed: another of its name may have come in between."""
        held = self._cache.job(JobKey(namespace, name))
        if held is None or held["metadata"]["uid"] != uid:
            raise ApiError(409, "Conflict", f"{KIND} {name} is another one by now")
        said = now.model_dump(mode="json", by_alias=True, exclude_none=True)
        # The API server keeps 0.0 as 0, and takes the two for different the next time that anybody applies the job.
        whole = {key: int(value) for key, value in said.items() if isinstance(value, float) and value.is_integer()}
        manifest = {
            "apiVersion": API_VERSION,
            "kind": KIND,
            # Whose UID it is, the API server does not look at here; which version, it does.
            "metadata": {"namespace": namespace, "name": name, "resourceVersion": held["metadata"]["resourceVersion"]},
            "status": said | whole,
        }
        self._cache.put(await self._api.apply(manifest, "status"))

    async def _next(
        self, job: CollectorJob, now: CollectorJobStatus, found: Verdict, wait_s: float | None
    ) -> float | None:
        """Delete the job if its time is over. Returns when the passing of time will change something."""
        left_s = expires_in_s(job, now, self._clock())
        if left_s == 0 and job.status and job.status.completion_time:  # the end has been written down
            metadata = job.metadata
            await self._api.delete(KIND, metadata.namespace, metadata.name, str(metadata.uid))
            return None
        times = [each for each in (left_s, wait_s) if each is not None]
        if found.stage is Stage.COMPLETE and (lingers_s := lingers_for_s(job, self._clock())) > 0:
            times.append(lingers_s)
        return min(times, default=None)

    async def _tell_invalid(self, manifest: Manifest, errors: JobErrors, memory: JobMemory) -> float | None:
        """A job that was stored before the API server knew this rule: say so, and touch nothing.

        Returns after how long it will be time to say so; None: it has been said.
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
    """Whether NATS is to know a job, which takes its room at once: not before it may ever run, nor after its end."""
    started = job.status is not None and job.status.start_time is not None
    waits = job.spec.suspend and not started and memory.provisioned is None
    return not waits and not is_over(job, now_s)


def _mounted(job: CollectorJob, role: Role, memory: JobMemory) -> bytes | None:
    secret = memory.secrets.get(Ref("Secret", names.secret(job.metadata.name, role)))
    return access.mounted_credentials(secret) if secret else None
