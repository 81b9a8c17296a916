"""What the operator's tests share: waiting."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.control.kubernetes import wait_for


@pytest.fixture(name="wait_for")
def waiting() -> Callable[..., Any]:
    return wait_for
