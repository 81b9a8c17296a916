"""What all collectors of this package have in common: a native collector, iterated as TorchRL's are."""

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from inspect import Parameter, Signature, signature
from operator import attrgetter
from typing import Any, ClassVar

import torch
from tensordict import TensorDictBase
from torch import nn
from torchrl.collectors import BaseCollector
from torchrl.collectors.utils import split_trajectories
from torchrl.envs import EnvBase
from torchrl.weight_update import NoWeightSyncScheme

from rollfleet.collector import Collector as NativeCollector
from rollfleet.data.batch import MASK, TRAJECTORY, VERSION
from rollfleet.data.tensor_tree import key_of
from rollfleet.data.whole_trajectories import WholeTrajectories, add_batch, batch_of
from rollfleet.envs.torchrl_env import STAYS_OPEN
from rollfleet.errors import EnvironmentInvalid, WorkerFailed
from rollfleet.learner.background_fill import BackgroundFill
from rollfleet.rollout.trajectory_ids import split
from rollfleet.system.copies import refuse_copy
from rollfleet.torchrl.arguments import PLACE, native
from rollfleet.torchrl.batches import BatchShape, without_marks, without_padding

_FIXED = ("exploration_type", "init_random_frames", "reset_at_each_iter")


class FleetCollector(BaseCollector):  # type: ignore[misc]
    """A collector of TorchRL's interface. Its subclasses say where it collects.

    `Collector` shows an example. Attributes have the names of TorchRL's, and each argument is one. TorchRL's own class
    has `next`, `len`, `map_fn`, `get_distant_attr`, `set_post_collect_hook`, `async_shutdown`, and `stats`, which reads
    the private `_frames` and `_iter`.
    """

    __reduce__ = refuse_copy
    __signature__: ClassVar[Signature]
    policy: Any
    requested_frames_per_batch: int
    storing_device: Any  # in one process a device, else a list of one for each worker; so the next two
    policy_device: Any
    env_device: Any
    # Arguments that not all of TorchRL's collectors have
    compact_obs = track_policy_version = update_at_each_batch = False
    track_traj_ids = True
    env: Any = None  # in this process
    replay_buffer: Any = None
    traj_format: str | None = None

    def __init_subclass__(cls, theirs: type | None = None) -> None:
        """Give a class the signature of one of TorchRL's, with the keywords of `PLACE`."""
        super().__init_subclass__()
        if theirs is not None:
            _, *own = signature(theirs.__init__).parameters.values()  # type: ignore[misc]
            place = (Parameter(name, Parameter.KEYWORD_ONLY, default=None) for name in PLACE)
            kept = [each for each in own if each.kind is not Parameter.VAR_KEYWORD]
            cls.__signature__ = Signature([*kept, *place])

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Start to collect. The arguments are those of TorchRL's class, and `cluster`, `job` and `nats`."""
        super().__init__()
        try:
            call = self.__signature__.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{type(self).__name__}: {error}") from None
        call.apply_defaults()
        given = self._given(dict(call.arguments))
        self._keywords = native(given)
        self.closed = True
        self._frames, self._iter, self._updates, self._seed = 0, -1, 0, torch.initial_seed()
        self._before: int | None = None  # the native version less the number of updates; None: no update yet
        self._trajectories = WholeTrajectories[Any]()
        self._fill: BackgroundFill | None = None
        for name, value in given.items():
            setattr(self, name, value)
        self._check(given)
        self._native, self._shape = self._open(given)
        self.closed = False

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute: not one that workers have read.

        Raises:
            AttributeError: It is, and the value is another.
        """
        if name in _FIXED and not vars(self).get("closed", True) and value != getattr(self, name):
            raise AttributeError(f"`{name}` stays as it was when the collector was made; make a new one for {value}")
        super().__setattr__(name, value)

    def _given(self, arguments: dict[str, Any]) -> dict[str, Any]:
        return arguments

    def _open(self, given: dict[str, Any]) -> tuple[NativeCollector, BatchShape]:
        """Start the native collector, after `_know`. Returns it, and the shape of batches."""
        raise NotImplementedError

    def _know(self, env: EnvBase, device: torch.device | None) -> None:
        """Read from an environment what a learner needs to know; a device is that of batches, in place of its own."""
        states = (*env.full_observation_spec.keys(True, True), *env.full_state_spec.keys(True, True))
        self._device = device or (None if env.device is None or env.device.type == "cpu" else env.device)
        self._repeated = [("next", *key_of(key)) for key in states]  # the next frame has these at its root

    def _check(self, given: Mapping[str, Any]) -> None:
        total = given["total_frames"]
        self.total_frames: float = math.inf if total is None or total < 0 else int(total)
        self.init_random_frames = max(0, int(given["init_random_frames"] or 0))
        self.max_frames_per_traj = int(given["max_frames_per_traj"] or 0)
        if self.split_trajs and not self.track_traj_ids:
            raise ValueError("split_trajs=True requires track_traj_ids=True.")
        if self.trajs_per_batch is not None and not self.track_traj_ids:
            raise ValueError("trajs_per_batch requires track_traj_ids=True.")
        if self.traj_format not in (None, "padded", "cat"):
            raise ValueError(f"traj_format must be 'padded' or 'cat', got {self.traj_format!r}.")
        if self.traj_format == "cat" and self.trajs_per_batch is None:
            raise ValueError("traj_format has no effect without trajs_per_batch")
        if self.traj_format is None and self.trajs_per_batch is not None and self.replay_buffer is None:
            text = "traj_format is not set: its default 'padded' will change to 'cat' in torchrl v0.16"
            warnings.warn(text, FutureWarning, stacklevel=3)
        self.traj_format = self.traj_format or "padded"
        schemes = given.get("weight_sync_schemes") or {}
        self._sends = not (schemes and all(isinstance(each, NoWeightSyncScheme) for each in schemes.values()))

    # --- iteration ---

    def __iter__(self) -> Iterator[Any]:
        """Iterate over batches until `total_frames`. A second loop continues after the first one."""
        try:
            yield from self.iterator()
        except Exception:
            self.closed = True
            with suppress(Exception):
                self._native.detach()  # own workers end; those of a job wait for its next learner
            raise

    def iterator(self) -> Iterator[Any]:
        """Iterate as a loop over the collector does. An error leaves the collector open."""
        while self._frames < self.total_frames and (batch := self._collect()) is not None:
            splits = self.split_trajs and self.trajs_per_batch is None
            result: Any = split_trajectories(batch, prefix="collector") if splits else batch
            if self.postproc is not None:
                result = self.postproc(result)
            if self.env is not None and self.post_collect_hook is not None:
                self.post_collect_hook(result)
            if self.trajs_per_batch is not None:
                yield from self._whole_trajectories(result, self.trajs_per_batch)
            elif self.replay_buffer is None:
                yield result
            else:
                for part in [result] if splits else self._without_padding(result):
                    self.replay_buffer.extend(part if self.track_traj_ids else part.exclude("collector"))
                yield None

    def __repr__(self) -> str:
        """Return the text of the native collector in the name of this class."""
        return f"{type(self).__name__}({getattr(self, '_native', '')!r})"

    def __bool__(self) -> bool:
        """Return True, whatever its length."""
        return True

    def _collect(self) -> TensorDictBase | None:
        """Return the next batch of frames, as TorchRL's collectors yield it; None: the job has ended."""
        if self.env is not None and self.pre_collect_hook is not None:  # other processes call their own
            self.pre_collect_hook()
        self._iter += 1
        if self.update_at_each_batch:
            self.update_policy_weights_()
        try:
            batch = next(self._native, None)
        except WorkerFailed as error:
            raise RuntimeError(str(error)) from error
        except EnvironmentInvalid as error:
            raise error.__cause__ or error from None  # the environment's own error, as in TorchRL
        if batch is None:
            return None
        acted = int(batch.get(VERSION).max())  # a batch may be older than the newest weights
        number = self._updates if self._before is None else min(acted - self._before, self._updates)
        batch = self._shape.of(batch)
        self._frames += int((batch.get(TRAJECTORY) >= 0).sum())  # padding has no trajectory
        if self._device is not None and batch.device != self._device:
            batch = batch.to(self._device)
        if self.track_policy_version:
            for key in ("policy_version", ("next", "policy_version")):
                batch.set(key, torch.full(batch.shape, number))
        padded = self.replay_buffer is not None and MASK in batch.keys(True)
        batch = without_marks(batch, ids=self.track_traj_ids or padded)
        return batch.exclude(*self._repeated) if self.compact_obs else batch

    def _without_padding(self, batch: Any) -> list[Any]:
        """Return the frames of each worker alone; of a batch without padding that is not stacked, the batch itself."""
        sizes = self._shape.sizes
        if self._shape.cat == "stack":
            inner = batch.batch_dims > len(sizes) + 2  # of a distributed collector
            parts = (batch.flatten(0, 1) if inner else batch).unbind(0)
        elif sizes and isinstance(batch, TensorDictBase) and MASK in batch.keys(True):  # a job has joined them
            parts = batch.split(sizes[0])
        else:
            return [batch]
        return [part for part in map(without_padding, parts) if part.shape[-1]]

    def _whole_trajectories(self, batch: TensorDictBase, count: int) -> Iterator[Any]:
        """Yield the batches of `count` trajectories that these frames complete; None: they are in the replay buffer."""
        whole, rows = self._trajectories, batch.reshape(-1, batch.shape[-1])
        add_batch(whole, rows, rows.get(("next", "done")).flatten(2).any(-1))
        present = {split(each)[:2] for each in rows.get(TRAJECTORY).unique().tolist()}
        workers = {worker for worker, _ in present}
        whole.keep(lambda each: split(each)[:2] in present or split(each)[0] not in workers)  # of no earlier process
        if self.reset_at_each_iter:
            whole.forget()
        if self.replay_buffer is None:
            while len(self._trajectories) >= count:  # `reset` may replace them meanwhile
                yield batch_of(self._trajectories.take(count), padded=self.traj_format == "padded")
            return
        while whole:
            self.replay_buffer.extend(batch_of(whole.take(self.trajs_per_write or len(whole)), padded=False))
        yield None

    # --- weights ---

    def update_policy_weights_(
        self,
        policy_or_weights: Any = None,
        *,
        weights: Any = None,
        policy: Any = None,
        worker_ids: int | Sequence[int] | None = None,
        model_id: str | None = None,
        weights_dict: Mapping[str, Any] | None = None,
        policy_weights: Any = None,
    ) -> None:
        """Send weights to the workers, or load them into the policy of this process. See the native collector.

        Raises:
            ValueError: The arguments contradict each other.
        """
        self._check_fill()
        source = policy_or_weights if policy_weights is None else policy_weights
        if isinstance(source, dict) and source and all(isinstance(worker, int) for worker in source):
            for worker, own in source.items():  # each worker's own weights
                self.update_policy_weights_(own, worker_ids=worker)
            return
        given = any(each is not None for each in (source, weights, policy, weights_dict))
        has_weights = isinstance(self.policy, nn.Module) and bool(self.policy.state_dict())
        if self._sends and (given or has_weights):
            name = model_id if given and model_id != "policy" else None
            self._native.update_policy_weights_(
                source, weights=weights, policy=policy, worker_ids=worker_ids, model_id=name, weights_dict=weights_dict
            )
        self.increment_version()

    @property
    def policy_version(self) -> int | None:
        """The number of updates of the weights; None: without `track_policy_version`."""
        return self._updates if self.track_policy_version else None

    def get_policy_version(self) -> int | None:
        """Return `policy_version`."""
        return self.policy_version

    def get_model(self, model_id: str) -> Any:
        """Return `policy`, or a part of it by its path: `policy.module`.

        Raises:
            ValueError: The collector has no such model.
        """
        with suppress(AttributeError):
            if (found := attrgetter(model_id)(self)) is not None:
                return found
        raise ValueError(f"{type(self).__name__} has no model {model_id!r}; 'policy' is one, if you passed it")

    def increment_version(self) -> None:
        """Count one more update of the weights."""
        self._updates += 1
        self._before = self._native.version - self._updates

    # --- environments ---

    def reset(self, index: Any = None) -> None:
        """Begin new episodes in all environments. `index`: not available.

        Raises:
            NotImplementedError: An index was passed.
        """
        if index is not None and not ((mask := torch.as_tensor(index)).dtype is torch.bool and mask.all()):
            raise NotImplementedError("rollfleet.torchrl resets all environments at once; remove the index")
        self._reseed(hash((self._seed, self._frames)))  # as no reset before, and no earlier learner of the job

    def _reseed(self, seed: int, *, static: bool = False) -> None:
        """Begin new episodes, from a seed unless the environments keep their own."""
        self._trajectories, self._seed = WholeTrajectories[Any](), seed
        self._native.set_seed(seed % (1 << 53), static)

    def getattr_rb(self, attr: str) -> Any:
        """Return an attribute of the replay buffer."""
        return getattr(self.replay_buffer, attr)

    # --- in the background ---

    def start(self) -> None:
        """Fill the replay buffer in the background.

        The next `update_policy_weights_`, `start` or `shutdown` raises the error that ends it, if any.

        Raises:
            RuntimeError: The collector has no replay buffer.
        """
        if self.replay_buffer is None:
            raise RuntimeError("Replay buffer must be defined for execution.")
        self._check_fill()
        if not self.is_running():
            self._fill = BackgroundFill(self._fill_once)

    def _fill_once(self) -> None:
        next(self.iterator())

    def _check_fill(self) -> None:
        if self._fill is not None:
            self._fill.check(again=False)

    def is_running(self) -> bool:
        """Return whether `start` fills the replay buffer now."""
        return self._fill is not None and self._fill.running

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Write nothing into the replay buffer inside the block."""
        with self._fill.held() if self._fill else nullcontext(), self._native.pause():
            yield

    def shutdown(self, timeout: float | None = None, close_env: bool = True, raise_on_error: bool = True) -> None:
        """Stop all workers, then raise the error that ended `start`, unless a call has raised it. Twice is harmless.

        Raises:
            RuntimeError: `close_env` is false, and the environments are in other processes: nothing is stopped.
        """
        if self.closed:
            return
        if not close_env:
            if self.env is None:
                raise RuntimeError(f"Cannot shutdown {type(self).__name__} without closing its environments.")
            vars(self.env)[STAYS_OPEN] = True
        self.closed = True
        try:
            if self._fill is not None:
                self._fill.leave(10.0 if timeout is None else timeout)
            self._native.shutdown(timeout)
            self._check_fill()
        except Exception:
            if raise_on_error:
                raise

    # --- state ---

    def state_dict(self) -> dict[str, Any]:
        """Return counters, and the policy, for `load_state_dict`."""
        state = {"frames": self._frames, "iter": self._iter, "fleet": self._native.state_dict()}
        state |= {"policy_version": self.policy_version} if self.policy_version is not None else {}
        return state | ({"policy_state_dict": self.policy.state_dict()} if isinstance(self.policy, nn.Module) else {})

    def load_state_dict(self, state_dict: Mapping[str, Any], **kwargs: Any) -> None:
        """Continue from a `state_dict`."""
        self._frames, self._iter = state_dict["frames"], state_dict["iter"]
        self._updates, self._before = state_dict.get("policy_version") or 0, None
        if "fleet" in state_dict:
            self._native.load_state_dict(state_dict["fleet"])

    def enable_profile(self, **_: Any) -> None:
        """Raise NotImplementedError: profiling is not available."""
        raise NotImplementedError("rollfleet.torchrl does not profile: run torch.profiler around your loop, or py-spy")
