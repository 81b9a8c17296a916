"""What the record of a fleet must show: each batch once, none lost."""

from collections import defaultdict
from itertools import pairwise
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.faults.fleet import Fleet

GROWS_AT_MOST = 400 << 20  # bytes that a learner's memory may grow by in a schedule


def missing(fleet: "Fleet", lost_at: list[float]) -> set[str]:
    """Batches that NATS has said to have, since it last lost all that it had, and that no learner was handed."""
    handed = {share["identity"] for each in fleet.events("handed over") for share in each["shares"]}
    last_loss = max(lost_at, default=0.0)
    return {each["identity"] for each in fleet.events("stored") if each["s"] > last_loss} - handed


def check(fleet: "Fleet") -> None:
    """What must hold for the record of any run."""
    handed = fleet.events("handed over")
    shares = [(each, share) for each in handed for share in each["shares"]]
    assert not [fault for _, share in shares for fault in share["faults"]]
    _check_nothing_twice(shares, fleet.events("acknowledged"))
    _check_ids(share for _, share in shares)
    _check_versions(handed)
    rounds = [each["round"] for each in handed]
    assert rounds == sorted(rounds), "rounds go back"
    by_worker = defaultdict(list)
    for each in fleet.events("stored"):
        by_worker[each["pid"]].append(each["version"])
    assert all(acted == sorted(acted) for acted in by_worker.values()), "a worker's versions go back"
    for each, share in shares:
        assert share["version"] <= each["version"]
        assert each["round"] == 0 or share["round"] == each["round"], "a share of another round"
    memory = defaultdict(list)
    for each in fleet.events("stats"):
        memory[each["pid"]].append(each["memory"])
    assert all(seen[-1] - seen[0] < GROWS_AT_MOST for seen in memory.values())


def _check_versions(handed: list[Any]) -> None:
    """A learner's own never go back; its successor goes on from the newest that any worker has acted on."""
    acted: defaultdict[Any, int] = defaultdict(int)  # by the learner that was handed it
    given: dict[Any, int] = {}
    for each in handed:
        before = given.get(each["pid"])
        if before is None:
            assert each["version"] >= max(acted.values(), default=0), "a successor's versions go back"
        else:
            assert before <= each["version"], "a learner's versions go back"
        given[each["pid"]] = each["version"]
        acted[each["pid"]] = max(acted[each["pid"]], *(share["version"] for share in each["shares"]))


def _check_nothing_twice(shares: list[tuple[Any, Any]], acknowledged: list[Any]) -> None:
    """No batch twice for one learner; none at all once an earlier one's acknowledgement was confirmed."""
    confirmed = {each["identity"]: each["s"] for each in acknowledged}
    had: dict[str, Any] = {}
    for each, share in shares:
        identity = share["identity"]
        if identity in had:
            assert had[identity]["pid"] != each["pid"], f"{identity} came twice"
            assert identity not in confirmed or confirmed[identity] > each["s"], (
                f"{identity} came after it was acknowledged"
            )
        had[identity] = each
    spans: dict[tuple[int, ...], dict[str, Any]] = defaultdict(dict)
    for _, share in shares:
        for row in share["rows"]:
            spans[tuple(row["of"])][share["identity"]] = row["frames"]
    for spanned in spans.values():
        ordered = sorted(spanned.values())
        assert all(before[1] < after[0] for before, after in pairwise(ordered)), "a frame came twice"


def _check_ids(shares: Any) -> None:
    """Each trajectory id is of one episode of one environment of one process."""
    owners: dict[int, tuple[Any, ...]] = {}
    for share in shares:
        for row in share["rows"]:
            for trajectory, episode in row["ids"]:
                owner = (*row["of"], episode)
                assert owners.setdefault(trajectory, owner) == owner, f"trajectory id {trajectory} of two episodes"
