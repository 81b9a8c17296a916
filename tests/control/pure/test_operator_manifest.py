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
        ({"l": [{"name": "x", "a": 1}]}, {"l": [{"name": "x", "b": 2}]}, {"l": [{"name": "x", "a": 1, "b": 2}]}),
        ({"l": [{"name": "x"}]}, {"l": [{"name": "y"}]}, {"l": [{"name": "x"}, {"name": "y"}]}),
        ({"l": [{"a": 1}]}, {"l": [{"b": 2}]}, {"l": [{"b": 2}]}),
        ({}, {"a": {"b": None}}, {"a": {"b": None}}),
    ],
)
def test_overlay(below: Any, above: Any, result: Any) -> None:
    assert overlay(below, above) == result


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
        ({"l": [{"name": "x", "a": 1}]}, {"l": [{"name": "y"}, {"name": "x", "a": 1, "b": 2}]}, True),
        ({"l": [{"name": "x"}]}, {"l": [{"name": "y"}]}, False),
        ({"l": [1, 2]}, {"l": [1, 2, 3]}, False),
        ({"l": [{"a": 1}]}, {"l": [{"a": 1, "protocol": "TCP"}]}, True),
        ({"l": []}, {"l": None}, False),
    ],
)
def test_covers(wanted: Any, found: Any, result: bool) -> None:
    assert covers(wanted, found) is result


def test_digest_does_not_depend_on_order() -> None:
    assert digest({"a": 1, "b": [2]}) == digest({"b": [2], "a": 1}) != digest({"a": 1, "b": [3]})
