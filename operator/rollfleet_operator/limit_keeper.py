"""The requests of jobs that the installation's limits have admitted."""

from collections.abc import Iterable

from rollfleet_api.job import CollectorJob
from rollfleet_api.permissions import Role
from rollfleet_api.status import ConditionType
from rollfleet_api.validation import JobErrors, parse_stored_job
from rollfleet_operator import names, workloads
from rollfleet_operator.cache import Cache
from rollfleet_operator.errors import LimitExceeded, TemplateInvalid
from rollfleet_operator.limits import Limits, Request, refusal
from rollfleet_operator.manifest import Manifest
from rollfleet_operator.nats_port import JobKey
from rollfleet_operator.observed import devices
from rollfleet_operator.settings import Settings
from rollfleet_operator.verdict import ended, held


class LimitKeeper:
    """Keeper of the limits: it admits jobs, first come, first served, until they end or are suspended.

    A refused edit of an admitted job leaves it what it had. After a restart of the operator, jobs with a status count
    as admitted, unless it names a refusal.

    Args:
        cache: The watched objects.
        settings: The operator's settings.
    """

    def __init__(self, cache: Cache, settings: Settings) -> None:
        self._cache, self._settings = cache, settings
        self._held: dict[str, Request | None] = {}  # by UID; None: admitted for nothing

    def refused(self, job: CollectorJob) -> LimitExceeded | TemplateInvalid | None:
        """Return why a job may not have what it asks for; None: it may, and holds it from now on.

        What an invalid template asks for is unknown: with it a job gets no more than it has.
        """
        settings, uid = self._settings, str(job.metadata.uid)
        if not (settings.limits_per_job.most or settings.limits_per_namespace.most):
            return None
        if ended(job):
            self._held[uid] = None
            return None
        try:
            request = requested(job, settings)
        except TemplateInvalid as invalid:
            if job.spec.suspend:
                self._held[uid] = None
            return invalid
        others = [] if job.spec.suspend else self._others(job)
        why = refusal(
            request,
            others,
            per_job=settings.limits_per_job,
            per_namespace=Limits() if job.spec.suspend else settings.limits_per_namespace,
            namespace=job.metadata.namespace,
        )
        if job.spec.suspend:
            self._held[uid] = None
        elif why is None:
            self._held[uid] = request
        return LimitExceeded(why) if why else None

    def _others(self, job: CollectorJob) -> list[Request]:
        jobs = self._cache.jobs()
        alive = {manifest["metadata"]["uid"] for manifest in jobs.values()}
        self._held = {uid: request for uid, request in self._held.items() if uid in alive}
        theirs = [
            self._holding(key, manifest)
            for key, manifest in jobs.items()
            if key.namespace == job.metadata.namespace and manifest["metadata"]["uid"] != job.metadata.uid
        ]
        return [request for request in theirs if request]

    def _holding(self, key: JobKey, manifest: Manifest) -> Request | None:
        uid = manifest["metadata"]["uid"]
        if uid not in self._held and manifest.get("status"):
            self._held[uid] = self._held_before(key, manifest)
        return self._held.get(uid)

    def _held_before(self, key: JobKey, manifest: Manifest) -> Request | None:
        """Return what a job of an earlier operator holds: what its runs have if its present spec was not admitted."""
        try:
            job, _ = parse_stored_job(manifest)
            if ended(job) or job.spec.suspend:
                return None
            problem = held(job, ConditionType.DEGRADED)
            if problem is None or problem.reason != LimitExceeded.__name__:
                return requested(job, self._settings)
        except (JobErrors, TemplateInvalid):
            pass
        return _running(self._cache.children(key, manifest["metadata"]["uid"]))


def requested(job: CollectorJob, settings: Settings) -> Request:
    """Return what a job asks for.

    Raises:
        TemplateInvalid: A template does not have the form of a pod template.
    """
    spec = job.spec
    workers = max(spec.workers, spec.autoscale.max_workers if spec.autoscale else 0)
    each, learner = _devices(workloads.workers(job, settings)), workloads.learner(job, settings)
    workers += spec.evaluation.workers if spec.evaluation else 0
    gpus = workers * each + (_devices(learner) if learner else 0)
    return Request(workers=workers, gpus=gpus, max_bytes=spec.delivery.limit_bytes)


def _devices(run: Manifest) -> int:
    """Return the devices of a pod; a resource claim counts as one, and an init container may keep its devices."""
    spec = run["spec"]["template"]["spec"]
    containers = {"containers": [*spec["containers"], *(spec.get("initContainers") or [])]}
    try:
        return sum(amount for _, amount in devices(containers)) + len(spec.get("resourceClaims") or [])
    except ValueError as error:
        raise TemplateInvalid(f"`resources.limits` of a template are quantities: {error}") from error


def _running(children: Iterable[Manifest]) -> Request:
    """Return what the runs of a job have. Its storage on NATS is unknown."""
    workers = gpus = 0
    for run in children:
        role = (run["metadata"].get("labels") or {}).get(names.ROLE)
        if run["kind"] != "Job" or run["spec"].get("suspend"):
            continue
        pods = run["spec"].get("parallelism", 1)
        workers += 0 if role == Role.LEARNER else pods
        gpus += pods * _devices(run)
    return Request(workers=workers, gpus=gpus, max_bytes=0)
