"""Does what was planned, and puts into words what stood in the way."""

from collections.abc import Sequence

from rollfleet_api.job import CollectorJob
from rollfleet_operator.api import Api
from rollfleet_operator.cache import Cache, job_key, owned_by
from rollfleet_operator.errors import (
    ApiError,
    NameTaken,
    NatsUnavailable,
    OperatorError,
    SourceMissing,
    TemplateInvalid,
)
from rollfleet_operator.kinds import WATCHED
from rollfleet_operator.manifest import Manifest, ref
from rollfleet_operator.plan import Action, Apply, Change, Delete
from rollfleet_operator.problems import Problem, why_no_pods
from rollfleet_operator.release import Release


class SeenAnew(OperatorError):
    """An object was there that we did not know of: what is to be done must be planned again."""


class Applier:
    """Executes plans.

    Args:
        api: The API server.
        cache: Is told what the API server answers, so that the next look knows it before a watch tells.
    """

    def __init__(self, api: Api, cache: Cache) -> None:
        self._api, self._cache = api, cache

    async def execute(self, job: CollectorJob, actions: Sequence[Action | Release]) -> list[Manifest]:
        """Do it all, in order, up to the first that is refused. Returns what was made or changed.

        Raises:
            ApiError: The API server refused something.
            NameTaken: A name that the job needs belongs to somebody else's object.
            SeenAnew: The plan was made without knowing all that is there.
        """
        return [made for action in actions if (made := await self._do(job, action)) is not None]

    async def _do(self, job: CollectorJob, action: Action | Release) -> Manifest | None:
        namespace = job.metadata.namespace
        match action:
            case Apply(manifest, new):
                if new:
                    await self._check_name(job, manifest)
                made = await self._api.apply(manifest)
            case Change(which, patch):
                made = await self._api.patch(which.kind, namespace, which.name, patch)
            case Delete(which, uid):
                await self._api.delete(which.kind, namespace, which.name, uid)
                return None
            case Release(pod, uid, version, finalizers):
                metadata = {"uid": uid, "resourceVersion": version, "finalizers": list(finalizers)}
                await self._api.patch("Pod", namespace, pod, {"metadata": metadata})
                return None
        if made["kind"] in WATCHED:  # of others nobody would tell the cache that they are gone
            self._cache.put(made)
        return made

    async def _check_name(self, job: CollectorJob, manifest: Manifest) -> None:
        which = ref(manifest)
        found = await self._api.get(which.kind, job.metadata.namespace, which.name)
        if found is None:
            return
        if not owned_by(found, str(job.metadata.uid)):
            if job_key(found) == (job.metadata.namespace, job.metadata.name) and found["metadata"].get(
                "ownerReferences"
            ):
                raise ApiError(409, "Conflict", f"{which} of an earlier job of this name is still there")
            raise NameTaken(f"{which} is there already and belongs to somebody else; delete it, or rename the job")
        if which.kind == "Job":  # its template cannot be applied again: it is looked at first
            self._cache.put({"apiVersion": manifest["apiVersion"], "kind": which.kind, **found})
            raise SeenAnew(f"{which} was there already")


def problem_of(error: OperatorError) -> Problem:
    """An error as a condition says it."""
    match error:
        case ApiError():
            refused = why_no_pods(str(error))
            if error.status == 403 and refused:
                return Problem(refused.reason, f"the API server refuses: {error}")
            return Problem("Invalid" if error.status == 422 else "ApiError", f"the API server refuses: {error}")
        case NatsUnavailable():
            return Problem("NatsUnavailable", str(error))
        case NameTaken() | SourceMissing() | TemplateInvalid():
            return Problem(type(error).__name__, str(error))
        case _:
            return Problem("Error", str(error))
