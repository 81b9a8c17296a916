"""Execution of plans, and translation of errors into problems."""

from collections.abc import Sequence

from rollfleet_api.job import CollectorJob
from rollfleet_api.kubernetes_names import MANAGED_BY_LABEL, MANAGER
from rollfleet_api.state.problems import Problem, refused_for
from rollfleet_operator.api import Api
from rollfleet_operator.cache import WATCHED, Cache, job_key, owned_by
from rollfleet_operator.errors import ApiError, EarlierJob, NameTaken, OperatorError
from rollfleet_operator.manifest import Manifest, Ref, ref
from rollfleet_operator.observed import installation_of
from rollfleet_operator.plan import Action, Apply, Change, Delete


class Applier:
    """Executor of plans.

    `cache` gets the API server's answers, so that the next reconciliation knows them before the watch does.
    """

    def __init__(self, api: Api, cache: Cache) -> None:
        self._api, self._cache = api, cache

    async def execute(self, job: CollectorJob, actions: Sequence[Action]) -> list[Manifest]:
        """Execute actions in order, up to the first that fails; return the created and changed objects.

        Raises:
            ApiError: The API server refused an action, or has an object that is not known here (409).
            NameTaken: A name that the job needs belongs to an object of someone else.
        """
        return [written for action in actions if (written := await self._do(job, action)) is not None]

    async def _do(self, job: CollectorJob, action: Action) -> Manifest | None:
        namespace = job.metadata.namespace
        match action:
            case Apply(manifest, new):
                free = new and manifest["kind"] != "Secret" and await self._is_free(job, manifest)  # it reads no Secret
                # It names its installation: of two operators, one creates it.
                first = free and manifest["kind"] == "ServiceAccount"
                try:
                    written = await (self._api.create if first else self._api.apply)(manifest)
                except ApiError as error:
                    if manifest["kind"] == "Secret" and "field is immutable" in str(error):  # of another type
                        raise _taken(ref(manifest)) from error
                    if manifest["kind"] == "Secret" and "metadata.ownerReferences" in str(error):  # a second one
                        raise _earlier(ref(manifest)) from error
                    raise
            case Change(which, patch):
                written = await self._api.patch(which.kind, namespace, which.name, patch)
            case Delete(which, uid):
                await self._api.delete(which.kind, namespace, which.name, uid)
                return None
        # The cache would never learn that an object is deleted if no watch has its kind, or its labels.
        ours = (written["metadata"].get("labels") or {}).get(MANAGED_BY_LABEL) == MANAGER
        if ours and written["kind"] in WATCHED:
            self._cache.put(written)
        return written

    async def _is_free(self, job: CollectorJob, manifest: Manifest) -> bool:
        """Return whether no object has a manifest's name. Raises if one has that is not the job's, or not ours."""
        which = ref(manifest)
        found = await self._api.get(which.kind, job.metadata.namespace, which.name)
        if found is None:
            return True
        if not owned_by(found, str(job.metadata.uid)):
            if job_key(found) == (job.metadata.namespace, job.metadata.name) and found["metadata"].get(
                "ownerReferences"
            ):
                raise _earlier(which)
            raise _taken(which)
        if installation_of(found) not in ("", installation_of(manifest)):
            raise ApiError(409, "Conflict", f"{which} is of another installation")
        if which.kind == "Job":  # its template cannot be applied again, and its labels may be why no watch has it
            labels = {"metadata": {"labels": manifest["metadata"]["labels"]}}
            self._cache.put(await self._api.patch(which.kind, job.metadata.namespace, which.name, labels))
            raise ApiError(409, "Conflict", f"{which} already exists")
        return False


def _earlier(which: Ref) -> EarlierJob:
    return EarlierJob(f"{which} of an earlier job of this name is not deleted yet")


def _taken(which: Ref) -> NameTaken:
    return NameTaken(f"{which} already exists and belongs to someone else; delete it, or rename the job")


def problem_of(error: OperatorError) -> Problem:
    """Return an error as a problem for the conditions."""
    if not isinstance(error, ApiError):
        return Problem("Error" if type(error) is OperatorError else type(error).__name__, str(error))
    reason = refused_for(str(error), otherwise="Invalid" if error.status == 422 else "ApiError")
    return Problem(reason, f"the API server refused: {error}")
