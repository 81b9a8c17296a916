"""A replay buffer: the newest frames, to sample from."""

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rollfleet.data.batch import nested
from rollfleet.data.columns import Columns, Key
from rollfleet.data.ring import Ring
from rollfleet.errors import JobInvalid

if TYPE_CHECKING:
    from tensordict import TensorDict


class ReplayBuffer:
    """Keeps the newest `capacity` frames. Any thread may extend it while another samples.

    Its memory is laid out once, at the first `extend`, like that batch. `rollfleet.Collector` takes it as
    `replay_buffer`, as it takes any other object with `extend`.

    A shared one is written by the collector's worker processes themselves, each frame once and whole: what is being
    written is not drawn, and what a worker had not written to the end when it was killed is never drawn, nor counted.
    No batch goes through the learner. Its memory has no name: it goes with the processes.

    Args:
        capacity: Frames.
        device: Where they are kept; None: where the first ones are.
        shared: Keep them in memory that processes of this machine share, which is the CPU's.
    """

    def __init__(self, capacity: int, *, device: str | torch.device | None = None, shared: bool = False) -> None:
        if capacity < 1:
            raise ValueError(f"a buffer holds at least one frame, not {capacity}")
        if shared and device is not None:
            raise JobInvalid("a shared replay buffer is in the CPU's memory; remove `device`, and move what you draw")
        self.capacity = capacity
        self.ring = Ring.create(capacity) if shared else None
        self._rows: Ring | _Rows = self.ring or _Rows(capacity, None if device is None else torch.device(device))

    @property
    def write_count(self) -> int:
        """Frames that were ever written."""
        return self._rows.written

    def __len__(self) -> int:
        """Frames in it that can be drawn."""
        return self._rows.held

    def extend(self, frames: "TensorDict") -> None:
        """Write frames, TensorDict `[frames]`; the oldest make room.

        Raises:
            JobInvalid: They are laid out differently from the first ones.
        """
        self._rows.write(_flat(frames))

    def sample(self, count: int, generator: torch.Generator | None = None) -> "TensorDict":
        """Frames drawn with replacement, each as likely as any other: TensorDict `[count]`, memory of its own.

        Raises:
            JobInvalid: The buffer is empty.
        """
        from tensordict import TensorDict

        drawn = self._rows.sample(count, generator)
        return TensorDict(nested(drawn), batch_size=[count], device=next(iter(drawn.values())).device)

    def state_dict(self) -> dict[str, Any]:
        """What is in it: `frames`, a copy, the oldest first, and `write_count`."""
        frames = self._rows.newest_last()
        return {"write_count": self.write_count, "frames": nested(frames) if frames else None}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Hold what another buffer held, or the newest of it. Nobody else may write meanwhile."""
        from tensordict import TensorDict

        frames = state["frames"]
        self._rows.begin_with({} if frames is None else _flat(TensorDict.from_dict(frames)), state["write_count"])


class _Rows:
    """The newest rows that were written, in memory of this process or of a device. See `Ring`."""

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
            until_the_end = min(rows, self.capacity - self._next)
            for key, value in columns.items():
                newest = value.detach()[frames - rows :]
                self._columns[key][self._next : self._next + until_the_end] = newest[:until_the_end]
                self._columns[key][: rows - until_the_end] = newest[until_the_end:]
            self._next = (self._next + rows) % self.capacity
            self.held = min(self.held + rows, self.capacity)
            self.written += frames

    def sample(self, count: int, generator: torch.Generator | None = None) -> dict[Key, Tensor]:
        with self._lock:
            if not self.held:
                raise JobInvalid("nothing can be drawn from an empty replay buffer; collect first")
            device = None if generator is None else generator.device
            index = torch.randint(self.held, (count,), generator=generator, device=device)
            return self._at(index)

    def newest_last(self) -> dict[Key, Tensor]:
        with self._lock:
            return self._at((self._next - self.held + torch.arange(self.held)) % self.capacity) if self.held else {}

    def begin_with(self, columns: Mapping[Key, Tensor], written: int) -> None:
        with self._lock:
            self.held = self._next = 0
        if columns:
            self.write(columns)
        self.written = written

    def _at(self, index: Tensor) -> dict[Key, Tensor]:
        return {key: column[index.to(column.device)] for key, column in self._columns.items()}

    def _allocate(self, value: Tensor) -> Tensor:
        # Policies run in inference mode, and what is allocated there could not be written later on.
        with torch.inference_mode(False):
            shape = (self.capacity, *value.shape[1:])
            return torch.zeros(shape, dtype=value.dtype, device=self._device or value.device)


def _flat(frames: "TensorDict") -> dict[Key, Tensor]:
    return {(key,) if isinstance(key, str) else tuple(key): value for key, value in frames.items(True, True)}
