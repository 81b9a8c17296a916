"""The table from TorchRL's arguments to those of `rollfleet.Collector`.

Each argument of TorchRL's collectors stands in one of these groups: it has a counterpart of the native collector
(`NATIVE`), this package carries it out (`HERE`), it has no effect on the data (`WITHOUT_EFFECT`), or it cannot be had,
as those of a newer TorchRL: it is refused, unless it is None or False.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch

from rollfleet.errors import JobInvalid


def _limit(value: Any) -> int | None:
    return None if value is None or value <= 0 else int(value)


def _exploration(value: Any) -> str:
    return "random" if value is None else str(value.name).lower()


def _flag(value: Any) -> bool | None:
    return True if value else None


NATIVE: Final[Mapping[str, tuple[str, Callable[[Any], Any]]]] = {
    "exploration_type": ("exploration", _exploration),
    "init_random_frames": ("init_random_frames", _limit),
    "no_cuda_sync": ("no_cuda_sync", _flag),
    "reset_at_each_iter": ("reset_at_each_iter", _flag),
    "set_truncated": ("set_truncated", _flag),
}
"""The argument, its name in `rollfleet.Collector`, and its value there; None: not given."""

_HERE: Final = """
auto_register_policy_transforms backend backend_options cat_results cluster collector_class collector_kwargs
compact_obs compile_policy create_env_fn create_env_kwargs cudagraph_policy device env_device frames_per_batch
init_fn job max_frames_per_traj max_weight_update_interval nats num_collectors num_workers
num_workers_per_collector policy policy_device policy_factory post_collect_hook postproc pre_collect_hook
preemptive_threshold remote_configs replay_buffer reset_when_done split_trajs storing_device sync total_frames
track_policy_version track_traj_ids traj_format trajs_per_batch trajs_per_write trust_policy
update_after_each_batch update_at_each_batch update_interval weight_recv_schemes weight_sync_schemes
weight_updater worker_idx
"""
HERE: Final = frozenset(_HERE.split())
"""Arguments that this package carries out."""

WITHOUT_EFFECT: Final[Mapping[str, str]] = {
    "extend_buffer": "a batch is written as a whole",
    "interruptor": "`preemptive_threshold` stops slow workers",
    "launcher": "`cluster=` starts pods, else processes are started",
    "num_sub_threads": "a worker process has an equal share of the CPUs",
    "num_threads": "a worker process has an equal share of the CPUs",
    "ray_init_config": "there is no Ray",
    "return_same_td": "each batch is the caller's own",
    "slurm_kwargs": "`sbatch` starts `rollfleet worker`",
    "tcp_port": "workers connect to NATS, or share memory",
    "tensorpipe_options": "there is no RPC",
    "traj_pool": "ids are unique without it",
    "use_buffers": "memory is managed by itself",
    "use_env_creator": "an environment is made in its worker",
    "visible_devices": "a worker sees the GPUs of its process or pod",
}
"""Arguments that are accepted, and why they change no batch."""


def native(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keywords of `rollfleet.Collector` that arguments of TorchRL's translate to by `NATIVE`.

    Raises:
        JobInvalid: An argument cannot be had, or is none of the table. The message names it.
        ValueError: A value cannot be used, as in TorchRL.
    """
    for name, value in arguments.items():
        if value is None or value is False or name in NATIVE or name in HERE or name in WITHOUT_EFFECT:
            continue
        raise JobInvalid(f"`{name}` is not available in rollfleet.torchrl; remove it")
    if arguments.get("cudagraph_policy") and not torch.cuda.is_available():
        raise JobInvalid("`cudagraph_policy` needs a CUDA device, and this machine has none; pass False or None")
    if arguments.get("reset_when_done") is False:
        raise ValueError("reset_when_done is deprecated.")
    found = {ours: of(arguments[name]) for name, (ours, of) in NATIVE.items() if name in arguments}
    if not arguments.get("storing_device") and not arguments.get("device"):
        found.pop("no_cuda_sync", None)
    return {name: value for name, value in found.items() if value is not None}
