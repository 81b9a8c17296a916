"""TorchRL's RayCollector: actors of Ray on this machine."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import ray
from torchrl.collectors import Collector
from torchrl.collectors.distributed import RayCollector
from torchrl.envs import EnvBase

from torchrl_here import Module, serial_env, vector_env
from work import Running, Work, actors, iterating

ENDLESS = 1 << 40  # -1, as in its documentation, stops at once


@contextmanager
def _collector(work: Work, env: Callable[[str, int], EnvBase], *, sync: bool) -> Iterator[Running]:
    policy = Module(work)
    ray.init(num_cpus=2 * work.workers, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
    collector = RayCollector(
        [partial(env, work.env, work.num_envs)] * work.workers,
        policy,
        collector_class=Collector,
        frames_per_batch=work.frames * (work.workers if sync else 1),
        total_frames=ENDLESS,
        sync=sync,
        remote_configs={"num_cpus": 1, "num_gpus": 0, "memory": 2 * 1024**3},
    )
    yield iterating(collector, policy.module, actors("Collector"))
    collector.shutdown()
    ray.shutdown()


sync_serial = partial(_collector, env=serial_env, sync=True)
async_serial = partial(_collector, env=serial_env, sync=False)
async_vector = partial(_collector, env=vector_env, sync=False)
