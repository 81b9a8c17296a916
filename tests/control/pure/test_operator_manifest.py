"""Overlays of manifests, and whether one manifest covers another."""

from typing import Any

import pytest

from rollfleet_operator.manifest import covers, digest, overlay


@pytest.mark.parametrize(
    ("below", "above", "result"),
    [
        ({"a": 1, "b": {"c": 2}}, {"b": {"d": 3}}, {"a": 1, "b": {"c": 2, "d": 3}}),
        ({"a": 1, "b": 2}, {"a": None}, {"b": 2}),
        ({"l": [1, 2]}, {"l": [3]}, {"l": [3]}),
        ({"env": [{"name": "x", "a": 1}]}, {"env": [{"name": "x", "b": 2}]}, {"env": [{"name": "x", "a": 1, "b": 2}]}),
        ({"env": [{"name": "x"}]}, {"env": [{"name": "y"}]}, {"env": [{"name": "x"}, {"name": "y"}]}),
        ({"env": [{"a": 1}]}, {"env": [{"b": 2}]}, {"env": [{"b": 2}]}),
        ({"env": [{"name": []}]}, {"env": [{"name": {}}]}, {"env": [{"name": {}}]}),
        (
            {"env": [{"name": "x", "a": 1}]},
            {"env": [{"name": "x", "b": 1}, {"name": "y"}, {"name": "x", "c": 1}, {"name": "y", "b": 2}]},
            {"env": [{"name": "x", "a": 1, "c": 1}, {"name": "y", "b": 2}]},
        ),
        (
            {"tolerations": [{"key": "x"}]},
            {"tolerations": [{"key": "x", "value": "a"}]},
            {"tolerations": [{"key": "x", "value": "a"}]},
        ),
        ({}, {"a": {"b": None}}, {"a": {"b": None}}),
    ],
)
def test_overlay(below: Any, above: Any, result: Any) -> None:
    assert overlay(below, above) == result


def test_mounts_of_one_volume_are_both_kept() -> None:
    data = {"name": "data", "mountPath": "/data"}
    cache = {"name": "data", "mountPath": "/cache", "subPath": "cache"}
    tmp = {"name": "tmp", "mountPath": "/tmp"}
    scratch = {"name": "tmp", "mountPath": "/scratch"}
    assert overlay({"volumeMounts": [tmp]}, {"volumeMounts": [data, cache, scratch]}) == {
        "volumeMounts": [tmp, data, cache, scratch]
    }


def test_ports_of_both_protocols_are_kept_and_tcp_is_the_default() -> None:
    below = [{"containerPort": 53, "protocol": "TCP"}]
    above = [{"containerPort": 53, "name": "dns"}, {"containerPort": 53, "protocol": "UDP"}]
    assert overlay({"ports": below}, {"ports": above})["ports"] == [
        {"containerPort": 53, "protocol": "TCP", "name": "dns"},
        {"containerPort": 53, "protocol": "UDP"},
    ]


def test_tolerations_of_one_key_are_all_kept() -> None:
    tolerations = [{"key": "gpu", "value": value} for value in ("a100", "h100")]
    assert overlay({}, {"tolerations": tolerations}) == {"tolerations": tolerations}
    assert overlay({"tolerations": [{"key": "x"}]}, {"tolerations": tolerations}) == {"tolerations": tolerations}


def test_result_of_an_overlay_shares_nothing() -> None:
    below: Any = {"kept": {"a": [1]}}
    above: Any = {"added": {"b": [2]}}
    created = overlay(below, above)
    created["kept"]["a"].append(3)
    created["added"]["b"].append(3)
    assert (below, above) == ({"kept": {"a": [1]}}, {"added": {"b": [2]}})


@pytest.mark.parametrize(
    ("wanted", "found", "result"),
    [
        ({"a": 1}, {"a": 1, "b": 2}, True),
        ({"a": 1}, {"a": 2}, False),
        ({"a": {}}, {}, False),
        ({"env": [{"name": "x", "a": 1}]}, {"env": [{"name": "y"}, {"name": "x", "a": 1, "b": 2}]}, True),
        ({"env": [{"name": "x"}]}, {"env": [{"name": "y"}]}, False),
        ({"ownerReferences": [{"uid": "1"}]}, {"ownerReferences": [{"uid": "1"}, {"uid": "2"}]}, True),
        ({"l": [1, 2]}, {"l": [1, 2, 3]}, False),
        ({"l": [{"a": 1}]}, {"l": [{"a": 1, "protocol": "TCP"}]}, True),
        ({"l": []}, {"l": None}, False),
    ],
)
def test_covers(wanted: Any, found: Any, result: bool) -> None:
    assert covers(wanted, found) is result


def test_digest_does_not_depend_on_order() -> None:
    assert digest({"a": 1, "b": [2]}) == digest({"b": [2], "a": 1}) != digest({"a": 1, "b": [3]})
