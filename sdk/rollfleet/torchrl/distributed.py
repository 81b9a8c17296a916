"""TorchRL's collectors over several machines: here their workers are processes, or pods with `cluster=`.

There is no Ray, no RPC and no torch.distributed: launchers, ports and backends have no effect.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torchrl.collectors
from torchrl.collectors.distributed import DistributedCollector as _Distributed
from torchrl.collectors.distributed import DistributedSyncCollector as _DistributedSync
from torchrl.collectors.distributed import RayCollector as _Ray
from torchrl.collectors.distributed import RPCCollector as _RPC

from rollfleet.errors import JobInvalid
from rollfleet.torchrl.batches import BatchShape
from rollfleet.torchrl.environments import EnvForm
from rollfleet.torchrl.processes import WorkersCollector
from rollfleet.torchrl.signatures import signature_like
from rollfleet.torchrl.single import Collector


class DistributedCollector(WorkersCollector):
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

    _signature = __signature__ = signature_like(_Distributed)

    def _check(self, arguments: dict[str, Any]) -> None:
        arguments |= {name: value for name, value in self._of_collectors(arguments).items() if name != "num_threads"}
        self.sync = self._is_sync(arguments)
        super()._check(arguments)
        often = arguments.get("update_after_each_batch") or (arguments.get("max_weight_update_interval") or -1) > -1
        self.update_at_each_batch = bool(often)

    def _is_sync(self, arguments: Mapping[str, Any]) -> bool:
        return bool(arguments.get("sync"))

    def _of_collectors(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the keyword arguments of the collectors on the nodes, which all have the same here."""
        written = arguments["collector_kwargs"]
        each = list(written) if isinstance(written, Sequence) else [written or {}]
        if any(other != each[0] for other in each):
            raise JobInvalid("`collector_kwargs`: a list needs equal entries; write one dict")
        return each[0] if each else {}

    def _makes(self, arguments: Mapping[str, Any]) -> list[Any]:
        kind = arguments["collector_class"]
        single = kind in ("single", None, torchrl.collectors.Collector, Collector)
        self._inner = 1 if single else arguments["num_workers_per_collector"] or 1
        if single and (arguments["num_workers_per_collector"] or 1) != 1:
            raise RuntimeError("Collector and subclasses can only support a single environment.")
        self._single = single
        return [make for make in super()._makes(arguments) for _ in range(self._inner)]

    def _shape_of(self, arguments: Mapping[str, Any], form: EnvForm) -> BatchShape:
        return super()._shape_of({**arguments, "cat_results": None}, form)

    def _put(self, batch: Any) -> Any:
        if self.sync and not self._single:
            batch = batch.unflatten(0, (self.num_workers // self._inner, self._inner))
        return super()._put(batch)


class DistributedSyncCollector(DistributedCollector):
    """`DistributedCollector` with `sync=True`.

    Example:
        >>> from torchrl.envs import GymEnv
        >>> make = lambda: GymEnv("CartPole-v1")
        >>> collector = DistributedSyncCollector([make] * 2, frames_per_batch=32, total_frames=32)
        >>> [tuple(batch.shape) for batch in collector]
        [(2, 16)]
        >>> collector.shutdown()
    """

    _signature = __signature__ = signature_like(_DistributedSync)

    def _is_sync(self, arguments: Mapping[str, Any]) -> bool:
        return True


class RPCCollector(DistributedCollector):
    """`DistributedCollector` under the name of TorchRL's collector over RPC.

    Example:
        >>> from torchrl.envs import GymEnv
        >>> collector = RPCCollector([lambda: GymEnv("CartPole-v1")], frames_per_batch=32, total_frames=32)
        >>> [tuple(batch.shape) for batch in collector]
        [(32,)]
        >>> collector.shutdown()
    """

    _signature = __signature__ = signature_like(_RPC)


class RayCollector(DistributedCollector):
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

    _signature = __signature__ = signature_like(_Ray)

    def _cluster(self, arguments: Mapping[str, Any]) -> Any:
        cluster, written = arguments["cluster"], arguments["remote_configs"]
        if cluster is None or written is None:
            return cluster
        configs = [written] if isinstance(written, Mapping) else list(written)
        if any(other != configs[0] for other in configs):
            raise JobInvalid("`remote_configs`: a list needs equal entries, because all pods have the same resources")
        return replace(cluster, **pod_resources(configs[0]))

    @property
    def remote_collectors(self) -> list[int]:
        """The indices of the present workers."""
        return list(self._native.workers)

    def local_policy(self) -> Any:
        """Return the policy of this process."""
        return self.policy

    def add_collectors(
        self, create_env_fn: Any, num_envs: int = 1, policy: Any = None, collector_kwargs: Any = None,
        remote_configs: Any = None,
    ) -> None:  # fmt: skip
        """Start more workers with this collector's environment and policy: one for each entry of `create_env_fn`."""
        added = len(create_env_fn) if isinstance(create_env_fn, Sequence) else 1
        self._native.add_workers(added * num_envs)
        self.num_workers = len(self._native.workers)
        self._shape = replace(self._shape, workers=self.num_workers if self.sync else None)

    def stop_remote_collectors(self) -> None:
        """Stop all workers."""
        self.shutdown()

    def shutdown(self, timeout: float | None = None, shutdown_ray: bool = False, raise_on_error: bool = True) -> None:
        """Stop all workers. There is no Ray to shut down."""
        super().shutdown(timeout=timeout, raise_on_error=raise_on_error)

    async def async_shutdown(self, shutdown_ray: bool = False) -> None:  # type: ignore[override]
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
