"""Every keyword of TorchRL's collectors is a keyword here, or the error for it has the one to write."""

import inspect
from typing import Any

import pytest
from torchrl import collectors
from torchrl.collectors import distributed

from rollfleet import Collector
from rollfleet.learner.torchrl_names import ABSENT, RENAMED

OURS = set(inspect.signature(Collector).parameters)
THEIRS: list[Any] = [
    collectors.Collector,
    collectors.MultiCollector,
    distributed.DistributedCollector,
    distributed.DistributedSyncCollector,
    distributed.RPCCollector,
    distributed.RayCollector,
]
_IN_A_WORKER = {"worker_idx"}  # set by TorchRL itself


def keywords_of(theirs: Any) -> set[str]:
    parameters = inspect.signature(theirs.__init__).parameters.values()
    return {each.name for each in parameters if each.kind is not inspect.Parameter.VAR_KEYWORD} - {"self"}


@pytest.mark.parametrize("theirs", THEIRS, ids=lambda each: each.__name__)
def test_every_keyword_of_torchrl_is_known(theirs: Any) -> None:
    found = keywords_of(theirs)
    assert len(found) > 15
    assert found - OURS - set(RENAMED) - set(ABSENT) - _IN_A_WORKER == set()


def test_each_hint_is_for_a_name_of_torchrl_that_is_none_of_ours() -> None:
    known = set.union(*map(keywords_of, THEIRS)) | {"num_workers", "filter_warnings_subprocess"}
    assert set(RENAMED) | set(ABSENT) <= known
    assert not (set(RENAMED) | set(ABSENT)) & OURS
    assert {value.partition("=")[0] for value in RENAMED.values()} <= OURS
