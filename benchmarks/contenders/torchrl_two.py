"""TorchRL's collectors over worker processes of this machine."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from torchrl.collectors import MultiAsyncCollector, MultiSyncCollector
from torchrl.envs import EnvBase

from torchrl_here import Module, serial_env, vector_env
from work import Running, Work, iterating, spawned


@contextmanager
def _collector(work: Work, env: Callable[[str, int], EnvBase], kind: Any) -> Iterator[Running]:
    policy = Module(work)
    shares = work.workers if kind is MultiSyncCollector else 1
    collector = kind(
        [partial(env, work.env, work.num_envs)] * work.workers,
        policy,
        frames_per_batch=shares * work.frames,
        total_frames=-1,
    )
    yield iterating(collector, policy.module, spawned())
    collector.shutdown()


sync_serial = partial(_collector, env=serial_env, kind=MultiSyncCollector)
async_serial = partial(_collector, env=serial_env, kind=MultiAsyncCollector)
sync_vector = partial(_collector, env=vector_env, kind=MultiSyncCollector)
async_vector = partial(_collector, env=vector_env, kind=MultiAsyncCollector)
