"""`Collector`, in this process; it also dispatches to the other classes, as TorchRL's does."""

from collections.abc import Mapping, Sequence
from inspect import signature
from typing import Any, Final

import torch
import torchrl.collectors
from torch import nn

from rollfleet.collector import Collector as NativeCollector
from rollfleet.envs.torchrl_env import UNCALLED
from rollfleet.errors import JobInvalid
from rollfleet.policies.tensordict_policy import tensordict_policy
from rollfleet.system.devices import same_device
from rollfleet.system.generators import generators_kept
from rollfleet.torchrl.arguments import PLACE, elsewhere
from rollfleet.torchrl.batches import BatchShape, without_marks
from rollfleet.torchrl.collecting import FleetCollector
from rollfleet.torchrl.environments import DEVICES, device_of, listed, prepared
from rollfleet.torchrl.policies import acting, called_first, with_spec

_SELECTORS: Final = ("backend", "backend_options", "num_collectors", "sync")
_CLASSES: Final = {
    "process": "MultiCollector",
    "multiprocessing": "MultiCollector",
    "ray": "RayCollector",
    "rpc": "RPCCollector",
    "distributed": "DistributedCollector",
    "submitit": "DistributedCollector",
}
"""The class of each backend but "direct", which is this process."""


class Collector(FleetCollector, theirs=torchrl.collectors.Collector):
    """Collects in this process; with `num_collectors` or `backend` in others, as TorchRL's `Collector`.

    Example:
        >>> from torchrl.envs import GymEnv
        >>> collector = Collector(lambda: GymEnv("CartPole-v1"), frames_per_batch=16, total_frames=32)
        >>> [tuple(batch.shape) for batch in collector]
        [(16,), (16,)]
        >>> collector.shutdown()
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Make a collector of the class that `num_collectors`, `backend`, or a place on a fleet asks for."""
        other = _dispatched(args, kwargs) if cls is Collector else None
        return super().__new__(cls) if other is None else other

    def _open(self, given: dict[str, Any]) -> tuple[NativeCollector, BatchShape]:
        if places := [*elsewhere, *(name for name in PLACE if given[name] is not None)]:
            raise JobInvalid(
                f"`{places[0]}` asks for other processes, and a subclass of Collector, or backend='direct', collects "
                f"in this one; derive from MultiSyncCollector, or remove `{places[0]}`"
            )
        for name in DEVICES:
            setattr(self, name, device_of(given[name], given["device"]))
        if self.policy_device == self.env_device:
            self.storing_device = self.storing_device or self.env_device
        if given["policy_factory"] is not None:
            if self.policy is not None:
                raise TypeError("policy_factory cannot be used with policy argument.")
            self.policy = given["policy_factory"]()
        make, kwargs = listed(given["create_env_fn"])[0], given["create_env_kwargs"] or {}
        self.env = prepared(make, kwargs, self.env_device, max(0, self.max_frames_per_traj), self.policy)
        self.env_device = self.env_device or self.env.device
        self.policy = with_spec(self.policy, self.env, trusted=bool(given["trust_policy"]))
        vars(self.env)[UNCALLED] = not called_first(self.policy, self.env, given)
        for part in (self.policy, self.env):
            if hasattr(part, "register_collector"):
                part.register_collector(self)
        self._know(self.env, self.storing_device)
        self.n_env = self.env.batch_size.numel()
        self.frames_per_batch = -(-given["frames_per_batch"] // self.n_env)
        self.requested_frames_per_batch = self.frames_per_batch * self.n_env
        policy = acting(self.policy, given)
        parts = [*policy.parameters(), *policy.buffers()] if isinstance(policy, nn.Module) else []
        moves = any(self.policy_device and not same_device(part.device, self.policy_device) for part in parts)
        collector = NativeCollector(
            self.env,
            policy,
            policy_device=self.policy_device if moves else None,
            device=self.storing_device,
            frames_per_batch=self.requested_frames_per_batch,
            num_envs=self.n_env,
            weights_interval=0 if moves else 1,  # 1: the very module acts, and none is sent
            **self._keywords,
        )
        return collector, BatchShape(self.env.batch_size)

    def fake_tensordict(self) -> Any:
        """Return a batch of zeros, with the keys, shapes and dtypes of a real one. Nothing is collected."""
        act = tensordict_policy(self.policy, self.env)
        with generators_kept(range(torch.cuda.device_count())), torch.no_grad():
            frame = act(self.env.fake_tensordict())
        batch = frame.unsqueeze(-1).expand(*self.env.batch_size, self.frames_per_batch).clone().zero_()
        batch.set(("collector", "traj_ids"), torch.zeros(batch.shape, dtype=torch.int64))
        batch.names = [*[None] * (batch.ndim - 1), "time"]
        if self.compact_obs:
            batch = batch.exclude(*self._repeated)
        return without_marks(batch, ids=self.track_traj_ids)

    def set_seed(self, seed: int, static_seed: bool = False) -> int:
        """Seed the environment, from its next reset on. Returns the next seed."""
        return self.env.set_seed(seed, static_seed=static_seed)  # type: ignore[no-any-return]

    def getattr_env(self, attr: str) -> Any:
        """Return an attribute of the environment."""
        return getattr(self.env, attr)

    def getattr_policy(self, attr: str) -> Any:
        """Return an attribute of the policy."""
        return getattr(self.policy, attr)

    def state_dict(self) -> dict[str, Any]:
        """Return counters, the policy, and the state of the environment's transforms."""
        return {"env_state_dict": self.env.state_dict()} | super().state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any], **kwargs: Any) -> None:
        """Continue from a `state_dict`."""
        strict = kwargs.get("strict", True)
        if strict or "env_state_dict" in state_dict:
            self.env.load_state_dict(state_dict["env_state_dict"], **kwargs)
        if isinstance(self.policy, nn.Module) and (strict or "policy_state_dict" in state_dict):
            self.policy.load_state_dict(state_dict["policy_state_dict"], **kwargs)
        super().load_state_dict(state_dict)


def _dispatched(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return the collector that arguments of `Collector` ask for; None: one in this process.

    Raises:
        TypeError: There are too many arguments, or one is written twice.
        ValueError: The arguments contradict each other.
    """
    import rollfleet.torchrl as classes

    rest = dict(kwargs)
    backend, options, count, sync = (rest.pop(name, None) for name in _SELECTORS)
    if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < 1):
        raise ValueError("num_collectors must be a positive integer.")
    placed = bool(elsewhere) or any(kwargs.get(name) is not None for name in PLACE)
    spread = placed and (backend, count, sync) == (None, None, None)
    backend = backend or ("process" if spread or count else "direct")
    makes = listed(args[0] if args else rest.pop("create_env_fn", None))
    if backend == "direct":
        if (count or 1) > 1 or len(makes) > 1 or sync is not None or options:
            raise ValueError("backend='direct' is one collector of one environment, without sync and backend_options.")
        return None
    if backend not in _CLASSES:
        raise ValueError(f"Collector does not support backend={backend!r}. Expected one of {['direct', *_CLASSES]}.")
    makes = makes * (count or 1) if len(makes) == 1 else makes
    if len(makes) != (count or len(makes)):
        raise ValueError(f"num_collectors does not match the number of environment constructors: {count}")
    target = getattr(classes, _CLASSES[backend])
    known, general = signature(target).parameters, signature(Collector).parameters
    rest = {
        name: value
        for name, value in rest.items()
        if name in known or name not in general or value != general[name].default
    }
    rest |= {"sync": spread or bool(sync)}
    if spread:  # in one process, new weights act at once
        rest |= {"cat_results": "envs", "update_at_each_batch": True}
    return target(makes, *args[1:], **(options or {}), **rest)
