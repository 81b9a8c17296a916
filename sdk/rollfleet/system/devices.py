"""Devices that this machine has, by torch's names of them."""

from typing import TypeAlias

import torch

from rollfleet.arguments import plain, shown
from rollfleet.errors import JobInvalid

Device: TypeAlias = str | torch.device


def device_of(value: object, keyword: str) -> torch.device:
    """Return a torch device by its name. Initializes no CUDA: processes may still be forked.

    Args:
        value: A name such as "cuda:0", or a `torch.device`.
        keyword: The name of the argument, for messages.

    Raises:
        JobInvalid: torch has no such device, or this machine has none. The message names the keyword.

    Example:
        >>> device_of("cpu", "device")
        device(type='cpu')
    """
    try:
        device = torch.device(plain(value))
    except (RuntimeError, TypeError, ValueError):  # with all signatures, or all types of devices, in its message
        raise JobInvalid(
            f"`{keyword}`: {shown(value)} is not a torch device; write a name such as 'cpu' or 'cuda:0'"
        ) from None
    if not _exists(device):
        raise JobInvalid(
            f"`{keyword}`: this machine has no device {str(device)!r}; write one that it has, such as 'cpu'"
        )
    return device


def same_device(one: torch.device, other: torch.device) -> bool:
    """Whether two names are those of one device: `cuda` is the current one, `cpu` the only one."""
    current = torch.cuda.current_device() if one.type == "cuda" and torch.cuda.is_initialized() else 0
    indices = {current if device.index is None else device.index for device in (one, other)}
    return one.type == other.type and len(indices) == 1


def _exists(device: torch.device) -> bool:
    if device.type == "cuda":
        return torch.cuda.is_available() and (device.index or 0) < torch.cuda.device_count()
    try:
        torch.empty(0, device=device)
    except (AssertionError, ImportError, RuntimeError):
        return False
    return True
