"""Collectors with workers in processes of this machine, or on a fleet."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torchrl.collectors
from torch import nn
from torchrl.envs import EnvBase

from rollfleet.collector import Collector as NativeCollector
from rollfleet.connection import connect
from rollfleet.errors import CallFailed, JobInvalid, WorkerFailed
from rollfleet.processes.settings import Processes
from rollfleet.torchrl.arguments import native
from rollfleet.torchrl.batches import BatchShape
from rollfleet.torchrl.collecting import CALL_S, NO_LAG, FleetCollector
from rollfleet.torchrl.environments import EnvForm, PreparedEnv, device_of, env_kwargs, form_of
from rollfleet.torchrl.placement import present
from rollfleet.torchrl.policies import Acting, Copied, MadeOnWorker, with_spec, without_weights
from rollfleet.torchrl.signatures import signature_like


@dataclass(frozen=True, slots=True)
class ShapedHook:
    """A `post_collect_hook` that gets a worker's batch in TorchRL's shape."""

    hook: Callable[[Any], object]
    shape: BatchShape

    def __call__(self, batch: Any) -> None:
        """Call it."""
        self.hook(self.shape.of(batch))


class WorkersCollector(FleetCollector):
    """A collector whose workers are other processes: see its subclasses."""

    sync: bool

    def _open(self, arguments: dict[str, Any]) -> tuple[NativeCollector, EnvForm, BatchShape]:
        arguments |= present().of(arguments)
        if arguments["job"] is not None or arguments["nats"] is not None:
            return self._connect(arguments)
        makes = present().spread(self._makes(arguments))
        count = self.num_workers = len(makes)
        devices = self._devices(arguments, count)
        kwargs = env_kwargs(arguments.get("create_env_kwargs"), count)
        prepared = [
            PreparedEnv(make, own, device, max(0, self.max_frames_per_traj))
            for make, own, device in zip(makes, kwargs, devices["env_device"], strict=True)
        ]
        policy, acting = arguments["policy"], Acting.of(arguments)

        def use(env: EnvBase) -> None:
            if arguments["policy_factory"] is None:
                self.policy = with_spec(policy, env, trusted=acting.trusted)

        form = form_of(prepared[0], devices["storing_device"][0], use)
        shape = self._shape_of(arguments, form)
        per_worker = self._frames_of_worker(arguments["frames_per_batch"], form.count)
        factory = self._factory(arguments, acting)
        collector = NativeCollector(
            prepared,
            self.policy if factory is not None else acting(self.policy),
            policy_factory=factory,
            policy_device=self._policy_device_of(devices),
            device=devices["storing_device"][0],
            frames_per_batch=per_worker * (count if self.sync else 1),
            num_envs=form.count,
            weights_interval=0,
            seed=torch.initial_seed() % (1 << 53),
            workers=count,
            mode="sync" if self.sync else "async",
            cat_results=(self.sync and shape.native) or "envs",
            processes=self._processes(arguments, form, shape),
            cluster=self._cluster(arguments),
            **native(arguments),
        )
        if self._sends and self._has_weights:
            collector.update_policy_weights_()  # a worker answers no call before it has weights
        try:
            collector.call(None, "env.batch_size", timeout_s=CALL_S)  # TorchRL's constructor waits for workers, too
        except WorkerFailed as error:
            raise RuntimeError(str(error)) from error
        return collector, form, shape

    def _factory(self, arguments: Mapping[str, Any], acting: Acting) -> Any:
        """Return what makes the policy on workers; None: a copy of the module is sent to them."""
        if arguments["policy_factory"] is not None:
            made = [MadeOnWorker(each, acting) for each in _listed(arguments["policy_factory"])]
            return made if len(made) > 1 else made[0]
        if acting.changes_modules and isinstance(self.policy, nn.Module):
            return MadeOnWorker(Copied(self.policy), acting)
        return None if arguments["cluster"] is None else MadeOnWorker(Copied(without_weights(self.policy)), acting)

    def _policy_device_of(self, devices: Mapping[str, Any]) -> Any:
        moves = devices["policy_device"][0] is not None and isinstance(self.policy, nn.Module)
        return devices["policy_device"] if moves else None

    def _processes(self, arguments: Mapping[str, Any], form: EnvForm, shape: BatchShape) -> Processes:
        hook = arguments.get("post_collect_hook")
        mode: dict[str, Any] = {} if self.sync else {"max_lag": NO_LAG}
        if shape.preempts:
            mode["stragglers_threshold"] = max(self.preemptive_threshold, 1e-9)  # 0: the first worker ends the round
        return Processes(
            init_fn=arguments.get("init_fn"),
            pre_collect_hook=arguments.get("pre_collect_hook"),
            post_collect_hook=None if hook is None else ShapedHook(hook, BatchShape(form.batch_size)),
            **mode,
        )

    def _connect(self, arguments: dict[str, Any]) -> tuple[NativeCollector, EnvForm, BatchShape]:
        """Become the learner of a job. The job has the environments and how they are collected from."""
        self.policy = arguments["policy"]
        device = device_of(_each(arguments["storing_device"], 1)[0])
        make = PreparedEnv(self._makes(arguments)[0], env_kwargs(arguments.get("create_env_kwargs"), 1)[0], None, 0)
        form = form_of(make, device, lambda env: None)
        collector = connect(arguments["job"], self.policy, address=arguments["nats"], device=device)
        spec = collector.job.spec
        self.num_workers, self.sync = spec.workers, str(spec.mode).lower() == "sync"
        self.requested_frames_per_batch = spec.steps_per_batch * form.count * (spec.workers if self.sync else 1)
        self._frames = collector.stats().frames  # of earlier learners, too
        joined: dict[str, int | str] = {"stack": "stack", "envs": 0, "time": -1}
        cat = joined[str(spec.collect.cat_results).lower()]
        return collector, form, BatchShape(form.batch_size, self.num_workers if self.sync else None, cat)

    def _makes(self, arguments: Mapping[str, Any]) -> list[Any]:
        """Return the function of each worker's environment."""
        make = arguments["create_env_fn"]
        if isinstance(make, Sequence) and not isinstance(make, EnvBase):
            return list(make)
        return [make] * (arguments.get("num_workers") or arguments.get("num_collectors") or 1)

    def _cluster(self, arguments: Mapping[str, Any]) -> Any:
        return arguments["cluster"]

    def _devices(self, arguments: Mapping[str, Any], count: int) -> dict[str, list[torch.device | None]]:
        found: dict[str, list[torch.device | None]] = {}
        general = _each(arguments["device"], count)
        for name in ("storing_device", "policy_device", "env_device"):
            own = _each(arguments[name], count)
            found[name] = [device_of(each, other) for each, other in zip(own, general, strict=True)]
            setattr(self, name, found[name])
        return found

    def _frames_of_worker(self, frames: Any, envs: int) -> int:
        """Return the frames of one worker's batch: a multiple of its environments."""
        if isinstance(frames, Sequence) and len(frames) != self.num_workers:
            raise ValueError(f"`frames_per_batch` has {len(frames)} entries for {self.num_workers} workers")
        if self.sync and len(set(_listed(frames))) > 1:
            raise JobInvalid("`frames_per_batch`: a list needs equal entries; write one number")
        total = sum(frames) if isinstance(frames, Sequence) else frames
        each = -(-total // self.num_workers) if self.sync else total
        self.requested_frames_per_batch = total
        return -(-each // envs) * envs

    def frames_per_batch_worker(self, *, worker_idx: int | None = None) -> int:
        """Return the frames that one worker is asked for."""
        return -(-self.requested_frames_per_batch // self.num_workers) if self.sync else self.requested_frames_per_batch

    def _shape_of(self, arguments: Mapping[str, Any], form: EnvForm) -> BatchShape:
        cat = arguments.get("cat_results")
        if cat is not None and cat != "stack" and (not isinstance(cat, int) or isinstance(cat, bool)):
            raise ValueError(f"cat_results must be a string ('stack') or an integer, not {cat!r}")
        if not self.sync and cat not in (None, "stack"):
            raise ValueError("cat_results can only be used with ``MultiSyncCollector``.")
        threshold = arguments.get("preemptive_threshold")
        if threshold is not None and not 0.0 <= threshold <= 1.0:
            raise ValueError(f"preemptive_threshold must be between 0.0 and 1.0, got {threshold}.")
        self.preemptive_threshold = 1.0 if threshold is None else float(threshold)
        self.interruptor = None
        stores = self.replay_buffer is not None
        return BatchShape(
            form.batch_size,
            self.num_workers if self.sync else None,
            "stack" if cat is None or stores else cat,
            self.sync and self.preemptive_threshold < 1,
        )

    def set_post_collect_hook(self, hook: Any) -> None:
        """Refuse: workers got their hooks when they started.

        Raises:
            NotImplementedError: Always.
        """
        raise NotImplementedError("pass post_collect_hook to the constructor: workers get it when they start")

    def state_dict(self) -> dict[str, Any]:
        """Return counters, the policy, and the state of each worker's environment."""
        policy = {"policy_state_dict": self.policy.state_dict()} if isinstance(self.policy, nn.Module) else {}
        found = self._native.call(None, "env.state_dict", timeout_s=CALL_S)
        own = policy | ({"policy_version": self.policy_version} if self.policy_version is not None else {})
        workers = {f"worker{worker}": {**own, "env_state_dict": _tensors(found[worker][0])} for worker in found}
        return workers | super().state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any], **kwargs: Any) -> None:
        """Continue from a `state_dict`."""
        for worker in self._native.workers:
            state = state_dict.get(f"worker{worker}", {})
            if state.get("env_state_dict"):
                self._native.call(worker, "env.load_state_dict", state["env_state_dict"], timeout_s=CALL_S)
        first = state_dict.get("worker0", {})
        if isinstance(self.policy, nn.Module) and "policy_state_dict" in first:
            self.policy.load_state_dict(first["policy_state_dict"])
            self.update_policy_weights_()
        super().load_state_dict(state_dict)

    def stats(self, workers: str = "aggregate") -> dict[str, int | float | bool]:
        """Return counters, and the number of workers; "per_worker" and "both": also each worker's counters."""
        if workers not in ("aggregate", "per_worker", "both"):
            raise ValueError(f"workers must be one of 'aggregate', 'per_worker' or 'both', got {workers!r}.")
        found: dict[str, int | float | bool] = super().stats() if workers != "per_worker" else {}
        alive = self._native.stats().workers
        found |= {"workers": self.num_workers, "workers_alive": len(self._native.workers)}
        if workers != "aggregate":
            for index, worker in sorted(alive.items()):
                found |= {f"worker_{index}/frames": worker.frames, f"worker_{index}/batches": worker.batches}
        return found

    def fake_tensordict(self) -> Any:
        """Refuse: as in TorchRL.

        Raises:
            NotImplementedError: Always.
        """
        raise NotImplementedError("fake_tensordict is available for a Collector in this process only")

    def _read(self, path: str) -> list[Any]:
        try:
            return super()._read(path)
        except CallFailed as error:
            if "AttributeError" in str(error):
                raise AttributeError(str(error)) from error
            raise

    def _close(self, close_env: bool) -> None:
        if not close_env:
            raise RuntimeError(f"Cannot shutdown {type(self).__name__} without closing its environments.")
        super()._close(close_env)


class MultiCollector(WorkersCollector):
    """Collects in processes, one for each entry of `create_env_fn`; `sync` says how batches come.

    Example:
        >>> from torchrl.envs import GymEnv
        >>> make = lambda: GymEnv("CartPole-v1")
        >>> collector = MultiCollector([make] * 2, sync=True, frames_per_batch=32, total_frames=32)
        >>> [tuple(batch.shape) for batch in collector], type(collector).__name__
        ([(2, 16)], 'MultiSyncCollector')
        >>> collector.shutdown()
    """

    _signature: ClassVar = signature_like(torchrl.collectors.MultiCollector)
    __signature__ = _signature

    def __new__(cls, *args: Any, sync: bool | None = None, **kwargs: Any) -> Any:
        """Make a `MultiSyncCollector` or a `MultiAsyncCollector`."""
        if cls is not MultiCollector or sync is None:
            return super().__new__(cls)
        return (MultiSyncCollector if sync else MultiAsyncCollector)(*args, **kwargs)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """See `FleetCollector`."""
        if "sync" in kwargs or self.closed is False:
            return  # made by `__new__`
        super().__init__(*args, **kwargs)

    closed = True


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
    """Collects in processes; a batch has the frames of one worker, as it comes.

    Example:
        >>> from torchrl.envs import GymEnv
        >>> make = lambda: GymEnv("CartPole-v1")
        >>> collector = MultiAsyncCollector([make] * 2, frames_per_batch=32, total_frames=64)
        >>> [tuple(batch.shape) for batch in collector]
        [(32,), (32,)]
        >>> collector.shutdown()
    """

    sync = False


class AsyncCollector(MultiAsyncCollector):
    """Collects in one process.

    Example:
        >>> from torchrl.envs import GymEnv
        >>> collector = AsyncCollector(lambda: GymEnv("CartPole-v1"), frames_per_batch=32, total_frames=32)
        >>> [tuple(batch.shape) for batch in collector]
        [(32,)]
        >>> collector.shutdown()
    """

    def _makes(self, arguments: Mapping[str, Any]) -> list[Any]:
        return [arguments["create_env_fn"]]


class SpreadCollector(MultiSyncCollector):
    """What a `Collector` becomes if it is told to collect elsewhere: each batch is on the policy's newest weights.

    Its batches are `[workers, T]`, or `[workers * env.batch_size[0], ..., T]`: time stays along the last dimension.
    """

    def _shape_of(self, arguments: Mapping[str, Any], form: EnvForm) -> BatchShape:
        return super()._shape_of({**arguments, "cat_results": 0 if form.batch_size else "stack"}, form)

    def _check(self, arguments: dict[str, Any]) -> None:
        super()._check(arguments)
        self.update_at_each_batch = True  # in one process, the policy's new weights would be seen at once


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, Sequence) else [value]


def _each(value: Any, count: int) -> list[Any]:
    if not isinstance(value, list | tuple):
        return [value] * count
    if len(value) != count:
        raise RuntimeError(f"The length of the devices does not match the number of workers: {count}.")
    return list(value)


def _tensors(value: Any) -> Any:
    """Return arrays that came from a worker as tensors."""
    if isinstance(value, dict):
        return {key: _tensors(each) for key, each in value.items()}
    return torch.as_tensor(value) if hasattr(value, "__array__") else value
