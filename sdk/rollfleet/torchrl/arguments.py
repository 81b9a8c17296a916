"""The table from TorchRL's arguments to those of `rollfleet.Collector`."""

from collections.abc import Mapping
from typing import Any, Final

import torch

from rollfleet.errors import JobInvalid

_CARRIED_OUT: Final = """
auto_register_policy_transforms backend backend_options cat_results cluster collector_class collector_kwargs
compact_obs compile_policy create_env_fn create_env_kwargs cudagraph_policy device env_device exploration_type
frames_per_batch init_fn init_random_frames job max_frames_per_traj max_weight_update_interval nats no_cuda_sync
num_collectors num_workers num_workers_per_collector policy policy_device policy_factory post_collect_hook postproc
pre_collect_hook preemptive_threshold remote_configs replay_buffer reset_at_each_iter reset_when_done set_truncated
split_trajs storing_device sync total_frames track_policy_version track_traj_ids traj_format trajs_per_batch
trajs_per_write trust_policy update_after_each_batch update_at_each_batch update_interval weight_recv_schemes
weight_sync_schemes weight_updater worker_idx
"""
_WITHOUT_EFFECT: Final = """
extend_buffer interruptor launcher num_sub_threads num_threads ray_init_config return_same_td slurm_kwargs tcp_port
tensorpipe_options traj_pool use_buffers use_env_creator visible_devices
"""
WITHOUT_EFFECT: Final = frozenset(_WITHOUT_EFFECT.split())
"""Arguments that are accepted, and change no batch."""
KNOWN: Final = WITHOUT_EFFECT.union(_CARRIED_OUT.split())
"""All arguments. Any other, as those of a newer TorchRL, is refused, unless it is None or False."""

_FLAGS: Final = ("no_cuda_sync", "reset_at_each_iter", "set_truncated")  # the same in `rollfleet.Collector`


def native(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keywords of `rollfleet.Collector` that arguments of TorchRL's translate to.

    Raises:
        JobInvalid: An argument cannot be had. The message names it.
        ValueError: A value cannot be used, as in TorchRL.
    """
    for name, value in arguments.items():
        if name not in KNOWN and value is not None and value is not False:
            raise JobInvalid(f"`{name}` is not available in rollfleet.torchrl; remove it")
    if arguments.get("cudagraph_policy") and not torch.cuda.is_available():
        raise JobInvalid("`cudagraph_policy` needs a CUDA device, and this machine has none; pass False or None")
    if arguments.get("reset_when_done") is False:
        raise ValueError("reset_when_done is deprecated.")
    found: dict[str, Any] = {name: True for name in _FLAGS if arguments.get(name)}
    if not arguments.get("storing_device") and not arguments.get("device"):
        found.pop("no_cuda_sync", None)
    if (exploration := arguments.get("exploration_type")) is not None:
        found["exploration"] = str(exploration.name).lower()
    if (frames := arguments.get("init_random_frames") or 0) > 0:
        found["init_random_frames"] = int(frames)
    return found
