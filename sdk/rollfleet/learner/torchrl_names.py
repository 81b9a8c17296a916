"""Keywords of TorchRL's collectors that have another name here, or none: the table of docs/coming-from-torchrl.md."""

from collections.abc import Mapping
from typing import Final

RENAMED: Final[Mapping[str, str]] = {
    "create_env_fn": "env",
    "create_env_kwargs": "env_kwargs",
    "num_collectors": "workers",
    "num_workers": "workers",
    "sync": 'mode="sync"',
    "storing_device": "device",
    "exploration_type": 'exploration="random"',
    "update_at_each_batch": "weights_interval=1",
    "update_after_each_batch": "weights_interval=1",
    "max_weight_update_interval": "weights_interval=1",
    "update_interval": "weights_interval=1",
    "weight_sync_schemes": "weight_scheme",
    "weight_recv_schemes": "weight_scheme",
    "weight_updater": "weight_scheme",
    "num_workers_per_collector": "num_envs",
    "preemptive_threshold": "stragglers_threshold",
    "filter_warnings_subprocess": "quiet",
}
"""TorchRL's keyword, and the keyword to write here, with a value where it has another form."""

ABSENT: Final[Mapping[str, str]] = {
    "trust_policy": "not needed: any callable is accepted",
    "compile_policy": "not available: compile the policy in `policy_factory`",
    "cudagraph_policy": "not available: wrap the policy in `policy_factory`",
    "compact_obs": "not available: next observations are in the batch",
    "backend_options": "not needed: a collector has no backends; `workers=` starts processes, a job has the rest",
    "track_policy_version": "not needed: each frame has its version",
    "track_traj_ids": "not needed: each frame has its trajectory id",
    "return_same_td": "not needed: each batch is the learner's own memory",
    "use_buffers": "not needed: shared memory is managed by itself",
    "interruptor": "not needed: `stragglers_threshold` stops slow workers",
    "extend_buffer": "not needed: a `replay_buffer` is always extended",
    "trajs_per_write": "not available: with `trajs_per_batch`, each batch is written as a whole",
    "auto_register_policy_transforms": "not needed: hidden states are found in the policy",
    "num_threads": "not needed: a worker process has an equal share of the CPUs, the learner torch's setting",
    "num_sub_threads": "not needed: a worker process has an equal share of the CPUs",
    "collector_class": "not needed: a worker has one kind of loop",
    "collector_kwargs": "not needed: these are keywords of the collector itself",
    "launcher": "not needed: a job's workers are started by Kubernetes, `rollfleet run` or `rollfleet worker`",
    "slurm_kwargs": "not needed: `sbatch` starts `rollfleet worker`",
    "tcp_port": "not needed: learner and workers connect to NATS at its `address`",
    "ray_init_config": "not needed: there is no Ray",
    "remote_configs": "a job's `resources` and `template`",
    "use_env_creator": "not needed: an environment is made in its worker",
    "visible_devices": "not needed: a worker sees the GPUs of its process or pod; `policy_device` selects one",
    "tensorpipe_options": "not needed: there is no RPC",
}
"""TorchRL's keyword, and why there is no such keyword here."""
