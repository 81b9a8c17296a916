"""TorchRL's collectors over worker processes of this machine."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from torchrl.collectors import MultiAsyncCollector, MultiSyncCollector
from torchrl.envs import EnvBase

from torchrl_here import Module, serial_env, vector_env
from work import Running, Work, spawned


def sync_serial(work: Work) -> Any:
    """MultiSync, SerialEnv."""
    return _collector(work, serial_env, MultiSyncCollector)


def async_serial(work: Work) -> Any:
    """MultiAsync, SerialEnv."""
    return _collector(work, serial_env, MultiAsyncCollector)


def sync_vector(work: Work) -> Any:
    """MultiSync, GymWrapper(SyncVectorEnv)."""
    return _collector(work, vector_env, MultiSyncCollector)


def async_vector(work: Work) -> Any:
    """MultiAsync, GymWrapper(SyncVectorEnv)."""
    return _collector(work, vector_env, MultiAsyncCollector)


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
    batches = iter(collector)
    yield Running(
        next_batch=lambda: ((batch := next(batches)), batch.numel()),
        send_weights=collector.update_policy_weights_,
        policy=policy.module,
        worker_pids=spawned(),
    )
    collector.shutdown()
