"""TorchRL warns about its own classes when it is imported."""

import warnings
from functools import partial

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import rollfleet.torchrl.processes

from rollfleet import Processes


@pytest.fixture
def forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes workers forks of this process: a new interpreter takes five seconds to import TorchRL."""
    monkeypatch.setattr(rollfleet.torchrl.processes, "Processes", partial(Processes, start_method="fork"))
