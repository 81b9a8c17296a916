"""What all collectors of this package have in common: a native collector, iterated as TorchRL's are."""

import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from inspect import Signature
from typing import Any, ClassVar

import torch
from tensordict import TensorDictBase
from torch import nn
from torch.utils.data import IterableDataset
from torchrl.collectors import BaseCollector
from torchrl.collectors.utils import split_trajectories
from torchrl.weight_update import NoWeightSyncScheme

from rollfleet.collector import Collector as NativeCollector
from rollfleet.errors import EnvironmentInvalid, JobInvalid, WorkerFailed
from rollfleet.learner.background_fill import BackgroundFill
from rollfleet.torchrl.batches import BatchShape, without_marks
from rollfleet.torchrl.environments import EnvForm
from rollfleet.torchrl.signatures import bound
from rollfleet.torchrl.trajectories import Trajectories

CALL_S = 300.0  # for a worker's answer, which may finish a batch first
NO_LAG = 1 << 52  # TorchRL's collectors drop no batch, however old its policy is


class FleetCollector(IterableDataset[Any]):
    """A collector of TorchRL's interface. Its subclasses say where it collects.

    `Collector` shows an example. Attributes have the names of TorchRL's, and each argument is one.
    """

    _signature: ClassVar[Signature]
    policy: Any
    postproc: Callable[[Any], Any] | None
    requested_frames_per_batch: int
    reset_at_each_iter: bool
    pre_collect_hook: Callable[[], object] | None
    post_collect_hook: Callable[[Any], object] | None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Start to collect. The arguments are those of TorchRL's class, and `cluster`, `job` and `nats`."""
        arguments = bound(self._signature, type(self).__name__, args, kwargs)
        self.closed = True
        self._frames, self._iter, self._updates, self._restored = 0, -1, 0, 0
        self._numbers: dict[int, int] = {}  # of updates, by the native version
        self._trajectories = Trajectories()
        self._fill: BackgroundFill | None = None
        self._iterator: Iterator[Any] | None = None
        for name, value in arguments.items():
            setattr(self, name, value)
        self._check(arguments)
        self._native, self._form, self._shape = self._open(arguments)
        self.closed = False

    def _open(self, arguments: dict[str, Any]) -> tuple[NativeCollector, EnvForm, BatchShape]:
        """Start the native collector. Returns it, the form of its environments, and the shape of batches."""
        raise NotImplementedError

    def _check(self, arguments: dict[str, Any]) -> None:
        total = arguments["total_frames"]
        self.total_frames: float = math.inf if total is None or total < 0 else int(total)
        self.init_random_frames = max(0, int(arguments["init_random_frames"] or 0))
        self.max_frames_per_traj = int(arguments["max_frames_per_traj"] or 0)
        self.split_trajs = bool(arguments["split_trajs"])
        self.compact_obs = bool(arguments.get("compact_obs"))
        self.track_traj_ids = arguments.get("track_traj_ids", True)
        if self.split_trajs and not self.track_traj_ids:
            raise ValueError("split_trajs=True requires track_traj_ids=True.")
        self.replay_buffer = arguments.get("replay_buffer")
        self.trajs_per_batch = arguments.get("trajs_per_batch")
        self.traj_format = self._format(arguments.get("traj_format"))
        if arguments.get("weight_updater") is not None:
            raise JobInvalid("`weight_updater` is not available: weights travel by themselves; remove it")
        schemes = arguments.get("weight_sync_schemes") or {}
        self._sends = not (schemes and all(isinstance(each, NoWeightSyncScheme) for each in schemes.values()))

    def _format(self, written: str | None) -> str:
        if written is None:
            if self.trajs_per_batch is not None and self.replay_buffer is None:
                warnings.warn(
                    "traj_format is not set: its default 'padded' will change to 'cat' in torchrl v0.16",
                    FutureWarning,
                    stacklevel=4,
                )
            return "padded"
        if written not in ("padded", "cat"):
            raise ValueError(f"traj_format must be 'padded' or 'cat', got {written!r}.")
        if written == "cat" and self.trajs_per_batch is None:
            raise ValueError("traj_format has no effect without trajs_per_batch")
        return written

    # --- iteration ---

    def __iter__(self) -> Iterator[Any]:
        """Iterate over batches until `total_frames`. A second loop continues after the first one."""
        try:
            yield from self.iterator() if self.trajs_per_batch is None else self._by_trajectories()
        except Exception:
            self.shutdown(raise_on_error=False)
            raise

    def iterator(self) -> Iterator[Any]:
        """Iterate over batches of frames."""
        for batch in self._batches():
            yield self._put(batch)

    def _batches(self) -> Iterator[TensorDictBase]:
        while self._frames < self.total_frames and (batch := self._collect()) is not None:
            yield batch

    def next(self) -> Any:
        """Return the next batch; None: there is none."""
        self._iterator = self._iterator or iter(self)
        return next(self._iterator, None)

    def __len__(self) -> int:
        """Return the number of batches until `total_frames`."""
        if self.total_frames == math.inf:
            raise RuntimeError("a collector without total_frames has no length")
        return -(-int(self.total_frames) // self.requested_frames_per_batch)

    def __bool__(self) -> bool:
        """Return True, whatever its length."""
        return True

    def _collect(self) -> TensorDictBase | None:
        """Return the next batch of frames, as TorchRL's collectors yield it; None: the job has ended."""
        self._iter += 1
        if getattr(self, "update_at_each_batch", False):
            self.update_policy_weights_()
        try:
            batch = next(self._native, None)
        except WorkerFailed as error:
            raise RuntimeError(str(error)) from error
        except EnvironmentInvalid as error:
            raise error.__cause__ or error from None  # the environment's own error, as in TorchRL
        if batch is None:
            return None
        version = int(batch.get(("collector", "policy_version")).max())
        batch = self._shape.of(batch)
        self._frames += (
            int((batch.get(("collector", "traj_ids")) >= 0).sum()) if self._shape.preempts else batch.numel()
        )
        if self._form.device is not None and batch.device != self._form.device:
            batch = batch.to(self._form.device)
        if getattr(self, "track_policy_version", False):
            number = torch.full(batch.shape, self._numbers.get(version, self._restored))
            batch.set("policy_version", number).set(("next", "policy_version"), number.clone())
        batch = without_marks(batch, ids=self.track_traj_ids)
        if self.compact_obs:
            batch = batch.exclude(*self._form.repeated)
        return batch

    def _put(self, batch: TensorDictBase) -> Any:
        """Return the value to yield for a batch; None: it is in the replay buffer."""
        result: Any = split_trajectories(batch, prefix="collector") if self.split_trajs else batch
        if self.postproc is not None:
            result = self.postproc(result)
        self._collected(result)
        if self.replay_buffer is None:
            return result
        parts = result.unbind(0) if self._shape.native == "stack" and not self.split_trajs else [result]
        for part in parts:
            self.replay_buffer.extend(part)
        return None

    def _collected(self, batch: Any) -> None:
        """Called with each batch before it is yielded or stored."""

    def _by_trajectories(self) -> Iterator[Any]:
        for batch in self._batches():
            self._trajectories.add(batch)
            if self.reset_at_each_iter:
                self._trajectories.drop(complete=False)
            if self.replay_buffer is not None:
                while count := min(len(self._trajectories), getattr(self, "trajs_per_write", None) or 1 << 31):
                    self.replay_buffer.extend(self._trajectories.take(count, cat=True))
                yield None
                continue
            while len(self._trajectories) >= (count := int(self.trajs_per_batch or 1)):
                yield self._trajectories.take(count, cat=self.traj_format == "cat")

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
        source = policy_or_weights if policy_weights is None else policy_weights
        if isinstance(source, dict) and source and all(isinstance(worker, int) for worker in source):
            for worker, own in source.items():  # each worker's own weights
                self.update_policy_weights_(own, worker_ids=worker)
            return
        given = any(each is not None for each in (source, weights, policy, weights_dict))
        if self._sends and (given or self._has_weights):
            version = self._native.update_policy_weights_(
                source,
                weights=weights,
                policy=policy,
                worker_ids=worker_ids,
                model_id=model_id if given and model_id != "policy" else None,
                weights_dict=weights_dict,
            )
        else:
            version = self._native.version
        self._updates += 1
        self._numbers[version] = self._updates

    def receive_weights(self, policy_or_weights: Any = None, *, weights: Any = None, policy: Any = None) -> None:
        """Load weights into the policy, and send them to the workers; without weights, do nothing."""
        if any(each is not None for each in (policy_or_weights, weights, policy)):
            self.update_policy_weights_(policy_or_weights, weights=weights, policy=policy)

    @property
    def _has_weights(self) -> bool:
        return isinstance(self.policy, nn.Module) and any(True for _ in self.policy.state_dict())

    @property
    def policy_version(self) -> int | None:
        """The number of updates of the weights; None: without `track_policy_version`."""
        return self._updates if getattr(self, "track_policy_version", False) else None

    def get_policy_version(self) -> int | None:
        """Return `policy_version`."""
        return self.policy_version

    def increment_version(self) -> None:
        """Count one more update of the weights."""
        self._updates += 1
        self._numbers[self._native.version] = self._updates

    # --- environments and policies ---

    def set_seed(self, seed: int, static_seed: bool = False) -> int:
        """Seed the environments one after the other. Returns the seed after the last one."""
        for worker in self._native.workers:
            answers = self._native.call(worker, "env.set_seed", seed, static_seed=static_seed, timeout_s=CALL_S)
            seed = answers[worker][0]
        self.reset()
        return seed

    def reset(self, index: Any = None) -> None:
        """Begin new episodes in all environments. `index`: not available.

        Raises:
            NotImplementedError: An index was passed.
        """
        if index is not None and not all(index):
            raise NotImplementedError("rollfleet.torchrl resets all environments at once; remove the index")
        self._trajectories.drop()
        self._native.set_seed(0)

    def getattr_env(self, attr: str) -> Any:
        """Return an attribute of the first worker's environment."""
        return self._read(f"env.{attr}")[0][0]

    def getattr_policy(self, attr: str) -> Any:
        """Return an attribute of the first worker's policy."""
        return self._read(f"policy.{attr}")[0]

    def getattr_rb(self, attr: str) -> Any:
        """Return an attribute of the replay buffer."""
        return getattr(self.replay_buffer, attr)

    def get_distant_attr(self, attr: str) -> Any:
        """Return `env.<name>`, `policy.<name>`, `replay_buffer.<name>` or `worker_idx`, for each worker."""
        return self.map_fn(attr)

    def map_fn(
        self,
        method_name: str,
        list_of_args: Sequence[Sequence[Any]] | None = None,
        list_of_kwargs: Sequence[Mapping[str, Any]] | None = None,
    ) -> list[Any]:
        """Call a method on each worker, with the arguments for each: see `get_distant_attr` for its path."""
        workers = self._native.workers
        args, kwargs = list_of_args or [()] * len(workers), list_of_kwargs or [{}] * len(workers)
        if not len(args) == len(kwargs) == len(workers):
            raise ValueError(f"Expected {len(workers)} argument entries, one for each worker, got {len(args)}")
        return [self._at(worker, method_name, args[n], kwargs[n]) for n, worker in enumerate(workers)]

    def _at(self, worker: int, path: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        owner, _, name = path.partition(".")
        if path == "get_distant_attr":
            return self._at(worker, args[0], (), {})
        if path == "worker_idx":
            return worker
        if owner != "replay_buffer":
            found = self._native.call(worker, path, *args, timeout_s=CALL_S, **kwargs)[worker]
            return found[0] if owner == "env" else found
        found = getattr(self.replay_buffer, name)
        return found(*args, **kwargs) if callable(found) else found

    def _read(self, path: str) -> list[Any]:
        found = self._native.call(None, path, timeout_s=CALL_S)
        return [found[worker] for worker in sorted(found)]

    # --- in the background ---

    def start(self) -> None:
        """Fill the replay buffer in the background.

        Raises:
            RuntimeError: The collector has no replay buffer.
        """
        if self.replay_buffer is None:
            raise RuntimeError("Replay buffer must be defined for execution.")
        if not self.is_running():
            self._background = iter(self)
            self._fill = BackgroundFill(self._fill_once)

    def _fill_once(self) -> None:
        next(self._background)

    def is_running(self) -> bool:
        """Return whether `start` fills the replay buffer now."""
        return self._fill is not None and self._fill.running

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Write nothing into the replay buffer inside the block."""
        with self._fill.held() if self._fill else nullcontext(), self._native.pause():
            yield

    def async_shutdown(self, timeout: float | None = None, close_env: bool = True) -> None:
        """Stop filling the replay buffer, and shut down."""
        self.shutdown(timeout=timeout, close_env=close_env)

    def shutdown(self, timeout: float | None = None, close_env: bool = True, raise_on_error: bool = True) -> None:
        """Stop all workers. Calling it twice is harmless."""
        if self.closed:
            return
        self.closed = True
        try:
            if self._fill is not None:
                self._fill.leave(10.0 if timeout is None else timeout)
            self._close(close_env)
        except Exception:
            if raise_on_error:
                raise

    def _close(self, close_env: bool) -> None:
        self._native.shutdown()

    # --- state ---

    def stats(self, workers: str = "aggregate") -> dict[str, int | float | bool]:
        """Return counters: `frames`, `batches`, `total_frames`, `completed`, `policy_version`."""
        stats: dict[str, int | float | bool] = {"frames": self._frames, "batches": self._iter + 1}
        if self.total_frames != math.inf:
            stats |= {"total_frames": int(self.total_frames), "completed": self._frames >= self.total_frames}
        stats["requested_frames_per_batch"] = self.requested_frames_per_batch
        if self.policy_version is not None:
            stats["policy_version"] = self.policy_version
        return stats

    def state_dict(self) -> dict[str, Any]:
        """Return counters, and the state of environments and policy, for `load_state_dict`."""
        state = {"frames": self._frames, "iter": self._iter, "fleet": self._native.state_dict()}
        return state | ({"policy_version": self.policy_version} if self.policy_version is not None else {})

    def load_state_dict(self, state_dict: Mapping[str, Any], **kwargs: Any) -> None:
        """Continue from a `state_dict`."""
        self._frames, self._iter = state_dict["frames"], state_dict["iter"]
        self._updates = self._restored = state_dict.get("policy_version") or 0
        if "fleet" in state_dict:
            self._native.load_state_dict(state_dict["fleet"])

    def enable_profile(self, **_: Any) -> None:
        """Refuse: profiling is not available.

        Raises:
            NotImplementedError: Always; the message says what to do.
        """
        raise NotImplementedError("rollfleet.torchrl does not profile: run torch.profiler around your loop, or py-spy")


BaseCollector.register(FleetCollector)
