"""The chart, rendered."""

from pathlib import Path

import pytest
from tests.control.chart.helm import Helm, Rendered


@pytest.fixture(scope="session")
def helm(repository: Path) -> Helm:
    return Helm(repository / "charts/rollfleet")


@pytest.fixture(scope="session")
def rendered(helm: Helm) -> Rendered:
    return helm.render()
