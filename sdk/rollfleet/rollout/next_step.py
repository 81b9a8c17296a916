"""Environments that reset in a step of their own (`AutoresetMode.NEXT_STEP`), and so advance at different speeds.

The step after an episode's end ignores the action and returns the next episode's first observation. It is no
transition and is dropped, so that after T steps environments hold different numbers of frames. Steps go on until the
slowest has T. Surplus frames of the others stay for the next fragment, up to T frames each, with the version that acted
in them.

An environment that is further ahead is cut. Its last frame is truncated, with its true next observation. Later frames
are dropped until the next fragment, which continues under a new trajectory id.

With `trajs_per_batch` rows may differ in length: all frames are handed over, and nothing is cut.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from rollfleet.data.batch import REWARD, STEP_COUNT, TERMINATED, TRAJECTORY, TRUNCATED, VERSION, Key, Layout
from rollfleet.data.tensor_memory import Array
from rollfleet.rollout.stepper import Collected, StepContext, Storage, check_outcome


class NextStepStepper:
    """A `Stepper` that writes whole rows [envs] into a staging area [rows, envs] and marks which are frames.

    Frames are sorted out once a fragment, for all rows at a time: which ones count, their ids, and the observations
    after those that ended. The latter are the first values of the row behind them.
    """

    def __init__(self, context: StepContext, layout: Layout, steps: int) -> None:
        """Expect all environments at the first observation of an episode, in `actor.carried`. `steps`: the first T."""
        self._context, self._layout = context, layout
        num_envs = context.env.num_envs
        self._capacity = 2 * steps  # frames that may be held for each environment
        self._rows = 0  # rows in use
        self._held = np.zeros(num_envs, dtype=np.int64)  # frames held for each environment
        self._arrays: dict[Key, Array] = {}  # [rows, envs, ...]
        self._recorded: NDArray[np.bool_] = np.zeros((0, num_envs), dtype=np.bool_)  # which rows are frames
        self._resetting = np.zeros(num_envs, dtype=np.bool_)
        self._ids = context.trajectories.take(num_envs)
        self._move_to(Storage(layout, 2 * steps + 2, num_envs))

    def restart(self) -> None:
        """See `Stepper`."""
        self._ids = self._context.trajectories.take(len(self._ids))
        self._rows = 0
        self._held[...] = 0
        self._resetting[...] = False

    def resume(self) -> None:
        """See `Stepper`. These environments reset by themselves: none waits."""

    def collect(
        self, into: Storage, act: Callable[[], list[Array]], *, version: int, stop: Callable[[], bool]
    ) -> Collected:
        """See `Stepper`."""
        steps, start = into.arrays[TRAJECTORY].shape[1], self._rows
        self._capacity = max(self._capacity, 2 * steps)  # if T has become less, frames that are held stay
        ragged = bool(self._context.spec.trajs_per_batch)
        least = int(self._held.min())  # frames of the slowest; with `trajs_per_batch` the steps
        while least < steps:
            self._step(act)
            least = least + 1 if ragged else int(self._held.min())
            if least and stop():
                break
        for column, value in zip(self._carried, self._context.actor.carried, strict=True):
            column[self._rows] = value  # the observation after the last step
        for key, rows in self._context.actor.rest():
            self._arrays[key][start : self._rows] = rows
        self._arrays[VERSION][start : self._rows] = version
        self._identify(start)
        if not ragged:
            self._cut()
        frames = self._held.copy() if ragged else np.full_like(self._held, min(steps, int(self._held.min())))
        return self._hand_over(into, frames)

    def _move_to(self, staging: Storage) -> None:
        """Continue in this staging area, with a copy of the rows in use."""
        recorded: NDArray[np.bool_] = np.zeros(staging.tensors[TRAJECTORY].shape, dtype=np.bool_)
        recorded[: self._rows] = self._recorded[: self._rows]
        for key, array in self._arrays.items():
            staging.arrays[key][: self._rows] = array[: self._rows]
        self._recorded, self._arrays, actor = recorded, staging.arrays, self._context.actor
        self._carried = [self._arrays[key] for key in actor.carried_keys]
        self._outputs = [self._arrays[key] for key in actor.keys]
        infos = self._context.infos
        self._reported = [self._arrays[key] for key in infos.shapes] if infos is not None else []
        self._outcomes = [self._arrays[key] for key in (REWARD, TERMINATED, TRUNCATED)]

    def _step(self, act: Callable[[], list[Array]]) -> None:
        env, actor, episodes, _, _, infos = self._context
        row, resetting = self._rows, self._resetting
        if row + 2 > len(self._recorded):
            self._move_to(Storage(self._layout, 2 * len(self._recorded), len(self._ids)))
        for column, value in zip(self._carried, actor.carried, strict=True):
            column[row] = value
        values = act()
        for column, value in zip(self._outputs, values, strict=False):  # the next hidden state follows the outputs
            column[row] = value
        if STEP_COUNT in self._arrays:
            self._arrays[STEP_COUNT][row] = episodes.lengths
        following, reward, terminated, truncated, info = env.step(actor.action_of(values))
        outcome = (reward, terminated, truncated)
        if not row:
            check_outcome(env, outcome)
        for column, value in zip(self._outcomes, outcome, strict=True):
            column[row] = value
        if infos is not None:
            infos.write(info, [column[row] for column in self._reported])
        actor.advance(following, values)
        done = np.logical_or(terminated, truncated)
        recorded: NDArray[np.bool_] | bool = True
        if np.count_nonzero(resetting):
            actor.restart(resetting.nonzero()[0])
            recorded = ~resetting
            done &= recorded
            reward = np.where(recorded, reward, 0.0)
        self._recorded[row] = recorded
        self._held += recorded
        episodes.returns += reward
        episodes.lengths += recorded
        if np.count_nonzero(done):
            episodes.end(done.nonzero()[0])
        self._resetting, self._rows = done, row + 1

    def _identify(self, start: int) -> None:
        """Write trajectory ids into the rows from `start` on."""
        at = slice(start, self._rows)
        done = (self._arrays[TERMINATED][at] | self._arrays[TRUNCATED][at]) & self._recorded[at]
        rows, envs = done.nonzero()
        nth = np.zeros((len(done) + 1, len(self._ids)), dtype=np.int64)  # trajectories before each row, by environment
        np.cumsum(done, axis=0, out=nth[1:])
        ids = np.zeros((int(nth[-1].max()) + 1, len(self._ids)), dtype=np.int64)
        ids[0] = self._ids
        ids[nth[rows + 1, envs], envs] = self._context.trajectories.take(len(rows))
        self._arrays[TRAJECTORY][at] = np.take_along_axis(ids, nth[:-1], axis=0)
        self._ids = np.take_along_axis(ids, nth[-1:], axis=0)[0]

    def _cut(self) -> None:
        """Cut environments that hold more frames than their capacity."""
        ids, truncations = self._arrays[TRAJECTORY], self._arrays[TRUNCATED]
        for env in np.flatnonzero(self._held > self._capacity):
            rows = np.flatnonzero(self._recorded[: self._rows, env])
            last = int(rows[self._capacity - 1])
            self._recorded[rows[self._capacity :], env] = False
            if not self._arrays[TERMINATED][last, env]:
                truncations[last, env] = True
            if self._ids[env] == ids[last, env]:
                self._ids[env] = self._context.trajectories.take(1)[0]
            self._held[env] = self._capacity

    def _hand_over(self, into: Storage, frames: NDArray[np.int64]) -> Collected:
        """Copy the first `frames` of each environment out, and move the remaining rows to the start."""
        num_envs, longest, spec = len(frames), int(frames.max()), self._context.spec
        envs, rows = self._recorded[: self._rows].T.nonzero()  # sorted by environment
        positions = rows * num_envs + envs  # rows and environments as one dimension
        first = np.cumsum(self._held) - self._held
        nth = np.arange(longest)
        wanted = nth < frames[:, None]
        source = positions[np.minimum(first[:, None] + nth, max(len(positions) - 1, 0))]
        for key, array in self._arrays.items():
            into.arrays[key][:, :longest] = _in_a_row(array).take(source, axis=0)
        terminated, truncated = (into.arrays[key][:, :longest] for key in (TERMINATED, TRUNCATED))
        ends = (terminated | truncated) & wanted
        if not spec.trajs_per_batch:
            if spec.set_truncated:
                self._rename(np.flatnonzero(~ends[:, -1]), source[:, -1] // num_envs)
                truncated[:, -1] |= ~ends[:, -1]
            ends[:, -1] = True
        behind = source[ends] + num_envs  # the same environment, one row later
        finals = [_in_a_row(column)[behind] for column in self._carried]
        self._drop(frames, np.append(rows, self._rows)[np.minimum(first + frames, len(rows))])
        return Collected(frames=frames, finals=finals)

    def _rename(self, envs: NDArray[np.intp], last: NDArray[np.int64]) -> None:
        """Give frames of `envs` behind row `last` [envs] a new trajectory id."""
        ids = self._arrays[TRAJECTORY]
        for env, new in zip(envs, self._context.trajectories.take(len(envs)), strict=True):
            old = ids[last[env], env]
            ahead = ids[last[env] + 1 : self._rows, env]
            ahead[ahead == old] = new
            if self._ids[env] == old:
                self._ids[env] = new

    def _drop(self, frames: NDArray[np.int64], following: NDArray[np.int64]) -> None:
        """Drop the first `frames` of each environment.

        Args:
            frames: int64 [envs], the number of frames that were handed over.
            following: int64 [envs], the row of the next frame; ignored for an environment that holds none.
        """
        self._held -= frames
        following = np.where(self._held > 0, following, self._rows)
        start, end = int(following.min()), self._rows
        self._recorded[start:end] &= np.arange(start, end)[:, None] >= following
        self._rows = end - start
        for array in (*self._arrays.values(), self._recorded):
            array[: self._rows] = array[start:end]


def _in_a_row(array: Array) -> Array:
    """Return `[rows, envs, ...]` as `[rows * envs, ...]`; an observation may have no elements."""
    return array.reshape(array.shape[0] * array.shape[1], *array.shape[2:])
