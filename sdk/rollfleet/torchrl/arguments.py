"""TorchRL's arguments as those of `rollfleet.Collector`, and those that TorchRL does not have."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch

from rollfleet.errors import JobInvalid

PLACE: Final = ("cluster", "job", "nats")
"""Keywords that no collector of TorchRL has: where the workers run."""

elsewhere: dict[str, Any] = {}
"""The place of collectors that name none, by the keywords of `PLACE`, and the number of their `workers`.

`python -m rollfleet.torchrl` sets it before it runs a program.
"""

NATIVE: Final[Mapping[str, tuple[str, Callable[[Any], object]]]] = {
    "exploration_type": ("exploration", lambda kind: str(kind.name).lower()),
    "init_random_frames": ("init_random_frames", int),
    "no_cuda_sync": ("no_cuda_sync", bool),
    "reset_at_each_iter": ("reset_at_each_iter", bool),
    "set_truncated": ("set_truncated", bool),
}
"""The keyword of `rollfleet.Collector` for an argument of TorchRL's, and its value.

What depends on the class, such as the frames of a batch, is in `FleetCollector._open` of each.
"""


def native(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keywords of `rollfleet.Collector` that arguments of TorchRL's translate to by `NATIVE`.

    Raises:
        JobInvalid: An argument cannot be had. The message names it.
        ValueError: A value cannot be used, as in TorchRL.
    """
    if arguments.get("weight_updater") is not None:
        raise JobInvalid("`weight_updater` is not available: weights travel by themselves; remove it")
    if arguments.get("cudagraph_policy") and not torch.cuda.is_available():
        raise JobInvalid("`cudagraph_policy` needs a CUDA device, and this machine has none; pass False or None")
    if arguments.get("reset_when_done") is False:
        raise ValueError("reset_when_done is deprecated.")
    found: dict[str, Any] = {
        ours: value(given) for name, (ours, value) in NATIVE.items() if (given := arguments.get(name)) is not None
    }
    if not arguments.get("storing_device") and not arguments.get("device"):
        found.pop("no_cuda_sync", None)
    written = getattr(arguments.get("replay_buffer"), "write_count", 0)
    found["init_random_frames"] = max(0, found.get("init_random_frames", 0) - written)
    return found
