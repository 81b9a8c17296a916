"""Lanes of environments that reset in a step of their own (`AutoresetMode.NEXT_STEP`), and so advance unevenly.

The step after an episode's end ignores the action and returns the next episode's first observation. It is no
transition and is dropped, so that after T steps the lanes hold different numbers of frames. Steps go on until the
slowest has T; what the others have over stays for the next fragment, up to T frames a lane. A lane that is further
ahead is cut: its last frame is truncated, with its true next observation, and what follows is dropped until the next
fragment, which goes on under a new trajectory id. Frames that stayed keep the version that acted in them.

Where only whole trajectories are wanted, rows need not be even: all frames are handed over, and nothing is cut.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from rollfleet.data.batch import REWARD, STEP_COUNT, TERMINATED, TRAJECTORY, TRUNCATED, VERSION, Key
from rollfleet.data.storage import Layout, Storage
from rollfleet.policies.actor import Array
from rollfleet.rollout.context import Collected, StepContext


class NextStepStepper:
    """A staging area of one row a step, [rows, envs], in which it is marked who recorded a frame.

    A step writes whole rows. What belongs to whom is sorted out once a fragment, for all of it at a time: which
    frames, their ids, and what came after those that ended, which is what the row behind them begins with.
    """

    def __init__(self, context: StepContext, layout: Layout, steps: int) -> None:
        """All lanes at the first observation of an episode, which is in `actor.carried`.

        Args:
            context: Who takes part.
            layout: Of what is recorded.
            steps: T of the first fragment.
        """
        self._with, self._layout = context, layout
        envs = context.env.num_envs
        self._room = 2 * steps  # frames that a lane may hold
        self._rows = 0  # that are in use
        self._held = np.zeros(envs, dtype=np.int64)  # frames of each lane
        self._arrays: dict[Key, Array] = {}  # [rows, envs, ...]
        self._recorded: NDArray[np.bool_] = np.zeros((0, envs), dtype=np.bool_)  # who holds a frame in a row
        self._resetting = np.zeros(envs, dtype=np.bool_)
        self._ids = context.trajectories.take(envs)
        self._lay_out(Storage(layout, 2 * steps + 2, envs))

    def make_room(self, steps: int) -> None:
        """Fragments have T = `steps` from now on."""
        self._room = max(self._room, 2 * steps)  # what a lane holds already stays

    def restart(self) -> None:
        """All lanes are at the first observation of an episode again; what had stayed is dropped."""
        self._ids = self._with.trajectories.take(len(self._ids))
        self._rows = 0
        self._held[...] = 0
        self._resetting[...] = False

    def resume(self) -> None:
        """A fragment begins: no lane ever waits for it."""

    def collect(
        self,
        into: Storage,
        act: Callable[[], list[Array]],
        values: list[Array],
        *,
        version: int,
        stop: Callable[[], bool] | None = None,
    ) -> Collected:
        """Fill `into` [envs, T], or as much of it as every lane has when `stop` says so.

        Args:
            into: What to fill.
            act: Acts on `actor.carried`.
            values: What it did at the first step.
            version: Of the policy.
            stop: Asked between steps.
        """
        steps, start = into.arrays[TRAJECTORY].shape[1], self._rows
        ragged = bool(self._with.settings.trajs_per_batch)
        pending: list[Array] | None = values
        stopped, missing = False, steps - int(self._held.min())
        while missing > 0 and not stopped:
            for _ in range(missing):
                self._step(pending if pending is not None else act())
                pending = None
                if stop is not None and (ragged or self._held.min() > 0) and stop():
                    stopped = True
                    break
            missing = 0 if ragged else steps - int(self._held.min())
        for column, value in zip(self._carried, self._with.actor.carried, strict=True):
            column[self._rows] = value  # what came after the last step
        for key, rows in self._with.actor.rest():
            self._arrays[key][start : self._rows] = rows
        self._arrays[VERSION][start : self._rows] = version
        self._identify(start)
        if not ragged:
            self._cut()
        return self._hand_over(into, self._held.copy() if ragged else self._evenly(steps))

    def _lay_out(self, staging: Storage) -> None:
        """Go on in this area, with what is in use of the one before."""
        recorded: NDArray[np.bool_] = np.zeros(staging.tensors[TRAJECTORY].shape, dtype=np.bool_)
        recorded[: self._rows] = self._recorded[: self._rows]
        for key, array in self._arrays.items():
            staging.arrays[key][: self._rows] = array[: self._rows]
        self._recorded, self._arrays, actor = recorded, staging.arrays, self._with.actor
        self._carried = [self._arrays[key] for key in actor.carried_keys]
        self._outputs = [self._arrays[key] for key in actor.keys]
        self._told = [self._arrays[key] for key in (REWARD, TERMINATED, TRUNCATED)]

    def _step(self, values: list[Array]) -> None:
        env, actor, episodes, _, _ = self._with
        row, resetting = self._rows, self._resetting
        if row + 2 > len(self._recorded):
            self._lay_out(Storage(self._layout, 2 * len(self._recorded), len(self._ids)))
        for column, value in zip(self._carried, actor.carried, strict=True):
            column[row] = value
        for column, value in zip(self._outputs, values, strict=False):  # behind them is the next hidden state
            column[row] = value
        if STEP_COUNT in self._arrays:
            self._arrays[STEP_COUNT][row] = episodes.lengths
        following, reward, terminated, truncated, _ = env.step(actor.action_of(values))
        for column, value in zip(self._told, (reward, terminated, truncated), strict=True):
            column[row] = value
        if actor.plain:
            actor.carried[0][...] = following
        else:
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
        """Write the trajectory ids of the rows from `start` on."""
        at = slice(start, self._rows)
        done = (self._arrays[TERMINATED][at] | self._arrays[TRUNCATED][at]) & self._recorded[at]
        rows, lanes = done.nonzero()
        nth = np.zeros((len(done) + 1, len(self._ids)), dtype=np.int64)  # of the trajectories in these rows, by lane
        np.cumsum(done, axis=0, out=nth[1:])
        ids = np.zeros((int(nth[-1].max()) + 1, len(self._ids)), dtype=np.int64)
        ids[0] = self._ids
        ids[nth[rows + 1, lanes], lanes] = self._with.trajectories.take(len(rows))
        self._arrays[TRAJECTORY][at] = np.take_along_axis(ids, nth[:-1], axis=0)
        self._ids = np.take_along_axis(ids, nth[-1:], axis=0)[0]

    def _cut(self) -> None:
        """Have no lane hold more frames than there is room for."""
        ids, truncations = self._arrays[TRAJECTORY], self._arrays[TRUNCATED]
        for lane in np.flatnonzero(self._held > self._room):
            rows = np.flatnonzero(self._recorded[: self._rows, lane])
            last = int(rows[self._room - 1])
            self._recorded[rows[self._room :], lane] = False
            if not self._arrays[TERMINATED][last, lane]:
                truncations[last, lane] = True
            if self._ids[lane] == ids[last, lane]:
                self._ids[lane] = self._with.trajectories.take(1)[0]
            self._held[lane] = self._room

    def _evenly(self, steps: int) -> NDArray[np.int64]:
        return np.full(len(self._held), min(steps, int(self._held.min())))

    def _hand_over(self, into: Storage, frames: NDArray[np.int64]) -> Collected:
        """Copy the first `frames` of each lane out, and move what stays to the start."""
        envs, longest, settings = len(frames), int(frames.max()), self._with.settings
        lanes, rows = self._recorded[: self._rows].T.nonzero()  # lane after lane
        places = rows * envs + lanes  # rows and lanes as one dimension
        first = np.cumsum(self._held) - self._held
        nth = np.arange(longest)
        wanted = nth < frames[:, None]
        source = places[np.minimum(first[:, None] + nth, max(len(places) - 1, 0))]
        for key, array in self._arrays.items():
            into.arrays[key][:, :longest] = array.reshape(-1, *array.shape[2:]).take(source, axis=0)
        terminated, truncated = (into.arrays[key][:, :longest] for key in (TERMINATED, TRUNCATED))
        ends = (terminated | truncated) & wanted
        if not settings.trajs_per_batch:
            if settings.set_truncated:
                self._rename(np.flatnonzero(~ends[:, -1]), source[:, -1] // envs)
                truncated[:, -1] |= ~ends[:, -1]
            ends[:, -1] = True
        behind = source[ends] + envs  # the same lane, a row later
        finals = [column.reshape(-1, *column.shape[2:])[behind] for column in self._carried]
        self._drop(frames, np.append(rows, self._rows)[np.minimum(first + frames, len(rows))])
        return Collected(frames=frames, finals=finals)

    def _rename(self, lanes: NDArray[np.intp], last: NDArray[np.int64]) -> None:
        """What goes on in `lanes` behind row `last` [envs] is another trajectory."""
        ids = self._arrays[TRAJECTORY]
        for lane, new in zip(lanes, self._with.trajectories.take(len(lanes)), strict=True):
            old = ids[last[lane], lane]
            ahead = ids[last[lane] + 1 : self._rows, lane]
            ahead[ahead == old] = new
            if self._ids[lane] == old:
                self._ids[lane] = new

    def _drop(self, frames: NDArray[np.int64], following: NDArray[np.int64]) -> None:
        """Of each lane `frames` were handed over; the row of what comes next is `following`, if it holds any."""
        self._held -= frames
        following = np.where(self._held > 0, following, self._rows)
        start, end = int(following.min()), self._rows
        self._recorded[start:end] &= np.arange(start, end)[:, None] >= following
        self._rows = end - start
        for array in (*self._arrays.values(), self._recorded):
            array[: self._rows] = array[start:end]
