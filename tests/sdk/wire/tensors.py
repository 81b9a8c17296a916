"""Tensors of any bits, dtype and form, and those bits."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from hypothesis import strategies as st


def bits(tensor: torch.Tensor) -> bytes:
    plain = tensor.detach().contiguous().reshape(-1)
    return bytes(plain.view(torch.uint8).numpy()) if tensor.numel() else b""


@st.composite
def tensors(draw: st.DrawFn, dtypes: Sequence[torch.dtype]) -> torch.Tensor:
    """Generate NaNs with payloads, denormals and -0.0, also without dimensions, without elements, transposed."""
    dtype = draw(st.sampled_from(dtypes))
    shape = tuple(draw(st.lists(st.integers(0, 4), max_size=5)))
    nbytes = math.prod(shape) * dtype.itemsize
    if nbytes == 0:
        return torch.empty(shape, dtype=dtype)
    raw = np.random.default_rng(draw(st.integers(0, 2**32))).integers(0, 256, nbytes, np.uint8)
    if dtype is torch.bool:
        raw &= 1
    tensor = torch.from_numpy(raw).view(dtype).view(shape)
    transposed = draw(st.booleans())
    return tensor.transpose(0, -1) if transposed and shape else tensor
