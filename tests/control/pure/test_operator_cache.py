"""What the operator knows of the cluster."""

from typing import Any

import pytest

from rollfleet_api.job import KIND
from rollfleet_operator import names
from rollfleet_operator.cache import Cache
from rollfleet_operator.manifest import Manifest
from rollfleet_operator.nats_port import JobKey

KEY = JobKey("lab", "cartpole")


def owned(version: int, *, uid: str = "1", **metadata: Any) -> Manifest:
    owner = {"kind": KIND, "name": "cartpole", "uid": "job"}
    said = {"name": "run", "namespace": "lab", "uid": uid, "resourceVersion": str(version), "ownerReferences": [owner]}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {**said, **metadata}}


@pytest.fixture
def cache() -> Cache:
    return Cache()


def versions(cache: Cache) -> list[str]:
    return [child["metadata"]["resourceVersion"] for child in cache.children(KEY, "job")]


def test_newer_state_replaces_an_older_one_and_not_vice_versa(cache: Cache) -> None:
    for version in (5, 7, 6):
        assert cache.put(owned(version)) == KEY
    assert versions(cache) == ["7"]


def test_successor_of_the_same_name_replaces_it_whatever_its_version(cache: Cache) -> None:
    cache.put(owned(7))
    cache.put(owned(3, uid="2"))
    assert versions(cache) == ["3"]


def test_late_deletion_of_a_predecessor_removes_no_successor(cache: Cache) -> None:
    cache.put(owned(9, uid="2"))
    cache.remove(owned(8, uid="1"))
    assert versions(cache) == ["9"]


def test_children_of_an_earlier_job_of_the_name_are_ignored(cache: Cache) -> None:
    cache.put(owned(5))
    assert cache.children(KEY, "another job") == []


def test_owner_counts_more_than_a_label(cache: Cache) -> None:
    assert cache.put(owned(5, labels={names.JOB: "other"})) == KEY


def test_list_removes_missing_objects(cache: Cache) -> None:
    cache.put(owned(5))
    assert cache.replace("Job", [], "6") == {KEY}
    assert versions(cache) == []


def test_list_does_not_remove_newer_objects(cache: Cache) -> None:
    cache.put(owned(7))
    assert cache.replace("Job", [], "6") == set()
    assert versions(cache) == ["7"]


def test_list_from_before_a_deletion_does_not_restore_the_object(cache: Cache) -> None:
    cache.remove(owned(7))
    assert cache.replace("Job", [owned(5)], "5") == set()
    assert versions(cache) == []


def test_list_of_a_namespace_removes_nothing_elsewhere(cache: Cache) -> None:
    cache.put(owned(5))
    cache.replace("Job", [], "6", namespace="other")
    assert versions(cache) == ["5"]


def test_managed_fields_are_not_kept(cache: Cache) -> None:
    cache.put(owned(5, managedFields=[{"manager": "x"}]))
    assert "managedFields" not in cache.children(KEY, "job")[0]["metadata"]
