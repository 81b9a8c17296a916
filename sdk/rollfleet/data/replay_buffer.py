"""A replay buffer: the newest frames, for sampling."""

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rollfleet.arguments import shown, true_or_false, whole_number
from rollfleet.data.batch import Key, nested
from rollfleet.data.columns import Columns
from rollfleet.data.ring import Ring
from rollfleet.data.splitting import frames_of
from rollfleet.errors import JobInvalid
from rollfleet.system.devices import Device, device_of

if TYPE_CHECKING:
    from tensordict import TensorDict


class ReplayBuffer:
    """Keeps the newest `capacity` frames. Any thread may extend it while another samples.

    The first `extend` fixes its keys, dtypes and shapes. Pass it to `rollfleet.Collector` as `replay_buffer`, like any
    other object with `extend`.

    A collector's worker processes write a shared buffer directly; no batch goes through the learner. Each frame is
    written once and as a whole: unfinished frames are never drawn, and those of a killed worker are not counted. The
    memory has no name and disappears with the processes.

    Args:
        capacity: Number of frames.
        device: The device of the memory; None: that of the first frames.
        shared: Use CPU memory that processes of this machine share.

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

    def __init__(self, capacity: int, *, device: Device | None = None, shared: bool = False) -> None:
        self.capacity = whole_number(capacity, "capacity", least=1)
        if true_or_false(shared, "shared") and device is not None:
            raise JobInvalid("a shared replay buffer is in the CPU's memory; remove `device`, and move sampled frames")
        self.ring = Ring.create(self.capacity) if shared else None
        where = None if device is None else device_of(device, "device")
        self._rows: Ring | _Rows = self.ring or _Rows(self.capacity, where)

    @property
    def write_count(self) -> int:
        """Number of frames written since the start."""
        return self._rows.written

    def __len__(self) -> int:
        """Return the number of frames that can be drawn."""
        return self._rows.held

    def extend(self, frames: "TensorDict") -> None:
        """Write frames, TensorDict `[frames]` or a batch `[..., T]`, over the oldest. Padding is left out.

        Raises:
            JobInvalid: Keys, dtypes or shapes differ from those of the first frames, or it is not a TensorDict.
        """
        self._rows.write(_flat(frames_of(frames) if getattr(frames, "batch_dims", 1) > 1 else frames))

    def sample(self, count: int, generator: torch.Generator | None = None) -> "TensorDict":
        """Draw frames uniformly, with replacement: TensorDict `[count]` with new memory.

        Raises:
            JobInvalid: The buffer is empty, or an argument cannot be used.
        """
        from tensordict import TensorDict

        number = whole_number(count, "count")
        if generator is not None and not isinstance(generator, torch.Generator):
            raise JobInvalid(f"generator: expected a torch.Generator, got {shown(generator)}")
        drawn = self._rows.sample(number, generator)
        return TensorDict(nested(drawn), batch_size=[number], device=next(iter(drawn.values())).device)

    def state_dict(self) -> dict[str, Any]:
        """Return `frames`, a copy of the contents from oldest to newest, and `write_count`."""
        frames = self._rows.newest_last()
        return {"write_count": self.write_count, "frames": nested(frames) if frames else None}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Replace the contents by those of a `state_dict`, or their newest frames. No one else may write meanwhile.

        Raises:
            JobInvalid: It is no `state_dict` of a replay buffer.
        """
        from tensordict import TensorDict

        if not isinstance(state, Mapping) or not state.keys() >= {"frames", "write_count"}:
            raise JobInvalid(f"load_state_dict: expected the state_dict of a ReplayBuffer, got {shown(state)}")
        frames, written = state["frames"], whole_number(state["write_count"], "write_count")
        self._rows.replace({} if frames is None else _flat(TensorDict.from_dict(frames)), written)


class _Rows:
    """The newest rows, in memory of this process or of a device. See `Ring`."""

    def __init__(self, capacity: int, device: torch.device | None) -> None:
        self.capacity, self._device = capacity, device
        self.written = self.held = self._next = 0
        self._columns: dict[Key, Tensor] = {}
        self._lock = threading.Lock()

    def write(self, columns: Mapping[Key, Tensor]) -> None:
        frames = len(next(iter(columns.values())))
        rows = min(frames, self.capacity)
        with self._lock:
            if not self._columns:
                self._columns = {key: self._allocate(value) for key, value in columns.items()}
            Columns.of(self._columns).check_alike(Columns.of(columns))
            tail = min(rows, self.capacity - self._next)
            for key, value in columns.items():
                newest = value.detach()[frames - rows :]
                self._columns[key][self._next : self._next + tail] = newest[:tail]
                self._columns[key][: rows - tail] = newest[tail:]
            self._next = (self._next + rows) % self.capacity
            self.held = min(self.held + rows, self.capacity)
            self.written += frames

    def sample(self, count: int, generator: torch.Generator | None = None) -> dict[Key, Tensor]:
        with self._lock:
            if not self.held:
                raise JobInvalid("cannot sample from an empty replay buffer; collect first")
            device = "cpu" if generator is None else generator.device
            index = torch.randint(self.held, (count,), generator=generator, device=device)
            return self._at(index)

    def newest_last(self) -> dict[Key, Tensor]:
        with self._lock:
            return (
                self._at((self._next - self.held + torch.arange(self.held, device="cpu")) % self.capacity)
                if self.held
                else {}
            )

    def replace(self, columns: Mapping[Key, Tensor], written: int) -> None:
        with self._lock:
            self.held = self._next = 0
        if columns:
            self.write(columns)
        self.written = written

    def _at(self, index: Tensor) -> dict[Key, Tensor]:
        return {key: column[index.to(column.device)] for key, column in self._columns.items()}

    def _allocate(self, value: Tensor) -> Tensor:
        # Policies run in inference mode; memory that is allocated there could not be written later.
        with torch.inference_mode(False):
            shape = (self.capacity, *value.shape[1:])
            return torch.zeros(shape, dtype=value.dtype, device=self._device or value.device)


def _flat(frames: "TensorDict") -> dict[Key, Tensor]:
    if not hasattr(frames, "batch_size") or not len(frames.keys()):
        raise JobInvalid(f"a replay buffer stores frames as a TensorDict [frames] with keys, not {shown(frames)}")
    return {(key,) if isinstance(key, str) else tuple(key): value for key, value in frames.items(True, True)}
