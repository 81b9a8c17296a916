"""Every keyword of TorchRL's collectors is in the table of `rollfleet.torchrl`."""

import inspect
from typing import Any

import pytest
from torchrl import collectors
from torchrl.collectors import distributed

from rollfleet.torchrl.arguments import KNOWN

THEIRS: list[Any] = [
    collectors.Collector,
    collectors.MultiCollector,
    distributed.DistributedCollector,
    distributed.DistributedSyncCollector,
    distributed.RPCCollector,
    distributed.RayCollector,
]


def keywords_of(theirs: Any) -> set[str]:
    parameters = inspect.signature(theirs.__init__).parameters.values()
    return {each.name for each in parameters if each.kind is not inspect.Parameter.VAR_KEYWORD} - {"self"}


@pytest.mark.parametrize("theirs", THEIRS, ids=lambda each: each.__name__)
def test_every_keyword_of_torchrl_is_in_the_table(theirs: Any) -> None:
    found = keywords_of(theirs)
    assert len(found) > 15
    assert found <= KNOWN
