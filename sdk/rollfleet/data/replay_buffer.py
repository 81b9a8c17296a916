"""A replay buffer: the newest frames, for sampling."""

import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rollfleet.arguments import shown, whole_number
from rollfleet.data.batch import Key
from rollfleet.data.splitting import frames_of
from rollfleet.data.tensor_memory import indexable
from rollfleet.data.tensor_tree import nested
from rollfleet.errors import JobInvalid
from rollfleet.system.devices import Device, device_of

if TYPE_CHECKING:
    from tensordict import TensorDict


LOOK_S = 0.05  # between two looks whether a sample still waits: no frames may come any more


class ReplayBuffer:
    """Keeps the newest `capacity` frames. Any thread may extend it while another samples.

    The first `extend` fixes its keys, dtypes and shapes. Pass it to `rollfleet.Collector` as `replay_buffer`, like any
    other object with `extend`.

    Args:
        capacity: Number of frames.
        device: The device of the memory; None: that of the first frames.

    Attributes:
        must_wait: Whether `sample` waits for frames. `Collector.start(frames_per_sample=...)` sets it.

    Raises:
        JobInvalid: An argument cannot be used. The message names it.

    Example:
        >>> from rollfleet import Collector, ReplayBuffer
        >>> buffer = ReplayBuffer(10_000)
        >>> with Collector("CartPole-v1", frames_per_batch=64, total_frames=128, replay_buffer=buffer) as collector:
        ...     for _ in collector:
        ...         batch = buffer.sample(32)
        >>> len(buffer), batch["observation"].shape
        (128, torch.Size([32, 4]))
    """

    def __init__(self, capacity: int, *, device: Device | None = None) -> None:
        self.capacity = whole_number(capacity, "capacity", least=1)
        self._device = None if device is None else device_of(device, "device")
        self._columns: dict[Key, Tensor] = {}
        self._held = self._next = self._written = self._drawn = 0
        self._lock = threading.Condition()
        self.must_wait: Callable[[], bool] = lambda: False

    @property
    def write_count(self) -> int:
        """Number of frames written since the start."""
        return self._written

    @property
    def sample_count(self) -> int:
        """Number of calls of `sample`."""
        return self._drawn

    def __len__(self) -> int:
        """Return the number of frames that can be drawn."""
        return self._held

    def extend(self, frames: "TensorDict") -> None:
        """Write frames, TensorDict `[frames]` or a batch `[..., T]`, over the oldest. Padding is left out.

        Raises:
            JobInvalid: Keys, dtypes or shapes differ from those of the first frames, or it is not a TensorDict.
        """
        self._write(_flat(frames))

    def sample(self, count: int, generator: torch.Generator | None = None) -> "TensorDict":
        """Draw frames uniformly, with replacement: TensorDict `[count]` with new memory. It may wait: `must_wait`.

        Raises:
            JobInvalid: The buffer is empty, or an argument cannot be used.
        """
        from tensordict import TensorDict

        number = whole_number(count, "count")
        if generator is not None and not isinstance(generator, torch.Generator):
            raise JobInvalid(f"generator: expected a torch.Generator, got {shown(generator)}")
        with self._lock:
            while self.must_wait():
                self._lock.wait(LOOK_S)
            if not self._held:
                raise JobInvalid("cannot sample from an empty replay buffer; collect first")
            self._drawn += 1
            device = "cpu" if generator is None else generator.device
            drawn = self._at(torch.randint(self._held, (number,), generator=generator, device=device))
        return TensorDict(nested(drawn), batch_size=[number], device=next(iter(drawn.values())).device)

    def state_dict(self) -> dict[str, Any]:
        """Return `frames`, a copy of the contents from oldest to newest, and `write_count`."""
        with self._lock:
            oldest_first = (self._next - self._held + torch.arange(self._held, device="cpu")) % self.capacity
            frames = nested(self._at(oldest_first)) if self._held else None
            return {"write_count": self._written, "frames": frames}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Replace the contents by those of a `state_dict`, or their newest frames. No one else may write meanwhile.

        Raises:
            JobInvalid: It is no `state_dict` of a replay buffer.
        """
        from tensordict import TensorDict

        if not isinstance(state, Mapping) or not state.keys() >= {"frames", "write_count"}:
            raise JobInvalid(f"load_state_dict: expected the state_dict of a ReplayBuffer, got {shown(state)}")
        frames, written = state["frames"], whole_number(state["write_count"], "write_count")
        values = {} if frames is None else _flat(TensorDict.from_dict(frames, auto_batch_size=True, batch_dims=1))
        if values and self._columns:
            self._check(values)
        self._held = self._next = 0
        if values:
            self._write(values)
        self._written = written

    def _write(self, values: Mapping[Key, Tensor]) -> None:
        frames = len(next(iter(values.values())))
        rows = min(frames, self.capacity)
        with self._lock:
            if not self._columns:
                self._columns = {key: self._allocate(value) for key, value in values.items()}
            self._check(values)
            tail = min(rows, self.capacity - self._next)
            for key, value in values.items():
                newest = value.detach()[frames - rows :]
                self._columns[key][self._next : self._next + tail] = newest[:tail]
                self._columns[key][: rows - tail] = newest[tail:]
            self._next = (self._next + rows) % self.capacity
            self._held = min(self._held + rows, self.capacity)
            self._written += frames
            self._lock.notify_all()

    def _check(self, values: Mapping[Key, Tensor]) -> None:
        if differ := _forms(self._columns) ^ _forms(values):
            keys = sorted({".".join(key) for key, *_ in differ})
            raise JobInvalid(f"these frames differ from those in the buffer in {keys}: by key, dtype or shape")

    def _at(self, index: Tensor) -> dict[Key, Tensor]:
        return {
            key: indexable(column)[index.to(column.device)].view(column.dtype) for key, column in self._columns.items()
        }

    def _allocate(self, value: Tensor) -> Tensor:
        # Policies run in inference mode; memory that is allocated there could not be written later.
        with torch.inference_mode(False):
            shape = (self.capacity, *value.shape[1:])
            return torch.zeros(shape, dtype=value.dtype, device=self._device or value.device)


def _forms(values: Mapping[Key, Tensor]) -> set[tuple[Key, torch.dtype, torch.Size]]:
    return {(key, value.dtype, value.shape[1:]) for key, value in values.items()}


def _flat(frames: "TensorDict") -> dict[Key, Tensor]:
    from tensordict import is_leaf_nontensor

    if not hasattr(frames, "batch_size") or not len(frames.keys()):
        raise JobInvalid(f"a replay buffer stores frames as a TensorDict [frames] with keys, not {shown(frames)}")
    leaves = frames_of(frames).items(True, True, is_leaf=is_leaf_nontensor)
    found = {(key,) if isinstance(key, str) else tuple(key): value for key, value in leaves}
    if others := [".".join(key) for key, value in found.items() if not isinstance(value, Tensor)]:
        raise JobInvalid(f"a replay buffer stores tensors, and {others} are not; leave them out by `postproc`")
    return found
