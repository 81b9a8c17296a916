"""The memory that a rollout fills, and the frames that it keeps back for the next fragment."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rollfleet.data.batch import FIXED, MASK, OPTIONAL, REWARD, STEP_COUNT, TERMINATED, TRUNCATED, Key, Layout
from rollfleet.data.tensor_memory import Array, as_array

_SCALARS = (REWARD, TERMINATED, TRUNCATED, STEP_COUNT)


class Storage:
    """Preallocated memory for all values of a fragment, [envs, frames].

    Readers get torch tensors, and the loop that writes gets numpy views of them.

    Attributes:
        tensors: By key, contiguous, [envs, frames, ...].
        arrays: Views of the same memory. Flags, reward and step_count lack their last dimension of 1; bfloat16 is
            int16.
    """

    def __init__(self, layout: Layout, envs: int, frames: int) -> None:
        """Allocate the values that every fragment has, and those in `layout`."""
        # Policies run in inference mode; memory that is allocated there could not be trained on.
        with torch.inference_mode(False):
            self.tensors: dict[Key, Tensor] = {
                key: torch.zeros((envs, frames, *shape), dtype=dtype, device="cpu")
                for key, (dtype, shape) in {**layout, **FIXED}.items()
            }
        self.arrays: dict[Key, Array] = {
            key: as_array(tensor)[..., 0] if key in _SCALARS else as_array(tensor)
            for key, tensor in self.tensors.items()
        }


class Staging:
    """Steps in which some environments only reset, so that after T steps environments hold different numbers of frames.

    Surplus frames stay for the next fragment, up to T for each environment, with the version that acted in them. An
    environment that is further ahead is cut: its last frame is truncated, with its true next observation, and later
    frames are dropped until the next fragment, which continues under a new trajectory id.

    Attributes:
        columns: Values by key, [rows, envs, ...], a row for each step. Where `MASK` is false, there is no frame.
        rows: Rows in use.
        held: int64 [envs], the number of frames of each environment in them.
    """

    def __init__(self, layout: Layout, num_envs: int, steps: int) -> None:
        """Allocate memory. `steps`: the first T."""
        self._layout = {**layout, MASK: OPTIONAL[MASK]}
        self._capacity = 2 * steps  # frames of an environment
        self.rows, self.held = 0, np.zeros(num_envs, dtype=np.int64)
        self.columns = Storage(self._layout, 2 * steps + 2, num_envs).arrays

    def clear(self) -> None:
        """Drop all frames."""
        self.rows = 0
        self.held[...] = 0

    def room(self, steps: int) -> range:
        """Return the next rows, for this many steps. There is one more behind them."""
        if (needed := self.rows + steps + 1) > len(self.columns[MASK]):
            grown = Storage(self._layout, 2 * needed, len(self.held)).arrays
            for key, array in self.columns.items():
                grown[key][: self.rows] = array[: self.rows]
            self.columns = grown
        return range(self.rows, self.rows + steps)

    def add(self, end: int) -> None:
        """Take the rows before `end` into use."""
        self.held += self.columns[MASK][self.rows : end].sum(0)
        self.rows = end

    def cut(self, steps: int) -> None:
        """Cut environments that hold more frames than T now, `steps`, and for the next fragment."""
        self._capacity = max(self._capacity, 2 * steps)  # if T has become less, frames that are held stay
        mask, ended = self.columns[MASK], self.columns[TERMINATED]
        for env in np.flatnonzero(self.held > self._capacity):
            rows = np.flatnonzero(mask[: self.rows, env])
            last = rows[self._capacity - 1]
            mask[rows[self._capacity :], env] = False
            self.columns[TRUNCATED][last, env] |= not ended[last, env]
            self.held[env] = self._capacity

    def take(self, into: Storage, frames: NDArray[np.int64], carried: Sequence[Key], *, closed: bool) -> list[Array]:
        """Move the first `frames` of each environment into a storage, and the other rows to the start.

        The row behind those in use has the observations after the last step.

        Args:
            into: [envs, frames of the longest, or more].
            frames: int64 [envs].
            carried: The keys of observations and hidden states.
            closed: Whether rows end with their last frame.

        Returns:
            One array [n, ...] for each of `carried`: the values after frames that end an episode or, if they are
            closed, a row. Sorted by environment, then frame.
        """
        num_envs, longest = len(frames), int(frames.max())
        envs, rows = self.columns[MASK][: self.rows].T.nonzero()  # sorted by environment
        positions = rows * num_envs + envs  # rows and environments as one dimension
        first = np.cumsum(self.held) - self.held
        nth = np.arange(longest)
        wanted = nth < frames[:, None]
        source = positions[np.minimum(first[:, None] + nth, max(len(positions) - 1, 0))]
        for key, array in into.arrays.items():
            array[:, :longest] = _in_a_row(self.columns[key]).take(source, axis=0)
        ends = (into.arrays[TERMINATED] | into.arrays[TRUNCATED])[:, :longest] & wanted
        if closed:
            ends[:, -1] = True
        behind = source[ends] + num_envs  # the same environment, one row later
        finals = [_in_a_row(self.columns[key])[behind] for key in carried]
        self._drop(frames, np.append(rows, self.rows)[np.minimum(first + frames, len(rows))])
        return finals

    def _drop(self, frames: NDArray[np.int64], following: NDArray[np.int64]) -> None:
        """Drop the first `frames` of each environment.

        Args:
            frames: int64 [envs], the number of frames that were handed over.
            following: int64 [envs], the row of the next frame; ignored for an environment that holds none.
        """
        self.held -= frames
        following = np.where(self.held > 0, following, self.rows)
        start, end = int(following.min()), self.rows
        self.columns[MASK][start:end] &= np.arange(start, end)[:, None] >= following
        self.rows = end - start
        for array in self.columns.values():
            array[: self.rows] = array[start:end]


def _in_a_row(array: Array) -> Array:
    """Return `[rows, envs, ...]` as `[rows * envs, ...]`; an observation may have no elements."""
    return array.reshape(array.shape[0] * array.shape[1], *array.shape[2:])
