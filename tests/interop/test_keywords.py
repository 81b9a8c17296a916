"""Every keyword of TorchRL's collectors is read by `rollfleet.torchrl`, or the page for its users says otherwise."""

import inspect
import re
from pathlib import Path
from typing import Any

import pytest
from torchrl import collectors
from torchrl.collectors import distributed

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
def test_every_keyword_of_torchrl_is_read_or_on_the_page_for_its_users(theirs: Any, repository: Path) -> None:
    code = "".join(path.read_text() for path in (repository / "sdk/rollfleet/torchrl").glob("*.py"))
    page = (repository / "docs/coming-from-torchrl.md").read_text()
    keywords = keywords_of(theirs)
    assert len(keywords) > 15
    unread = {name for name in keywords if not re.search(rf"\b{name}\b", code)}
    assert {name for name in unread if f"`{name}`" not in page} == set()
