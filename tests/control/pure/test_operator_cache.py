"""What the operator knows of the cluster."""

import tracemalloc
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
from tests.control.pure.scene import stored_pod

from rollfleet_api.job import KIND
from rollfleet_api.kubernetes_names import JOB_LABEL, ROLE_LABEL
from rollfleet_operator.cache import Cache
from rollfleet_operator.manifest import Manifest
from rollfleet_operator.nats_port import JobKey

KEY = JobKey("lab", "cartpole")
Event = Callable[[Cache, Manifest], JobKey | None]
PUT, REMOVE = Cache.put, Cache.remove
PODS, MOST_BYTES_OF_POD = 200, 4000  # an untouched one of these takes 30,000
ENDED = {"exitCode": 1, "message": "x" * 4000 + "\nthe last line"}


def owned(version: int, *, uid: str = "1", **metadata: Any) -> Manifest:
    owner = {"kind": KIND, "name": "cartpole", "uid": "job"}
    base = {"name": "run", "namespace": "lab", "uid": uid, "resourceVersion": str(version), "ownerReferences": [owner]}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {**base, **metadata}}


@pytest.fixture
def cache() -> Cache:
    return Cache()


def versions(cache: Cache) -> list[str]:
    return [child["metadata"]["resourceVersion"] for child in cache.children(KEY, "job")]


@pytest.mark.parametrize(
    ("events", "jobs", "known"),
    [
        pytest.param([(PUT, owned(5)), (PUT, owned(7)), (PUT, owned(6))], [KEY, KEY, None], "7", id="older state"),
        pytest.param([(PUT, owned(5)), (PUT, owned(5))], [KEY, None], "5", id="known state"),
        pytest.param([(REMOVE, owned(7)), (PUT, owned(6))], [KEY, None], "", id="of a deleted object"),
        pytest.param([(REMOVE, owned(7)), (PUT, owned(7))], [KEY, KEY], "7", id="lost and got the label of its watch"),
        pytest.param(
            [(PUT, owned(3)), (PUT, owned(7, uid="2")), (PUT, owned(5))], [KEY, KEY, None], "7", id="of a predecessor"
        ),
        pytest.param([(PUT, owned(9, uid="2")), (REMOVE, owned(8))], [KEY, KEY], "9", id="deletion of a predecessor"),
    ],
)
def test_only_a_newer_state_is_taken(
    cache: Cache, events: list[tuple[Event, Manifest]], jobs: list[JobKey | None], known: str
) -> None:
    assert [take(cache, deepcopy(manifest)) for take, manifest in events] == jobs
    assert "".join(versions(cache)) == known


def test_of_a_pod_only_what_is_read_is_kept(cache: Cache) -> None:
    template = {"containers": [{"name": "worker", "env": [{"name": f"V{n}", "value": "x" * 50} for n in range(20)]}]}
    status = {"phase": "Failed", "containerStatuses": [{"name": "worker", "state": {"terminated": ENDED}}]}
    tracemalloc.start()
    try:
        for index in range(PODS):
            cache.put(deepcopy({**stored_pod(index), "spec": template, "status": status}))
        kept = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert kept < PODS * MOST_BYTES_OF_POD
    found = cache.pods(KEY)
    assert [each.index for each in found] == list(range(PODS))
    assert all(each.crash and each.crash.message.endswith("the last line") for each in found)


def test_pod_that_lost_its_role_is_no_longer_a_pod_of_the_job(cache: Cache) -> None:
    cache.put(stored_pod(0))
    changed = stored_pod(0, 8)
    del changed["metadata"]["labels"][ROLE_LABEL]
    assert cache.put(changed) == KEY
    assert cache.pods(KEY) == []


def test_children_of_an_earlier_job_of_the_name_are_ignored(cache: Cache) -> None:
    cache.put(owned(5))
    assert cache.children(KEY, "another job") == []


def test_owner_counts_more_than_a_label(cache: Cache) -> None:
    assert cache.put(owned(5, labels={JOB_LABEL: "other"})) == KEY


def test_an_object_whose_label_changes_is_kept_once(cache: Cache) -> None:
    for version in range(5, 9):
        key = cache.put(owned(version, ownerReferences=[], labels={JOB_LABEL: f"job-{version}"}))
        assert key == JobKey("lab", f"job-{version}")
    assert cache.put(owned(6, ownerReferences=[], labels={JOB_LABEL: "job-6"})) is None
    assert cache.keep_only("Job", set(), "9") == {JobKey("lab", "job-8")}


@pytest.mark.parametrize(
    ("version", "listed", "known"),
    [(5, None, []), (7, None, ["7"]), (5, "other", ["5"])],
    ids=["missing", "newer than the list", "of another namespace"],
)
def test_list_removes_missing_objects(cache: Cache, version: int, listed: str | None, known: list[str]) -> None:
    cache.put(owned(version))
    assert cache.keep_only("Job", set(), "6", namespace=listed) == (set() if known else {KEY})
    assert versions(cache) == known


def test_managed_fields_are_not_kept(cache: Cache) -> None:
    cache.put(owned(5, managedFields=[{"manager": "x"}]))
    assert "managedFields" not in cache.children(KEY, "job")[0]["metadata"]
