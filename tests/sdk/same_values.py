"""Whether two trees of values are the same: of TensorDicts as dicts, of observations, of states."""

from typing import Any

import numpy as np
import torch
from tensordict import NonTensorData


def assert_same(ours: Any, theirs: Any, *, at: str = "") -> None:
    """Check that two trees have the same types, keys in the same order, dtypes, shapes and values; NaN is NaN."""
    assert type(ours) is type(theirs), at
    if isinstance(theirs, dict):
        assert list(ours) == list(theirs), at
        for key, value in theirs.items():
            assert_same(ours[key], value, at=f"{at}[{key!r}]")
    elif isinstance(theirs, list | tuple):
        assert len(ours) == len(theirs), at
        for index, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            assert_same(one, other, at=f"{at}[{index}]")
    elif isinstance(theirs, torch.Tensor):
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape), at
        assert torch.equal(ours, theirs) or torch.allclose(ours, theirs, 0, 0, equal_nan=True), at
    elif isinstance(theirs, np.ndarray):
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape), at
        if theirs.dtype == object:
            assert_same(list(ours), list(theirs), at=at)
        else:
            np.testing.assert_array_equal(ours, theirs, at)
    elif isinstance(theirs, NonTensorData):
        assert ours.data == theirs.data, at
    else:
        assert ours == theirs, at
