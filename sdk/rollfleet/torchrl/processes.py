"""Collectors with workers in processes of this machine, or on a fleet."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import torch
import torchrl.collectors
from torch import nn
from torch.utils._pytree import tree_map_only
from torchrl.envs import EnvBase

from rollfleet.arguments import for_each
from rollfleet.collector import Collector as NativeCollector
from rollfleet.connection import connect
from rollfleet.errors import CallFailed, JobInvalid, WorkerFailed
from rollfleet.processes.settings import Processes
from rollfleet.torchrl.arguments import PLACE, elsewhere
from rollfleet.torchrl.batches import BatchShape
from rollfleet.torchrl.collecting import FleetCollector
from rollfleet.torchrl.environments import DEVICES, device_of, listed, prepared, without_processes
from rollfleet.torchrl.policies import acting, made, with_spec, without_weights
from rollfleet_api.collection import CatResults

_CALL_S = 300.0  # for a worker's answer, which may finish a batch first
_NO_LAG = 1 << 52  # TorchRL's collectors drop no batch, however old its policy is


def _shaped(hook: Callable[[Any], object], shape: BatchShape, batch: Any) -> None:
    """Call a `post_collect_hook` with a worker's batch in TorchRL's shape."""
    hook(shape.of(batch))


class WorkersCollector(FleetCollector):
    """A collector whose workers are other processes: see its subclasses."""

    sync = False
    interruptor = None

    def _open(self, given: dict[str, Any]) -> tuple[NativeCollector, BatchShape]:
        if all(given[name] is None for name in PLACE):
            given |= {name: elsewhere.get(name) for name in PLACE}
        makes = self._makes(given)
        if given["job"] is not None or given["nats"] is not None:
            return self._connect(given, makes[0])
        count = self.num_workers = elsewhere.get("workers") or len(makes)
        for name in DEVICES:
            own, general = for_each(given[name], count, name), for_each(given["device"], count, "device")
            setattr(self, name, [device_of(*each) for each in zip(own, general, strict=True)])
        kwargs = for_each(given.get("create_env_kwargs") or {}, count, "create_env_kwargs")
        envs = [
            partial(prepared, makes[index % len(makes)], own or {}, device, max(0, self.max_frames_per_traj))
            for index, (own, device) in enumerate(zip(kwargs, self.env_device, strict=True))
        ]
        sizes = self._look(envs[0], self.storing_device[0], given)
        for make in makes:
            without_processes(make)
        shape = self._shape_of(given, sizes)
        num_envs = sizes.numel()
        acts = {name: given.get(name) for name in ("trust_policy", "compile_policy", "cudagraph_policy")}
        frames = self._frames_of_worker(given["frames_per_batch"], num_envs) * (count if self.sync else 1)
        policy = self.policy if given["cluster"] is None else without_weights(self.policy)
        factories = [partial(made, each, acts) for each in listed(given["policy_factory"])]
        collector = NativeCollector(
            envs,
            self.policy if isinstance(self.policy, nn.Module) else None,
            policy_factory=partial(acting, policy, acts) if given["policy_factory"] is None else _alike(factories),
            policy_device=_alike(self.policy_device),
            device=self.storing_device[0],
            frames_per_batch=frames,
            num_envs=num_envs,
            weights_interval=0,
            seed=self._seed % (1 << 53),
            workers=count,
            mode="sync" if self.sync else "async",
            cat_results="stack" if self.sync else "envs",
            processes=self._processes(given, shape),
            cluster=self._cluster(given),
            **self._keywords,
        )
        try:
            collector.call(None, "env.batch_size", timeout_s=_CALL_S)  # TorchRL's constructor waits for workers, too
        except BaseException as error:
            with suppress(Exception):  # a notebook keeps the traceback, and so would keep its processes or pods
                collector.shutdown()
            if isinstance(error, WorkerFailed):
                raise RuntimeError(str(error)) from error
            raise
        return collector, shape

    def _look(self, make: partial[EnvBase], device: torch.device | None, given: Mapping[str, Any]) -> torch.Size:
        """Make an environment here to read what a learner needs, and close it. Returns its batch size."""
        env = make()
        try:
            if all(given[name] is None for name in ("policy_factory", "job", "nats")):
                self.policy = with_spec(self.policy, env, trusted=bool(given.get("trust_policy")))
            self._know(env, device)
            return torch.Size(env.batch_size)
        finally:
            if not isinstance(make.args[0], EnvBase) and not env.is_closed:
                env.close()

    def _connect(self, given: Mapping[str, Any], make: Any) -> tuple[NativeCollector, BatchShape]:
        """Become the learner of a job. The job has the environments and how they are collected from."""
        device = device_of(listed(given["storing_device"])[0])
        kwargs = listed(given.get("create_env_kwargs"))[0] or {}
        sizes = self._look(partial(prepared, make, kwargs, None, 0), device, given)
        collector = connect(given["job"], self.policy, address=given["nats"], device=device)
        spec = collector.job.spec
        self.num_workers, self.sync = spec.workers, str(spec.mode).lower() == "sync"
        self.requested_frames_per_batch = spec.steps_per_batch * sizes.numel() * (spec.workers if self.sync else 1)
        if (written := sum(listed(given["frames_per_batch"]))) != (fixed := spec.collect.frames_per_batch):
            collector.detach()
            raise JobInvalid(f"`frames_per_batch` is {written}, and the job's batches have {fixed}; write {fixed}")
        self._frames = collector.stats().frames  # of earlier learners, too
        stacks = self.sync and spec.collect.cat_results is CatResults.STACK  # else batches come joined
        return collector, BatchShape(sizes, "stack" if stacks else None)

    def _processes(self, given: Mapping[str, Any], shape: BatchShape) -> Processes:
        hook = given.get("post_collect_hook")
        mode: dict[str, Any] = {} if self.sync else {"max_lag": _NO_LAG}
        if self.sync and self.preemptive_threshold < 1:
            mode["stragglers_threshold"] = max(self.preemptive_threshold, 1e-9)  # 0: the first worker ends the round
        return Processes(
            init_fn=given.get("init_fn"),
            pre_collect_hook=given.get("pre_collect_hook"),
            post_collect_hook=None if hook is None else partial(_shaped, hook, BatchShape(shape.sizes)),
            **mode,
        )

    def _makes(self, given: Mapping[str, Any]) -> list[Any]:
        """Return the function of each worker's environment."""
        makes = listed(given["create_env_fn"])
        return makes if len(makes) > 1 else makes * (given.get("num_workers") or given.get("num_collectors") or 1)

    def _cluster(self, given: Mapping[str, Any]) -> Any:
        return given["cluster"]

    def _frames_of_worker(self, frames: Any, envs: int) -> int:
        """Return the frames of one worker's batch: a multiple of its environments."""
        written = for_each(frames, self.num_workers, "frames_per_batch")
        if self.sync and len(set(written)) > 1:
            raise JobInvalid("`frames_per_batch`: a list needs equal entries; write one number")
        self.requested_frames_per_batch = sum(listed(frames))
        return -(-self.frames_per_batch_worker() // envs) * envs

    def frames_per_batch_worker(self, *, worker_idx: int | None = None) -> int:
        """Return the frames that one worker is asked for."""
        return -(-self.requested_frames_per_batch // self.num_workers) if self.sync else self.requested_frames_per_batch

    def _shape_of(self, given: Mapping[str, Any], sizes: torch.Size) -> BatchShape:
        cat, threshold = given.get("cat_results"), given.get("preemptive_threshold")
        if cat == "envs":  # as `Collector` asks for: time stays along the last dimension
            cat = 0 if sizes else "stack"
        if cat is not None and cat != "stack" and (not isinstance(cat, int) or isinstance(cat, bool)):
            raise ValueError(f"cat_results must be a string ('stack') or an integer, not {cat!r}")
        if not self.sync and cat not in (None, "stack"):
            raise ValueError("cat_results can only be used with ``MultiSyncCollector``.")
        if threshold is not None and not 0.0 <= threshold <= 1.0:
            raise ValueError(f"preemptive_threshold must be between 0.0 and 1.0, got {threshold}.")
        self.preemptive_threshold = 1.0 if threshold is None else float(threshold)
        joined = "stack" if cat is None or self.replay_buffer is not None else cat
        return BatchShape(sizes, joined if self.sync else None)

    # --- calls of workers ---

    def set_seed(self, seed: int, static_seed: bool = False) -> int:
        """Seed the environments one after the other. Returns the seed after the last one."""
        end = seed
        for worker in self._native.workers:
            end = self._at(worker, "env.set_seed", [end], {"static_seed": static_seed})
        self._reseed(seed, static=static_seed)
        return end

    def getattr_env(self, attr: str) -> Any:
        """Return an attribute of the first worker's environment."""
        return self._of_first(f"env.{attr}")

    def getattr_policy(self, attr: str) -> Any:
        """Return an attribute of the first worker's policy."""
        return self._of_first(f"policy.{attr}")

    def _of_first(self, path: str) -> Any:
        try:
            return self._at(self._native.workers[0], path)
        except CallFailed as error:
            if "AttributeError" in str(error):
                raise AttributeError(str(error)) from error
            raise

    def get_distant_attr(self, attr: str) -> Any:
        """Return `env.<name>`, `policy.<name>`, `replay_buffer.<name>` or `worker_idx`, for each worker."""
        return self.map_fn(attr)

    def map_fn(
        self,
        method_name: str,
        list_of_args: Sequence[Sequence[Any]] | None = None,
        list_of_kwargs: Sequence[Mapping[str, Any]] | None = None,
    ) -> list[Any]:
        """Call a method of each worker with its arguments, by its path: see `get_distant_attr`."""
        workers = self._native.workers
        args, kwargs = list_of_args or [()] * len(workers), list_of_kwargs or [{}] * len(workers)
        if not len(args) == len(kwargs) == len(workers):
            raise ValueError(f"Expected {len(workers)} argument entries, in lists of the same length")
        return [self._at(worker, method_name, args[n], kwargs[n]) for n, worker in enumerate(workers)]

    def _at(self, worker: int, path: str, args: Sequence[Any] = (), kwargs: Mapping[str, Any] = {}) -> Any:
        owner, _, name = path.partition(".")
        if path == "get_distant_attr":
            return self._at(worker, args[0])
        if path == "worker_idx":
            return worker
        if owner == "replay_buffer":
            found = getattr(self.replay_buffer, name)
            return found(*args, **kwargs) if callable(found) else found
        found = self._native.call(worker, path, *args, timeout_s=_CALL_S, **kwargs)[worker]
        return found[0] if owner == "env" else found

    # --- state ---

    def state_dict(self) -> dict[str, Any]:
        """Return counters, the policy, and the state of each worker's environment."""
        state = super().state_dict()
        own = {name: state[name] for name in ("policy_state_dict", "policy_version") if name in state}
        found = self._native.call(None, "env.state_dict", timeout_s=_CALL_S)
        found = tree_map_only(np.ndarray, torch.as_tensor, found)
        workers = {f"worker{worker}": {**own, "env_state_dict": found[worker][0]} for worker in found}
        return workers | state

    def load_state_dict(self, state_dict: Any, **kwargs: Any) -> None:
        """Continue from a `state_dict`, or from a list of the workers' own, as TorchRL's `RayCollector` saves it."""
        own = listed(state_dict)
        state_dict = {f"worker{worker}": state for worker, state in enumerate(own)} | own[0]
        for worker in self._native.workers:
            if state := state_dict.get(f"worker{worker}", {}).get("env_state_dict"):
                self._at(worker, "env.load_state_dict", [state])
        if isinstance(self.policy, nn.Module) and (state := state_dict["worker0"].get("policy_state_dict")):
            self.policy.load_state_dict(state)
            self.update_policy_weights_()
        super().load_state_dict(state_dict)

    def stats(self, workers: str = "aggregate") -> dict[str, int | float | bool]:
        """Return counters, and the number of workers; "per_worker" and "both": also each worker's counters."""
        if workers not in ("aggregate", "per_worker", "both"):
            raise ValueError(f"workers must be one of 'aggregate', 'per_worker' or 'both', got {workers!r}.")
        found: dict[str, int | float | bool] = super().stats() if workers != "per_worker" else {}
        found |= {"workers": self.num_workers, "workers_alive": len(self._native.workers)}
        if workers != "aggregate":
            for index, worker in sorted(self._native.stats().workers.items()):
                found |= {f"worker_{index}/frames": worker.frames, f"worker_{index}/batches": worker.batches}
        return found

    def fake_tensordict(self) -> Any:
        """Raise NotImplementedError, as in TorchRL."""
        raise NotImplementedError("fake_tensordict is available for a Collector in this process only")

    def set_post_collect_hook(self, hook: Any) -> None:
        """Raise NotImplementedError: workers get their hooks when they start."""
        raise NotImplementedError("pass post_collect_hook to the constructor: workers get it when they start")


class MultiCollector(WorkersCollector, theirs=torchrl.collectors.MultiCollector):
    """Collects in processes, one for each entry of `create_env_fn`; `sync` says how batches come.

    Example:
        >>> from torchrl.envs import GymEnv
        >>> make = lambda: GymEnv("CartPole-v1")
        >>> collector = MultiCollector([make] * 2, sync=True, frames_per_batch=32, total_frames=32)
        >>> [tuple(batch.shape) for batch in collector], type(collector).__name__
        ([(2, 16)], 'MultiSyncCollector')
        >>> collector.shutdown()
    """

    def __new__(cls, *args: Any, sync: bool | None = None, **kwargs: Any) -> Any:
        """Make a `MultiSyncCollector` or a `MultiAsyncCollector`."""
        return super().__new__((MultiSyncCollector if sync else MultiAsyncCollector) if cls is MultiCollector else cls)

    def __init__(self, *args: Any, sync: bool | None = None, **kwargs: Any) -> None:
        """See `FleetCollector`."""
        super().__init__(*args, **kwargs)


class MultiSyncCollector(MultiCollector):
    """Collects in processes; a batch has the frames of all workers.

    Example:
        >>> from torchrl.envs import GymEnv
        >>> make = lambda: GymEnv("CartPole-v1")
        >>> collector = MultiSyncCollector([make] * 2, frames_per_batch=32, total_frames=64, cat_results=0)
        >>> [tuple(batch.shape) for batch in collector]
        [(32,), (32,)]
        >>> collector.shutdown()
    """

    sync = True


class MultiAsyncCollector(MultiCollector):
    """Collects in processes; a batch has the frames of one worker, as it comes: `[*env.batch_size, T]`."""


class AsyncCollector(MultiAsyncCollector):
    """Collects in one process: `MultiAsyncCollector` with one environment."""


def _alike(values: list[Any]) -> Any:
    """Return one value for all workers where theirs are equal: pods have no devices of their own."""
    return values[0] if all(each == values[0] for each in values) else values
