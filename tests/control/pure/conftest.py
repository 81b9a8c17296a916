"""Jobs, and scenes of them."""

from collections.abc import Callable

import pytest
from tests.control.pure.scene import Scene, a_job, wanted

from rollfleet_api.job import CollectorJob
from rollfleet_operator.manifest import Manifest, Ref


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
