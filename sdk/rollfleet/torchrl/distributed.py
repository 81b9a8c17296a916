"""TorchRL's collectors over several machines: here their workers are processes, or pods with `cluster=`.

There is no Ray, no RPC and no torch.distributed: launchers, ports and backends have no effect.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torchrl.collectors
from torchrl.collectors import distributed

from rollfleet.errors import JobInvalid
from rollfleet.torchrl.environments import listed
from rollfleet.torchrl.processes import MultiCollector, WorkersCollector
from rollfleet.torchrl.single import Collector

_THEIRS = torchrl.collectors.Collector  # `rollfleet.torchrl.program` puts ours in its place


class DistributedCollector(WorkersCollector, theirs=distributed.DistributedCollector):
    """One worker for each entry of `create_env_fn`, or `num_workers_per_collector` for each with a Multi collector.

    With `sync` a batch is `[collectors, *env.batch_size, T]`, or `[collectors, workers, *env.batch_size, T]`.

    Example:
        >>> from torchrl.envs import GymEnv
        >>> make = lambda: GymEnv("CartPole-v1")
        >>> collector = DistributedCollector([make] * 2, sync=True, frames_per_batch=32, total_frames=32)
        >>> [tuple(batch.shape) for batch in collector]
        [(2, 16)]
        >>> collector.shutdown()
    """

    def _given(self, arguments: dict[str, Any]) -> dict[str, Any]:
        of_collectors = _equal(arguments["collector_kwargs"], "collector_kwargs") or {}
        for name in of_collectors:
            if name not in Collector.__signature__.parameters | MultiCollector.__signature__.parameters:
                raise JobInvalid(f"`collector_kwargs`: {name!r} is no argument of a collector; remove it")
        often = any(arguments.get(name) for name in ("update_after_each_batch", "update_interval"))
        often |= arguments.get("max_weight_update_interval") not in (None, -1)  # 0 is an interval, too
        return arguments | of_collectors | {"update_at_each_batch": often, "cat_results": None}

    def _makes(self, given: Mapping[str, Any]) -> list[Any]:
        kind = given["collector_class"]
        self._single = kind in ("single", None, _THEIRS, Collector)
        self._inner = given["num_workers_per_collector"] or 1
        if self._single and self._inner != 1:
            raise RuntimeError("Collector and subclasses can only support a single environment.")
        return [make for make in super()._makes(given) for _ in range(self._inner)]

    def _collect(self) -> Any:
        batch = super()._collect()
        if batch is not None and self.sync and not self._single:
            batch = batch.unflatten(0, (self.num_workers // self._inner, self._inner))
        return batch


class DistributedSyncCollector(DistributedCollector, theirs=distributed.DistributedSyncCollector):
    """`DistributedCollector` with `sync=True`."""

    sync = True


class RPCCollector(DistributedCollector, theirs=distributed.RPCCollector):
    """`DistributedCollector` under the name of TorchRL's collector over RPC."""


class RayCollector(DistributedCollector, theirs=distributed.RayCollector):
    """`DistributedCollector` under the name of TorchRL's collector over Ray. `remote_configs` are the pods' resources.

    `num_cpus`, `num_gpus` and `memory` (bytes) of `remote_configs` are those of each pod, with `cluster=`.

    Example:
        >>> from torchrl.envs import GymEnv
        >>> make = lambda: GymEnv("CartPole-v1")
        >>> collector = RayCollector(make, num_collectors=2, frames_per_batch=32, total_frames=64)
        >>> [tuple(batch.shape) for batch in collector]
        [(32,), (32,)]
        >>> collector.shutdown()
    """

    def _cluster(self, given: Mapping[str, Any]) -> Any:
        config = _equal(given["remote_configs"], "remote_configs")
        return given["cluster"] and replace(given["cluster"], **pod_resources(config or {}))

    @property
    def remote_collectors(self) -> list[int]:
        """The indices of the present workers."""
        return list(self._native.workers)

    def add_collectors(
        self, create_env_fn: Any, num_envs: int = 1, policy: Any = None, collector_kwargs: Any = None,
        remote_configs: Any = None,
    ) -> None:  # fmt: skip
        """Start more workers with this collector's environment and policy: one for each entry of `create_env_fn`."""
        self._native.add_workers(len(listed(create_env_fn)) * num_envs)
        self.num_workers = len(self._native.workers)

    def stop_remote_collectors(self) -> None:
        """Stop all workers."""
        self.shutdown()

    def shutdown(self, timeout: float | None = None, shutdown_ray: bool = False, raise_on_error: bool = True) -> None:
        """Stop all workers. There is no Ray to shut down."""
        super().shutdown(timeout=timeout, raise_on_error=raise_on_error)

    async def async_shutdown(self, shutdown_ray: bool = False) -> None:
        """Stop all workers."""
        self.shutdown()


def pod_resources(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields of `rollfleet.Cluster` for resources that Ray takes.

    Raises:
        JobInvalid: A resource is unknown, or a GPU is to be shared.

    Example:
        >>> pod_resources({"num_cpus": 2, "num_gpus": 1, "memory": 2 * 1024**3})
        {'cpu': 2, 'gpu': 1, 'memory': '2147483648'}
    """
    names = {"num_cpus": "cpu", "num_gpus": "gpu", "memory": "memory"}
    found: dict[str, Any] = {}
    for name, value in config.items():
        if name not in names:
            raise JobInvalid(f"`remote_configs`: {name!r} is none of {', '.join(names)}")
        if name == "num_gpus" and value != int(value):
            raise JobInvalid(f"`remote_configs`: a pod has whole GPUs, and num_gpus is {value}")
        found[names[name]] = str(int(value)) if name == "memory" else int(value) if value == int(value) else value
    return found


def _equal(written: Any, name: str) -> Any:
    """Return what one dict, or a list of equal ones, says of all workers."""
    first, *others = listed(written) or [None]
    if any(other != first for other in others):
        raise JobInvalid(f"`{name}`: a list needs equal entries, because all workers are alike; write one dict")
    return first
