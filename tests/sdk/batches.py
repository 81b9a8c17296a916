"""The batches of a collector: several as one, and whether two are the same."""

from itertools import islice

import torch
from tensordict import TensorDict
from tests.sdk.rollouts import along_time

from rollfleet import Collector


def several(collector: Collector, count: int = 3) -> TensorDict:
    """Return the next batches as one, of a row of frames for each environment."""
    return along_time([batch.clone() for batch in islice(collector, count)])


def assert_same(found: TensorDict, expected: TensorDict) -> None:
    """Check that two batches have the same keys, and the same dtypes and values under them."""
    assert set(found.keys(True, True)) == set(expected.keys(True, True))
    for key, value in expected.items(True, True):
        assert found[key].dtype == value.dtype, key
        assert torch.equal(found[key], value), key
