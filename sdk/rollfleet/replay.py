"""A replay buffer: the newest frames, to sample from."""

import threading
from typing import TYPE_CHECKING, Any

import torch

from rollfleet.errors import JobInvalid

if TYPE_CHECKING:
    from tensordict import TensorDict


class ReplayBuffer:
    """Keeps the newest `capacity` frames. Any thread may extend it while another samples.

    Its memory is allocated once, at the first `extend`, as that batch is laid out. `rollfleet.Collector` takes it as
    `replay_buffer`, as it takes any other object with `extend`.

    Args:
        capacity: Frames.
        device: Where they are kept; None: where the first ones are.

    Attributes:
        write_count: Frames that were ever written.
    """

    def __init__(self, capacity: int, *, device: str | torch.device | None = None) -> None:
        if capacity < 1:
            raise ValueError(f"a buffer holds at least one frame, not {capacity}")
        self.capacity = capacity
        self.write_count = 0
        self._device = None if device is None else torch.device(device)
        self._frames: TensorDict | None = None
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """Frames in it."""
        return min(self.write_count, self.capacity)

    def extend(self, frames: "TensorDict") -> None:
        """Write frames, TensorDict `[frames]`; the oldest make room.

        Raises:
            JobInvalid: They are laid out differently from the first ones.
        """
        count = frames.shape[0]
        with self._lock:
            stored = self._frames
            if stored is None:
                stored = self._frames = self._allocate(frames)
            if set(frames.keys(True, True)) != set(stored.keys(True, True)):
                differ = set(frames.keys(True, True)) ^ set(stored.keys(True, True))
                raise JobInvalid(f"these frames differ from those in the buffer by {sorted(map(str, differ))}")
            newest = frames[-self.capacity :]
            start = (self.write_count + count - len(newest)) % self.capacity
            until_the_end = min(len(newest), self.capacity - start)
            stored[start : start + until_the_end] = newest[:until_the_end]
            stored[: len(newest) - until_the_end] = newest[until_the_end:]
            self.write_count += count

    def sample(self, count: int, generator: torch.Generator | None = None) -> "TensorDict":
        """Frames drawn with replacement, each as likely as any other: TensorDict `[count]`, memory of its own.

        Raises:
            JobInvalid: The buffer is empty.
        """
        with self._lock:
            if self._frames is None:
                raise JobInvalid("nothing can be drawn from an empty replay buffer; collect first")
            device = None if generator is None else generator.device
            index = torch.randint(len(self), (count,), generator=generator, device=device)
            drawn: TensorDict = self._frames[index.to(self._frames.device or "cpu")]
            return drawn

    def state_dict(self) -> dict[str, Any]:
        """What is in it; the frames are not copied."""
        with self._lock:
            frames = None if self._frames is None else self._frames[: len(self)].to_dict()
            return {"write_count": self.write_count, "frames": frames}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Hold what another buffer of the same capacity held."""
        from tensordict import TensorDict

        with self._lock:
            self.write_count = state["write_count"]
            if state["frames"] is not None:
                frames = TensorDict(state["frames"], batch_size=[len(self)])
                self._frames = self._allocate(frames)
                self._frames[: len(self)] = frames

    def _allocate(self, frames: "TensorDict") -> "TensorDict":
        device = self._device or frames.device
        stored: TensorDict = frames[:1].apply(
            lambda value: torch.zeros(
                (self.capacity, *value.shape[1:]), dtype=value.dtype, device=device or value.device
            ),
            batch_size=[self.capacity],
            device=device,
        )
        return stored
