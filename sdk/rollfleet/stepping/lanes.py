"""Lanes of environments that reset in a step of their own (`AutoresetMode.NEXT_STEP`), and so advance unevenly.

The step after an episode's end ignores the action and returns the next episode's first observation. It is no
transition and is dropped, so that after T steps the lanes hold different numbers of frames. Steps go on until the
slowest has T; what the others have over stays for the next fragment, up to T frames a lane. A lane that would be
further ahead is cut: its last frame is truncated, with its true next observation, and what follows is dropped until
the next fragment, which goes on under a new trajectory id. Frames that stayed keep the version that acted in them.

Where only whole trajectories are wanted, rows need not be even: all frames are handed over, and nothing is cut.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from rollfleet.acting.actor import Array
from rollfleet.batch import REWARD, STEP_COUNT, TERMINATED, TRAJECTORY, TRUNCATED, VERSION
from rollfleet.stepping.episodes import FinalObservations
from rollfleet.stepping.participants import Harvest, Participants
from rollfleet.stepping.storage import Storage


class UnevenLanes:
    """A staging area of [envs, 2 T + 1] frames with a cursor for each lane.

    Each step writes all lanes at their cursors, and only those that recorded a frame move on: what was dropped is
    overwritten. The last column is never read; there full lanes write.
    """

    def __init__(self, participants: Participants, staging: Storage) -> None:
        """All lanes at the first observation of an episode, which is in `actor.carried`."""
        self._with = participants
        self._lay_out(staging)
        envs = participants.env.num_envs
        self._cursor = np.zeros(envs, dtype=np.int64)
        self._resetting = np.zeros(envs, dtype=np.bool_)
        self._ids = participants.trajectories.take(envs)
        self._finals = FinalObservations()
        self._places: list[NDArray[np.int64]] = []  # where the steps of a fragment were written

    def make_room(self, staging: Storage) -> None:
        """Fragments have another number of steps from now on: go on in this area, if it is larger."""
        old = self._staging
        stayed = int(self._cursor.max())
        if staging.arrays[TRAJECTORY].shape[1] <= self._room + 1:
            return  # a lane may hold more than there would be room for
        for key, array in old.arrays.items():
            staging.arrays[key][:, :stayed] = array[:, :stayed]
        self._lay_out(staging)

    def restart(self) -> None:
        """All lanes are at the first observation of an episode again; what had stayed is dropped."""
        self._ids[...] = self._with.trajectories.take(len(self._ids))
        self._cursor[...] = 0
        self._resetting[...] = False
        self._finals = FinalObservations()

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
    ) -> Harvest:
        """Fill `into` [envs, T], or as much of it as every lane has when `stop` says so.

        Args:
            into: What to fill.
            act: Acts on `actor.carried`.
            values: What it did at the first step.
            version: Of the policy.
            stop: Asked between steps.
        """
        steps = into.arrays[TRAJECTORY].shape[1]
        ragged = bool(self._with.settings.trajs_per_batch)
        pending: list[Array] | None = values
        stopped, missing = False, steps - int(self._cursor.min())
        while missing > 0 and not stopped:
            for _ in range(missing):
                self._step(pending if pending is not None else act(), version)
                pending = None
                if stop is not None and (ragged or self._cursor.min() > 0) and stop():
                    stopped = True
                    break
            missing = 0 if ragged else steps - int(self._cursor.min())
        for key, rows in self._with.actor.rest():
            self._flat[key][np.stack(self._places)] = rows  # where one was dropped, what was written last stays
        self._places.clear()
        if ragged:
            frames = self._cursor.copy()
        else:
            frames = np.full(len(self._cursor), min(steps, int(self._cursor.min())))
            self._close_rows(int(frames[0]))
        longest = int(frames.max())
        finals = self._finals.take(longest)
        self._hand_over(into, longest)
        self._cursor -= frames
        return Harvest(frames=frames, finals=finals)

    def _lay_out(self, staging: Storage) -> None:
        envs, columns = staging.arrays[TRAJECTORY].shape
        self._staging, self._room = staging, columns - 1
        self._row = np.arange(envs, dtype=np.int64) * columns
        # All lanes and frames as one dimension: an index of one number a lane is the fastest that numpy has.
        self._flat = {key: array.reshape(envs * columns, *array.shape[2:]) for key, array in staging.arrays.items()}

    def _step(self, values: list[Array], version: int) -> None:
        env, actor, episodes, trajectories, _ = self._with
        flat, resetting = self._flat, self._resetting
        recorded = ~resetting
        full = self._cursor == self._room
        if np.count_nonzero(full):
            self._cut(np.flatnonzero(full & recorded))
        at = self._row + self._cursor
        self._places.append(at)
        for key, array in zip(actor.carried_keys, actor.carried, strict=True):
            flat[key][at] = array
        for key, value in zip(actor.keys, values, strict=False):  # behind them is the next hidden state
            flat[key][at] = value
        flat[TRAJECTORY][at] = self._ids
        flat[VERSION][at] = version
        if STEP_COUNT in flat:
            flat[STEP_COUNT][at] = episodes.lengths
        following, reward, terminated, truncated, _ = env.step(actor.action_of(values))
        flat[REWARD][at] = reward
        flat[TERMINATED][at] = terminated
        flat[TRUNCATED][at] = truncated
        episodes.returns += np.where(recorded, reward, 0.0)
        episodes.lengths += recorded
        done = np.logical_or(terminated, truncated) & recorded
        if actor.plain:
            actor.carried[0][...] = following
        else:
            actor.advance(following, values)
        if np.count_nonzero(resetting):
            actor.restart(np.flatnonzero(resetting))
        if np.count_nonzero(done):
            ended = np.flatnonzero(done)
            kept = ended[~full[ended]]
            self._finals.add(kept, self._cursor[kept], [array[kept] for array in actor.carried])
            episodes.end(ended)
            self._ids[ended] = trajectories.take(len(ended))
        self._cursor += recorded & ~full
        self._resetting = done

    def _cut(self, lanes: NDArray[np.intp]) -> None:
        """End the last frame of full lanes, unless it ends already. `actor.carried` is what comes after it."""
        last = self._room - 1
        arrays, actor = self._staging.arrays, self._with.actor
        lanes = lanes[~(arrays[TERMINATED][lanes, last] | arrays[TRUNCATED][lanes, last])]
        arrays[TRUNCATED][lanes, last] = True
        self._finals.add(lanes, last, [array[lanes] for array in actor.carried])
        self._ids[lanes] = self._with.trajectories.take(len(lanes))

    def _close_rows(self, frames: int) -> None:
        """Note what comes after the last of `frames` where no episode ends: the next frame, or what is seen now."""
        arrays, actor, last = self._staging.arrays, self._with.actor, frames - 1
        open_ = np.flatnonzero(~(arrays[TERMINATED][:, last] | arrays[TRUNCATED][:, last]))
        ahead = open_[self._cursor[open_] > frames]
        here = open_[self._cursor[open_] == frames]
        if len(ahead):
            self._finals.add(ahead, last, [arrays[key][ahead, frames] for key in actor.carried_keys])
        self._finals.add(here, last, [array[here] for array in actor.carried])
        if self._with.settings.set_truncated:
            arrays[TRUNCATED][open_, last] = True
            self._rename(open_, frames)

    def _rename(self, lanes: NDArray[np.intp], frames: int) -> None:
        """What goes on behind the first `frames` of `lanes` is another trajectory from there."""
        ids = self._staging.arrays[TRAJECTORY]
        for lane, new in zip(lanes, self._with.trajectories.take(len(lanes)), strict=True):
            old = ids[lane, frames - 1]
            ahead = ids[lane, frames : self._cursor[lane]]
            ahead[ahead == old] = new
            if self._ids[lane] == old:
                self._ids[lane] = new

    def _hand_over(self, into: Storage, frames: int) -> None:
        """Copy the first `frames` of each lane out, and move the rest to the start."""
        over = int(self._cursor.max()) - frames
        for key, array in self._staging.arrays.items():
            into.arrays[key][:, :frames] = array[:, :frames]
            array[:, :over] = array[:, frames : frames + over]
