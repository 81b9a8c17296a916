"""TorchRL's arguments as those of `rollfleet.Collector`, and those that TorchRL does not have."""

from collections.abc import Mapping
from typing import Any, Final

import torch

from rollfleet.errors import JobInvalid

PLACE: Final = ("cluster", "job", "nats")
"""Keywords that no collector of TorchRL has: where the workers run."""

elsewhere: dict[str, Any] = {}
"""The place of collectors that name none, by the keywords of `PLACE`, and the number of their `workers`.

`python -m rollfleet.torchrl` sets it before it runs a program.
"""

_FLAGS: Final = ("no_cuda_sync", "reset_at_each_iter", "set_truncated")  # the same in `rollfleet.Collector`


def native(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keywords of `rollfleet.Collector` that arguments of TorchRL's translate to.

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
    found: dict[str, Any] = {name: True for name in _FLAGS if arguments.get(name)}
    if not arguments.get("storing_device") and not arguments.get("device"):
        found.pop("no_cuda_sync", None)
    if (exploration := arguments.get("exploration_type")) is not None:
        found["exploration"] = str(exploration.name).lower()
    written = getattr(arguments.get("replay_buffer"), "write_count", 0)
    if (frames := (arguments.get("init_random_frames") or 0) - written) > 0:
        found["init_random_frames"] = int(frames)
    return found
