"""The chart, rendered."""

from pathlib import Path

import pytest
from tests.control.chart.helm import ABSENT, Helm, Rendered, find


@pytest.fixture(scope="session")
def helm(repository: Path) -> Helm:
    """Helm on the chart; skips where there is none."""
    program = find("helm")
    if program is None:
        pytest.skip(ABSENT)
    return Helm(program, repository / "charts/rollfleet")


@pytest.fixture(scope="session")
def rendered(helm: Helm) -> Rendered:
    return helm.render()
