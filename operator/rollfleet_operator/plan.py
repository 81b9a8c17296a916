"""The actions that turn the observed children into the desired ones: a pure function of both."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeGuard

from rollfleet_operator import names
from rollfleet_operator.manifest import Manifest, Ref, covers, ref
from rollfleet_operator.observed import Observed, Run

_CHANGEABLE = ("suspend", "completions", "parallelism", "backoffLimit")
"""The changeable fields of a Kubernetes Job; a change of another field makes a new Job, by its revision."""


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
    """Delete an object and its children.

    Attributes:
        ref: The object.
        uid: Its UID; a later object of this name stays.
    """

    ref: Ref
    uid: str


Action = Apply | Change | Delete


def plan(
    wanted: Sequence[Manifest],
    observed: Observed,
    *,
    retry: bool = False,
    again: Run | None = None,
    ended: bool = False,
) -> list[Action]:
    """Plan the actions, in their order.

    Existing runs are suspended and scaled first, also those of an earlier revision: that must work even if the API
    server refuses all else. Creations come before deletions: if the API server refuses a new revision, the workers of
    the old one keep running.

    Args:
        wanted: The desired children.
        observed: The observed children.
        retry: Whether to delete failed runs, because the job is tried again.
        again: A finished run to delete, so that it is created again.
        ended: Whether the job has ended: no run is created, and finished ones stay for their logs.

    Example:
        >>> plan(desired(job, inputs), Observed())[0].new
        True
    """
    runs = {Ref("Job", str(run.name)): run for run in observed.runs}
    deleted = list(_deletions(wanted, observed, runs, retry=retry, again=again, ended=ended))
    removed = {each.ref for each in deleted}
    written = [
        action
        for manifest in wanted
        if ref(manifest) not in removed
        for action in _writes(manifest, observed, runs)
        if not (ended and isinstance(action, Apply) and manifest["kind"] == "Job")
    ]
    created = {each.manifest["metadata"]["labels"][names.ROLE]: each.manifest for each in written if _is_run(each)}
    earlier = (
        _resized(runs[each.ref], created[runs[each.ref].name.role], observed)
        for each in deleted
        if each.ref in runs and runs[each.ref].name.role in created
    )
    changed = [*(each for each in written if isinstance(each, Change)), *(each for each in earlier if each)]
    return [*changed, *(each for each in written if not isinstance(each, Change)), *deleted]


def label_changes(wanted: Sequence[Manifest], observed: Observed) -> list[Change]:
    """Return the changes of the labels of runs. They come after all else: of a run that runs, Kueue refuses them."""
    runs, changes = {Ref("Job", str(run.name)): run for run in observed.runs}, []
    for manifest in wanted:
        which = ref(manifest)
        if which in runs and _is_open(runs[which]):
            patch = _labelled(manifest["metadata"], observed.children[which]["metadata"])
            changes += [Change(which, {"metadata": patch})] if patch else []
    return changes


def shrinks(actions: Sequence[Action], observed: Observed) -> bool:
    """Return whether there will be fewer workers: their pods must go before NATS shows them that they are too many."""
    pods = {Ref("Job", str(run.name)): run.pods for run in observed.runs}
    wanted = {action.ref: action.patch.get("spec", {}) for action in actions if isinstance(action, Change)}
    return any(spec.get("parallelism", pods[which]) < pods[which] for which, spec in wanted.items())


def starts(actions: Sequence[Action], observed: Observed) -> bool:
    """Return whether pods will start: they need their job on NATS."""
    runs = {Ref("Job", str(run.name)): run for run in observed.runs}
    for action in actions:
        match action:
            case Apply(manifest) if manifest["kind"] == "Job" and not manifest["spec"].get("suspend"):
                return True
            case Change(which, {"spec": spec}):
                run = runs[which]
                resumed, more = run.suspended and spec.get("suspend") is False, spec.get("parallelism", 0) > run.pods
                if resumed or (more and not spec.get("suspend")):
                    return True
    return False


def _writes(manifest: Manifest, observed: Observed, runs: dict[Ref, Run]) -> Iterator[Action]:
    which = ref(manifest)
    found = observed.children.get(which)
    if found is None:
        yield Apply(manifest, new=True)
    elif which in runs:
        if _is_open(runs[which]):
            yield from _sized_or_resumed(which, manifest, found)
    elif not covers(manifest, found):
        yield Apply(manifest, new=False)


def _is_run(action: Action) -> TypeGuard[Apply]:
    return isinstance(action, Apply) and action.manifest["kind"] == "Job"


def _is_open(run: Run) -> bool:
    """Return whether a run may change: one that is being deleted must vanish first, a finished one stays as it is."""
    return not run.deleting and not run.finished


def _sized_or_resumed(which: Ref, manifest: Manifest, found: Manifest) -> Iterator[Action]:
    patch, relabelled = _sized(manifest, found), bool(_labelled(manifest["metadata"], found["metadata"]))
    resumes = patch.get("spec", {}).get("suspend") is False
    if relabelled and "suspend" not in manifest["spec"]:
        patch.pop("metadata", None)  # keep our annotation until Kueue adopts the labels
    # Of a run that is resumed, Kueue refuses new labels: they come first, and the next plan resumes it.
    if patch and not (resumes and relabelled):
        yield Change(which, patch)


def _resized(run: Run, manifest: Manifest, observed: Observed) -> Change | None:
    """Return the change of an earlier run to the size of its successor; None: it has it, or has ended."""
    which = Ref("Job", str(run.name))
    patch = _sized(manifest, observed.children[which])
    return Change(which, patch) if patch and not (run.finished or run.deleting) else None


def _sized(manifest: Manifest, found: Manifest) -> Manifest:
    """Return the patch of the changeable fields of a run, and of the note about them; empty: it has them."""
    spec = {key: manifest["spec"][key] for key in _CHANGEABLE if key in manifest["spec"]}
    patch: Manifest = {} if covers(spec, found["spec"]) else {"spec": spec}
    note = {names.SUSPEND: manifest["metadata"]["annotations"][names.SUSPEND]}
    if not covers(note, found["metadata"].get("annotations") or {}):
        patch["metadata"] = {"annotations": note}
    return patch


def _labelled(wanted: Manifest, found: Manifest) -> Manifest:
    """Return the patch of the metadata of a run for its labels; empty: it has them.

    With an old queue label Kueue would suspend the run again. The operator removes only a queue that it has set itself:
    Kueue may have put the run into the queue of its namespace.
    """
    labels, present = wanted["labels"], found.get("labels") or {}
    queue, ours = wanted.get("annotations", {}).get(names.QUEUE), (found.get("annotations") or {}).get(names.QUEUE)
    patch: Manifest = {}
    if ours is not None and queue is None and present.get(names.QUEUE_NAME) == ours:
        patch["labels"] = labels | {names.QUEUE_NAME: None}
        patch["annotations"] = {names.QUEUE: None, names.SUSPEND: "true"}  # until the next plan resumes it
    elif not covers(labels, present):
        patch["labels"] = labels
    if queue is not None and queue != ours:
        patch["annotations"] = {names.QUEUE: queue}
    return patch


def _deletions(
    wanted: Sequence[Manifest],
    observed: Observed,
    runs: dict[Ref, Run],
    *,
    retry: bool,
    again: Run | None,
    ended: bool,
) -> Iterator[Delete]:
    names_wanted = {ref(manifest) for manifest in wanted}
    for which, found in observed.children.items():
        metadata = found["metadata"]
        run = runs.get(which)
        unwanted = which not in names_wanted and not (ended and run is not None and run.finished)
        if "deletionTimestamp" in metadata or metadata.get("labels", {}).get(names.MANAGED_BY) != names.FIELD_MANAGER:
            continue
        if unwanted or (run is not None and (run == again or (retry and run.failed))):
            yield Delete(which, metadata["uid"])
