"""What is to be done so that what is there becomes what should be: a pure function of both."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rollfleet_operator import names
from rollfleet_operator.manifest import Manifest, Ref, covers, ref
from rollfleet_operator.observed import Observed, Run

_CHANGEABLE = ("suspend", "completions", "parallelism", "backoffLimit")
"""What the API server lets us change of a Kubernetes Job; the rest is a new one's, by its revision."""


@dataclass(frozen=True, slots=True)
class Apply:
    """Make it, or make it so again (server-side apply).

    Attributes:
        manifest: All that it should say.
        new: Nothing of that name was seen: whoever else has it must not lose it.
    """

    manifest: Manifest
    new: bool


@dataclass(frozen=True, slots=True)
class Change:
    """Change some fields of what is there (a merge patch)."""

    ref: Ref
    patch: Manifest


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete it, and what it owns.

    Attributes:
        ref: Which object.
        uid: Which one of that name.
    """

    ref: Ref
    uid: str


Action = Apply | Change | Delete


def plan(wanted: Sequence[Manifest], observed: Observed, *, anew: bool = False, ended: bool = False) -> list[Action]:
    """What is to be done, in this order.

    What is new comes before the old goes: where the API server refuses a new revision, the workers of the old go on.

    Args:
        wanted: What should be there.
        observed: What is.
        anew: Delete the runs that failed: the job is tried again.
        ended: The job is over: no run is made, and those that are over stay, for their logs.
    """
    runs = {Ref("Job", str(run.name)): run for run in observed.runs}
    deleted = list(_deletions(wanted, observed, runs, anew=anew, ended=ended))
    gone = {each.ref for each in deleted}
    made = [
        action
        for manifest in wanted
        if ref(manifest) not in gone
        for action in _mended(manifest, observed, runs)
        if not (ended and isinstance(action, Apply) and manifest["kind"] == "Job")
    ]
    return [*made, *deleted]


def shrinks(actions: Sequence[Action], observed: Observed) -> bool:
    """Whether there will be fewer workers: then they go before NATS tells that they are too many."""
    pods = {Ref("Job", str(run.name)): run.pods for run in observed.runs}
    wanted = {action.ref: action.patch.get("spec", {}) for action in actions if isinstance(action, Change)}
    return any(spec.get("parallelism", pods[which]) < pods[which] for which, spec in wanted.items())


def starts(actions: Sequence[Action], observed: Observed) -> bool:
    """Whether pods will start: they must find their job on NATS."""
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


def _mended(manifest: Manifest, observed: Observed, runs: dict[Ref, Run]) -> Iterator[Action]:
    which = ref(manifest)
    found = observed.children.get(which)
    if found is None:
        yield Apply(manifest, new=True)
    elif which in runs:
        # One that is about to vanish is waited for, one that is over stays as it is.
        if not runs[which].deleting and not runs[which].finished:
            yield from _changed(which, manifest, found)
    elif not covers(manifest, found):
        yield Apply(manifest, new=False)


def _changed(which: Ref, manifest: Manifest, found: Manifest) -> Iterator[Action]:
    labels = manifest["metadata"]["labels"]
    spec = {key: manifest["spec"][key] for key in _CHANGEABLE if key in manifest["spec"]}
    patch: Manifest = {}
    there = found["metadata"].get("labels") or {}
    left = {names.QUEUE_NAME: None} if names.QUEUE_NAME in there and names.QUEUE_NAME not in labels else {}
    if left or not covers(labels, there):  # a label that stayed would have Kueue suspend what we resume
        patch["metadata"] = {"labels": labels | left}
    if not covers(spec, found["spec"]):
        patch["spec"] = spec
    if patch:
        yield Change(which, patch)


def _deletions(
    wanted: Sequence[Manifest], observed: Observed, runs: dict[Ref, Run], *, anew: bool, ended: bool
) -> Iterator[Delete]:
    names_wanted = {ref(manifest) for manifest in wanted}
    for which, found in observed.children.items():
        metadata = found["metadata"]
        run = runs.get(which)
        unwanted = which not in names_wanted and not (ended and run is not None and run.finished)
        if "deletionTimestamp" in metadata or metadata.get("labels", {}).get(names.MANAGED_BY) != names.FIELD_MANAGER:
            continue
        if unwanted or (anew and run is not None and run.failed):
            yield Delete(which, metadata["uid"])
