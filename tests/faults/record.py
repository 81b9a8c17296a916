"""Checks the events of a fleet: each batch arrives once and in order, and is lost only with its worker."""

from collections import defaultdict
from itertools import pairwise
from typing import Any

from tests.faults.fleet import Fleet

GROWS_AT_MOST = 400 << 20  # growth of a learner's memory in a schedule, in bytes


def missing(fleet: Fleet) -> set[str]:
    """Return the batches that no learner was handed, less the last ones of killed workers, which are lost with them."""
    handed = {fragment["identity"] for each in fleet.events("handed over") for fragment in each["fragments"]}
    by_worker = defaultdict(list)
    for each in fleet.events("collected"):
        by_worker[each["pid"]].append(each["identity"])
    kept = fleet.job.spec.delivery.max_batches_ahead + 1
    return {
        identity
        for pid, identities in by_worker.items()
        for identity in (identities[:-kept] if pid in fleet.killed else identities)
        if identity not in handed
    }


def check(fleet: Fleet) -> None:
    """Check the facts that hold for every run."""
    handed = fleet.events("handed over")
    fragments = [(each, fragment) for each in handed for fragment in each["fragments"]]
    assert not [fault for _, fragment in fragments for fault in fragment["faults"]]
    _check_nothing_twice(fragments)
    _check_order(fragments)
    _check_ids(fragment for _, fragment in fragments)
    _check_versions(handed, fleet.events("collected"))
    rounds = defaultdict(list)
    for each in handed:
        rounds[each["pid"]].append(each["round"])
    assert all(opened == sorted(opened) for opened in rounds.values()), "a learner's rounds decrease"
    by_worker = defaultdict(list)
    for each in fleet.events("collected"):
        by_worker[each["pid"]].append(each["version"])
    assert all(acted == sorted(acted) for acted in by_worker.values()), "a worker's versions decrease"
    for each, fragment in fragments:
        assert fragment["version"] <= each["version"]
        assert each["round"] == 0 or fragment["round"] == each["round"], "a fragment of another round"
    memory = defaultdict(list)
    for each in fleet.events("stats"):
        memory[each["pid"]].append(each["memory"])
    assert all(seen[-1] - seen[0] < GROWS_AT_MOST for seen in memory.values())


def _check_versions(handed: list[Any], collected: list[Any]) -> None:
    """Check that a learner's versions never decrease, and that its successor continues from the newest used one.

    Where no worker outlived the predecessor, only the job's owner knows its versions, as of its last heartbeat.
    """
    lives: dict[int, tuple[float, float]] = {}
    for each in collected:
        lives[each["pid"]] = (lives.get(each["pid"], (each["s"],))[0], each["s"])
    last_s = 0.0
    acted: defaultdict[Any, int] = defaultdict(int)  # by the learner that was handed it
    given: dict[Any, int] = {}
    for each in handed:
        before = given.get(each["pid"])
        if before is not None:
            assert before <= each["version"], "a learner's versions decrease"
        elif any(first < last_s and each["s"] < last for first, last in lives.values()):
            assert each["version"] >= max(acted.values(), default=0), "a successor's versions decrease"
        last_s = each["s"]
        given[each["pid"]] = each["version"]
        acted[each["pid"]] = max(acted[each["pid"]], *(fragment["version"] for fragment in each["fragments"]))


def _check_nothing_twice(fragments: list[tuple[Any, Any]]) -> None:
    """Check that no learner gets a batch, or a frame, twice."""
    had: dict[str, int] = {}
    for each, fragment in fragments:
        assert had.get(fragment["identity"]) != each["pid"], f"{fragment['identity']} came twice"
        had[fragment["identity"]] = each["pid"]
    spans: dict[tuple[int, ...], dict[str, Any]] = defaultdict(dict)
    for _, fragment in fragments:
        for row in fragment["rows"]:
            spans[tuple(row["of"])][fragment["identity"]] = row["frames"]
    for spanned in spans.values():
        ordered = sorted(spanned.values())
        assert all(before[1] < after[0] for before, after in pairwise(ordered)), "a frame came twice"


def _check_order(fragments: list[tuple[Any, Any]]) -> None:
    """Check that a learner gets the batches of a worker's process in order."""
    last: dict[tuple[int, ...], Any] = {}
    for each, fragment in fragments:
        for row in fragment["rows"]:
            of = (each["pid"], *row["of"])
            assert last.get(of, [-1]) < row["frames"], f"{fragment['identity']} was overtaken"
            last[of] = row["frames"]


def _check_ids(fragments: Any) -> None:
    """Check that each trajectory id belongs to one episode of one environment of one process."""
    owners: dict[int, tuple[Any, ...]] = {}
    for fragment in fragments:
        for row in fragment["rows"]:
            for trajectory, episode in row["ids"]:
                owner = (*row["of"], episode)
                assert owners.setdefault(trajectory, owner) == owner, f"trajectory id {trajectory} of two episodes"
