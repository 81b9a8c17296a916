"""Wrong arguments of public functions other than collectors are errors of one line that name the argument."""

from collections.abc import Callable
from typing import Any

import pytest
from gymnasium.spaces import Box, Discrete

import rollfleet
from rollfleet.errors import JobInvalid

NOWHERE = "nats://127.0.0.1:1"
NONE: Any = None
CALLS: dict[str, tuple[str, Callable[[Any], object]]] = {
    "Checkpoint's folder": ("folder", lambda value: rollfleet.Checkpoint(value, NONE, {})),
    "Checkpoint's parts": ("parts", lambda value: rollfleet.Checkpoint(".", NONE, value)),
    "Recording's folder": ("folder", lambda value: rollfleet.Recording(value)),
    "record's folder": ("folder", lambda value: rollfleet.record("a/b", value, address=NOWHERE)),
    "record's size": ("segment_bytes", lambda value: rollfleet.record("a/b", segment_bytes=value, address=NOWHERE)),
    "record's memory": ("memory_bytes", lambda value: rollfleet.record("a/b", memory_bytes=value, address=NOWHERE)),
    "track's tracker": ("to", lambda value: rollfleet.track(NONE, value)),
    "track's folder": ("folder", lambda value: rollfleet.track(NONE, "tensorboard", folder=value)),
    "make_env's spec": ("spec", lambda value: rollfleet.make_env(value)),
    "make_policy's spec": ("spec", lambda value: rollfleet.make_policy(value, Box(-1, 1), Discrete(2))),
}


@pytest.mark.parametrize("value", [5.5, [], b"x", len, object()], ids=lambda value: type(value).__name__)
@pytest.mark.parametrize("call", CALLS)
def test_a_wrong_argument_is_named(call: str, value: Any) -> None:
    name, function = CALLS[call]
    with pytest.raises(JobInvalid, match=rf"^{name}: expected .*, got ") as raised:
        function(value)
    assert "\n" not in str(raised.value)
