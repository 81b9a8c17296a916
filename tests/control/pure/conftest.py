"""Jobs, and scenes of them."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.api.job_data import SMALLEST, job_data
from tests.control.pure.scene import NOW_S, Scene, wanted

from rollfleet_api.job import CollectorJob
from rollfleet_api.times import format_time
from rollfleet_api.validation import parse_job
from rollfleet_operator.manifest import Manifest, Ref, overlay

UID = "0b5e0000-0000-4000-8000-000000000001"


def a_job(
    name: str = "cartpole", *, labels: dict[str, str] | None = None, generation: int = 1, **spec: Any
) -> CollectorJob:
    """A job as the API server would give it, with these fields of its spec (in YAML's words) instead of the usual."""
    metadata = {"name": name, "namespace": "lab", "uid": UID, "generation": generation, "labels": labels or {}}
    data = job_data(metadata | {"creationTimestamp": format_time(NOW_S - 100)})
    return parse_job(data | {"spec": overlay(SMALLEST | {"workers": 2}, spec)})


@pytest.fixture
def job() -> Callable[..., CollectorJob]:
    return a_job


@pytest.fixture
def want() -> Callable[..., dict[Ref, Manifest]]:
    return wanted


@pytest.fixture
def scene() -> Callable[..., Scene]:
    """A scene in which all children of a job were created."""
    return lambda **spec: Scene(a_job(**spec)).with_children()
