"""Names of devices, compared without the devices."""

import pytest
import torch

from rollfleet.system.devices import same_device


@pytest.mark.parametrize(
    ("one", "other", "current", "same"),
    [
        ("cuda", "cuda:0", None, True),
        ("cuda:0", "cuda", 0, True),
        ("cuda", "cuda:1", 1, True),
        ("cuda", "cuda:0", 1, False),
        ("cuda:0", "cuda:1", None, False),
        ("cpu", "cpu:0", 1, True),
        ("mps:0", "mps", 1, True),
        ("cuda:0", "cpu", None, False),
    ],
)
def test_a_device_without_an_index_is_the_current_one(
    monkeypatch: pytest.MonkeyPatch, one: str, other: str, current: int | None, same: bool
) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: current is not None)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: current)
    assert same_device(torch.device(one), torch.device(other)) is same
    assert same_device(torch.device(other), torch.device(one)) is same
