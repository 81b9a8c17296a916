"""The memory of tensors: new, copied as fast as memory allows, seen through dtypes that numpy and torch can work with.

torch copies a large tensor by elements, in threads that wait for each other. While other processes want the same cores
this takes several times as long as copying its bytes. Between two CPU tensors of the same dtype the bytes suffice.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Array: TypeAlias = NDArray[Any]
Empty: TypeAlias = Callable[[Sequence[int], torch.dtype], Tensor]
"""Allocates a tensor of this shape and dtype on the CPU."""

LARGE_BYTES = 1 << 17  # from this size on torch uses threads; all smaller tensors are copied by one call together

_SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}


def fresh(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Allocate a tensor on the CPU in memory of its own."""
    return torch.empty(tuple(shape), dtype=dtype, device="cpu")


def copy_all(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    """Copy each source into the target of the same shape, in place; devices and dtypes may differ."""
    others: tuple[list[Tensor], list[Tensor]] = ([], [])
    for target, source in zip(targets, sources, strict=True):
        if target.nbytes >= LARGE_BYTES and target.dtype is source.dtype and _is_plain(target) and _is_plain(source):
            np.copyto(_bytes(target), _bytes(source))
        else:
            others[0].append(target)
            others[1].append(source)
    if others[0]:  # torch refuses empty lists
        with torch.no_grad():
            torch._foreach_copy_(*others)


def as_array(tensor: Tensor) -> Array:
    """Return a view of a CPU tensor's memory, or a copy from another device; bfloat16, unknown to numpy, as int16."""
    array: Array = (tensor.view(torch.int16) if tensor.dtype is torch.bfloat16 else tensor).numpy(force=True)
    return array


def as_tensor(array: Array, dtype: torch.dtype) -> Tensor:
    """Return what `as_array` made of a tensor of this dtype as a tensor: of the array's memory if it is contiguous."""
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    return tensor.view(dtype) if dtype is torch.bfloat16 else tensor


def as_arrays(tensors: Sequence[Tensor]) -> list[Array]:
    """Return `as_array` of each. Usual tensors take half the time, which counts at each step of a policy."""
    try:
        return [tensor.numpy() for tensor in tensors]
    except (RuntimeError, TypeError):  # one has a gradient, or is on another device, or of a dtype unknown to numpy
        return [as_array(tensor) for tensor in tensors]


def indexable(tensor: Tensor) -> Tensor:
    """Return a view with a dtype that torch can index: signed for unsigned integers. Only its bits may be copied."""
    signed = _SIGNED.get(tensor.dtype)
    return tensor if signed is None else tensor.view(signed)


def _is_plain(tensor: Tensor) -> bool:
    """Whether the bytes of its rows, in their order, are its values."""
    lazy = tensor.is_conj() or tensor.is_neg()
    return type(tensor.detach()) is Tensor and tensor.is_cpu and tensor.stride(-1) == 1 and not lazy


def _bytes(tensor: Tensor) -> Array:
    return tensor.detach().view(torch.uint8).numpy()
