"""What the operator knows of the cluster."""

import tracemalloc
from copy import deepcopy
from typing import Any

import pytest

from rollfleet_api.job import KIND
from rollfleet_api.kubernetes_names import INDEX_LABEL, JOB_LABEL, ROLE_LABEL
from rollfleet_operator.cache import Cache
from rollfleet_operator.manifest import Manifest
from rollfleet_operator.nats_port import JobKey

KEY = JobKey("lab", "cartpole")
PODS, MOST_BYTES_OF_POD = 200, 4000  # an untouched one of these takes 30,000
ENDED = {"exitCode": 1, "message": "x" * 4000 + "\nthe last line"}


def owned(version: int, *, uid: str = "1", **metadata: Any) -> Manifest:
    owner = {"kind": KIND, "name": "cartpole", "uid": "job"}
    base = {"name": "run", "namespace": "lab", "uid": uid, "resourceVersion": str(version), "ownerReferences": [owner]}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {**base, **metadata}}


def pod(index: int, *, version: int = 7) -> Manifest:
    labels = {JOB_LABEL: "cartpole", ROLE_LABEL: "worker"}
    base = {"name": f"pod-{index}", "namespace": "lab", "uid": f"uid-{index}", "resourceVersion": str(version)}
    more = {"annotations": {INDEX_LABEL: str(index)}, "creationTimestamp": "2026-01-01T00:00:00Z"}
    return {"kind": "Pod", "metadata": {**base, **more, "labels": labels}, "spec": {"containers": []}}


@pytest.fixture
def cache() -> Cache:
    return Cache()


def versions(cache: Cache) -> list[str]:
    return [child["metadata"]["resourceVersion"] for child in cache.children(KEY, "job")]


def test_newer_state_replaces_an_older_one_and_not_vice_versa(cache: Cache) -> None:
    assert [cache.put(owned(version)) for version in (5, 7, 6)] == [KEY, KEY, None]
    assert versions(cache) == ["7"]


def test_known_state_is_no_change(cache: Cache) -> None:
    cache.put(owned(5))
    assert cache.put(owned(5)) is None
    assert cache.put(owned(5)) is None


def test_late_event_of_a_deleted_object_does_not_restore_it(cache: Cache) -> None:
    cache.remove(owned(7))
    cache.put(owned(6))
    assert versions(cache) == []


def test_object_that_lost_the_label_of_its_watch_can_be_stored_again(cache: Cache) -> None:
    cache.remove(owned(7))
    assert cache.put(owned(7)) == KEY
    assert versions(cache) == ["7"]


def test_of_a_pod_only_what_is_read_is_kept(cache: Cache) -> None:
    template = {"containers": [{"name": "worker", "env": [{"name": f"V{n}", "value": "x" * 50} for n in range(20)]}]}
    status = {"phase": "Failed", "containerStatuses": [{"name": "worker", "state": {"terminated": ENDED}}]}
    tracemalloc.start()
    try:
        for index in range(PODS):
            cache.put(deepcopy({**pod(index), "spec": template, "status": status}))
        kept = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert kept < PODS * MOST_BYTES_OF_POD
    found = cache.pods(KEY)
    assert [each.index for each in found] == list(range(PODS))
    assert all(each.crash and each.crash.message.endswith("the last line") for each in found)


def test_pod_that_lost_its_role_is_no_longer_a_pod_of_the_job(cache: Cache) -> None:
    cache.put(pod(0))
    changed = pod(0, version=8)
    del changed["metadata"]["labels"][ROLE_LABEL]
    assert cache.put(changed) == KEY
    assert cache.pods(KEY) == []


def test_late_event_of_a_predecessor_does_not_replace_its_successor(cache: Cache) -> None:
    cache.put(owned(3))
    cache.put(owned(7, uid="2"))
    cache.put(owned(5))
    assert versions(cache) == ["7"]


def test_late_deletion_of_a_predecessor_removes_no_successor(cache: Cache) -> None:
    cache.put(owned(9, uid="2"))
    cache.remove(owned(8, uid="1"))
    assert versions(cache) == ["9"]


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


def test_list_removes_missing_objects(cache: Cache) -> None:
    cache.put(owned(5))
    assert cache.keep_only("Job", set(), "6") == {KEY}
    assert versions(cache) == []


def test_list_does_not_remove_newer_objects(cache: Cache) -> None:
    cache.put(owned(7))
    assert cache.keep_only("Job", set(), "6") == set()
    assert versions(cache) == ["7"]


def test_list_of_a_namespace_removes_nothing_elsewhere(cache: Cache) -> None:
    cache.put(owned(5))
    cache.keep_only("Job", set(), "6", namespace="other")
    assert versions(cache) == ["5"]


def test_managed_fields_are_not_kept(cache: Cache) -> None:
    cache.put(owned(5, managedFields=[{"manager": "x"}]))
    assert "managedFields" not in cache.children(KEY, "job")[0]["metadata"]
