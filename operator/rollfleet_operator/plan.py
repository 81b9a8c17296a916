"""The actions that turn the observed children into the desired ones: pure functions of both."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from rollfleet_api.job import CollectorJob
from rollfleet_api.permissions import Role
from rollfleet_api.pods import END_NOW_S
from rollfleet_api.state.processes import Run
from rollfleet_api.state.verdict import Stage
from rollfleet_operator.manifest import Manifest, Ref, covers, ref
from rollfleet_operator.names import APPLIED
from rollfleet_operator.observed import Observed


@dataclass(frozen=True, slots=True)
class Apply:
    """Create or update an object (server-side apply).

    Attributes:
        manifest: The desired object.
        new: Whether no object of this name is known; an unknown one of another owner must not be overwritten.
    """

    manifest: Manifest
    new: bool


@dataclass(frozen=True, slots=True)
class Change:
    """Change fields of an existing object (merge patch)."""

    ref: Ref
    patch: Manifest


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete an object and its children. A later object of this name, with another `uid`, stays."""

    ref: Ref
    uid: str


Action = Apply | Change | Delete
Stamp = tuple[str, str]
"""The hash of the manifest that was applied, and the version of the API server's answer."""


def stamp(applied: Manifest, stored: Manifest) -> Stamp:
    """Return what shows that a stored object is the API server's answer to an apply."""
    return applied["metadata"].get("annotations", {}).get(APPLIED, ""), stored["metadata"].get("resourceVersion", "")


def plan_access(wanted: Sequence[Manifest], observed: Observed, answered: Mapping[Ref, Stamp]) -> list[Action]:
    """Plan the objects that give pods their rights.

    `answered` has the API server's answers: what it stores otherwise, as its webhooks want it, is not applied again.
    """
    actions: list[Action] = []
    for manifest in wanted:
        found = observed.children.get(ref(manifest))
        if found is None or not (covers(manifest, found) or answered.get(ref(manifest)) == stamp(manifest, found)):
            actions.append(Apply(manifest, new=found is None))
    unwanted = observed.children.keys() - {ref(manifest) for manifest in wanted}
    return actions + [
        Delete(which, observed.children[which]["metadata"]["uid"])
        for which in sorted(unwanted)
        if which.kind != "Job" and "deletionTimestamp" not in observed.children[which]["metadata"]
    ]


def plan_runs(
    job: CollectorJob,
    wanted: Sequence[Manifest] | None,
    observed: Observed,
    stage: Stage,
    *,
    lingering: bool = False,
    may_start: bool = True,
    again: bool = False,
) -> list[Action]:
    """Plan the Kubernetes Jobs, in the order of the actions.

    Existing runs are scaled and stopped first: that must work even if the API server refuses all else. Creations come
    before deletions: if the API server refuses a new revision, the workers of the old one keep running.

    Args:
        job: The job.
        wanted: The desired runs of a live job; None: they cannot be built now, and the existing ones stay.
        observed: The observed children.
        stage: The job's stage.
        lingering: Whether the workers of a complete job may still leave by themselves.
        may_start: Whether pods may start. Otherwise no run is created, enlarged, or deleted for a successor.
        again: Whether workers that an earlier learner has let go are needed again.
    """
    names = None if wanted is None else {manifest["metadata"]["name"] for manifest in wanted}
    runs = [run for run in observed.runs if not run.deleting]
    leaving = [run for run in runs if _must_go(job, run, names, stage, lingering=lingering, again=again)]
    starting = stage is Stage.LIVE and not job.spec.suspend
    # Kubernetes starts a pod again if one of its other containers failed.
    coming_back = [run for run in runs if any(pod.failed and pod.done for pod in observed.pods_of(run))]
    changed = [
        Change(Ref("Job", run.name), {"spec": spec})
        for run in runs
        if not run.finished and (starting or run not in leaving)  # one that leaves may have to stay
        if (spec := _changed(job, run, stopped=stage.ended and (not lingering or run in coming_back)))
        and (may_start or spec.get("parallelism", 0) <= run.pods)
    ]
    ending = [  # those of which other containers still run; unlike a deletion, a deadline leaves logs and exit codes
        Change(Ref("Pod", pod.name), {"spec": {"activeDeadlineSeconds": END_NOW_S}})
        for pod in observed.pods
        if pod.run
        and pod.role is not Role.ENV_SERVER  # its pod starts its container again
        and pod.phase == "Running"
        and not pod.deleting
        and (pod.crash or (pod.done and pod.role is Role.LEARNER))
    ]
    there = {run.name for run in observed.runs}  # one that is being deleted must vanish first
    created = [
        Apply(manifest, new=True)
        for manifest in (wanted or ())
        if starting and may_start and manifest["metadata"]["name"] not in there
    ]
    deleted = [Delete(Ref("Job", run.name), run.uid) for run in leaving if may_start]
    return [*changed, *created, *deleted, *ending]


def _must_go(
    job: CollectorJob, run: Run, wanted: Collection[str] | None, stage: Stage, *, lingering: bool, again: bool
) -> bool:
    if stage.ended and run.finished:  # it stays for its logs
        return False
    # Of a live job: the learner's pod was removed, or its workers were let go. Others start.
    lacking = run.complete and (run.role is Role.LEARNER or (again and run.role in (Role.WORKER, Role.EVALUATION)))
    if (stage is Stage.LIVE and lacking) or job.spec.suspend or (wanted is not None and run.name not in wanted):
        return True
    if stage is Stage.RETRY:
        return run.failed is not None or run.suspended
    return stage.ended and not lingering and run.held  # its scheduler would resume it


def _changed(job: CollectorJob, run: Run, *, stopped: bool) -> Manifest:
    """Return the changed fields of a run; empty: none."""
    if stopped:
        return {} if run.suspended else {"suspend": True}  # its pods that have failed stay for their logs
    size = max(job.spec.workers, 1) * run.per_worker or job.spec.size(run.role) or run.pods
    return {} if size == run.pods else {"completions": size, "parallelism": size}
