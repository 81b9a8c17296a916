"""Overlays of manifests, and whether one manifest covers another."""

from typing import Any

import pytest

from rollfleet_operator.manifest import covers, digest, overlay


@pytest.mark.parametrize(
    ("below", "above", "result"),
    [
        ({"a": 1, "b": {"c": 2}}, {"b": {"d": 3}}, {"a": 1, "b": {"c": 2, "d": 3}}),
        ({"a": 1, "b": 2}, {"a": None}, {"b": 2}),
        ({}, {"a": {"b": None}}, {"a": {"b": None}}),
        (
            {"a": {"b": 1}, "securityContext": {"c": 2}},
            {"a": {}, "securityContext": {}},
            {"a": {"b": 1}, "securityContext": {}},
        ),
    ],
)
def test_overlay(below: Any, above: Any, result: Any) -> None:
    assert overlay(below, above) == result


X, Y = {"name": "x", "a": 1}, {"name": "y"}
XB, XC = {"name": "x", "b": 1}, {"name": "x", "c": 1}
TCP, UDP = {"containerPort": 53, "protocol": "TCP"}, {"containerPort": 53, "protocol": "UDP"}
DNS = {"containerPort": 53, "name": "dns"}  # TCP is the default
GPUS = [{"key": "gpu", "value": value} for value in ("a100", "h100")]
TMP, *MOUNTS = [
    {"name": name, "mountPath": path}
    for name, path in (("tmp", "/tmp"), ("data", "/data"), ("data", "/cache"), ("tmp", "/scratch"))
]


@pytest.mark.parametrize(
    ("name", "below", "above", "result"),
    [
        pytest.param("l", [1, 2], [3], [3], id="plain list"),
        pytest.param("env", [X], [XB], [X | {"b": 1}], id="items of one name are merged"),
        pytest.param("env", [X], [Y], [X, Y], id="items of two names are kept"),
        pytest.param("env", [{"a": 1}], [{"b": 2}], [{"b": 2}], id="no names"),
        pytest.param("env", [{"name": []}], [{"name": {}}], [{"name": {}}], id="odd names"),
        pytest.param(
            "env", [X], [XB, Y, XC, Y | {"b": 2}], [X | {"c": 1}, Y | {"b": 2}], id="the last of a name counts"
        ),
        pytest.param("tolerations", [{"key": "gpu"}], GPUS, GPUS, id="tolerations of one key are all kept"),
        pytest.param("volumeMounts", [TMP], MOUNTS, [TMP, *MOUNTS], id="mounts of one volume are both kept"),
        pytest.param("ports", [TCP], [DNS, UDP], [TCP | DNS, UDP], id="ports of both protocols are kept"),
    ],
)
def test_overlay_of_lists(name: str, below: Any, above: Any, result: Any) -> None:
    assert overlay({name: below}, {name: above}) == {name: result}


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
