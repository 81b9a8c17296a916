"""Tensors copied into others, as fast as memory allows.

torch reads and writes a large tensor by elements, in threads that wait for each other: where other processes want the
same cores, for several times as long as copying its bytes takes. Between two tensors of the same dtype on the CPU that
is all there is to do.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

LARGE_BYTES = 1 << 17  # from here on torch uses its threads; and what is smaller is copied in one call for all


def copy_all(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    """Copy each source into its target, of the same shape, in place; wherever they are, whatever their dtypes."""
    others: tuple[list[Tensor], list[Tensor]] = ([], [])
    for target, source in zip(targets, sources, strict=True):
        if target.nbytes >= LARGE_BYTES and target.dtype is source.dtype and _is_plain(target) and _is_plain(source):
            np.copyto(_bytes(target), _bytes(source))
        else:
            others[0].append(target)
            others[1].append(source)
    if others[0]:  # torch refuses lists of nothing
        with torch.no_grad():
            torch._foreach_copy_(*others)


def _is_plain(tensor: Tensor) -> bool:
    """Whether the bytes of its rows, in their order, are its values."""
    lazy = tensor.is_conj() or tensor.is_neg()
    return type(tensor.detach()) is Tensor and tensor.is_cpu and tensor.stride(-1) == 1 and not lazy


def _bytes(tensor: Tensor) -> NDArray[Any]:
    return tensor.detach().view(torch.uint8).numpy()
