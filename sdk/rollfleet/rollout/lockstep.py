"""Environments that advance by one frame a step: all whose reset takes no step of its own."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from rollfleet.data.batch import MASK, NO_TRAJECTORY, REWARD, STEP_COUNT, TERMINATED, TRAJECTORY, TRUNCATED, VERSION
from rollfleet.data.tensor_memory import Array
from rollfleet.errors import EnvironmentInvalid
from rollfleet.rollout.episodes import FinalObservations
from rollfleet.rollout.stepper import Collected, StepContext, Storage, check_outcome


class LockstepStepper:
    """A `Stepper` that writes one whole column [envs] a step."""

    def __init__(self, context: StepContext, mode: AutoresetMode) -> None:
        """Expect all environments at the first observation of an episode, in `actor.carried`."""
        self._context, self._mode = context, mode
        self._ids: NDArray[np.int64] = context.trajectories.take(context.env.num_envs)
        self._waiting: NDArray[np.bool_] = np.zeros(context.env.num_envs, dtype=np.bool_)

    def restart(self) -> None:
        """See `Stepper`."""
        self._ids[...] = self._context.trajectories.take(len(self._ids))
        self._waiting[...] = False

    def resume(self) -> None:
        """See `Stepper`."""
        if not self._waiting.any():
            return
        env, actor, episodes, *_ = self._context
        following, _ = env.reset(options={"reset_mask": self._waiting.copy()})
        waited = np.flatnonzero(self._waiting)
        actor.restart(waited, following)
        episodes.discard(waited)
        self._waiting[...] = False

    def collect(
        self, into: Storage, act: Callable[[], list[Array]], *, version: int, stop: Callable[[], bool]
    ) -> Collected:
        """See `Stepper`."""
        (env, actor, episodes, _, spec, infos), arrays = self._context, into.arrays
        limit, finals = spec.max_frames_per_traj, FinalObservations()
        returns, lengths = episodes.returns, episodes.lengths
        columns = {key: array.swapaxes(0, 1) for key, array in arrays.items()}  # [T, envs, ...]
        carried, (first, *more) = actor.carried, [columns[key] for key in actor.carried_keys]
        others = [(column, index) for index, column in enumerate(more, 1)]
        # Other values that are known before a step, in arrays that stay the same: each is copied into its column.
        known = ((TRAJECTORY, self._ids), (STEP_COUNT, lengths))
        before = [(columns[key], value) for key, value in known if key in columns]
        outputs = [columns[key] for key in actor.keys]
        rewards, terminations, truncations = columns[REWARD], columns[TERMINATED], columns[TRUNCATED]
        reported = [columns[key] for key in infos.shapes] if infos is not None else []
        step, action_of, advance = env.step, actor.action_of, actor.advance
        for t in _until(stop, len(rewards)):
            first[t] = carried[0]
            for column, index in others:
                column[t] = carried[index]
            for column, value in before:
                column[t] = value
            values = act()
            for column, value in zip(outputs, values, strict=False):  # the next hidden state follows the outputs
                column[t] = value
            following, reward, terminated, truncated, info = step(action_of(values))
            if not t:
                check_outcome(env, (reward, terminated, truncated))
            returns += reward
            lengths += 1
            if limit:
                truncated = np.logical_or(truncated, lengths >= limit)
            rewards[t] = reward
            terminations[t] = terminated
            truncations[t] = truncated
            if infos is not None:
                infos.write(info, [column[t] for column in reported])
            advance(following, values)
            done = np.logical_or(terminated, truncated)
            if np.count_nonzero(done):
                self._end(done, info, finals, [column[t] for column in reported])
                if not spec.reset_when_done and self._waiting.all():
                    break
        return self._complete(arrays, t, finals, version)

    def _complete(self, arrays: dict[Any, Array], t: int, finals: FinalObservations, version: int) -> Collected:
        """Fill in what is the same for all steps, once frame `t` is the last."""
        for key, rows in self._context.actor.rest():
            arrays[key].swapaxes(0, 1)[: t + 1] = rows
        frames = t + 1 if not self._waiting.all() else arrays[REWARD].shape[1]
        if VERSION in arrays:
            arrays[VERSION][...] = version
        if MASK in arrays:
            self._pad(arrays)
        if not self._context.spec.trajs_per_batch:
            self._close_rows(arrays, frames - 1, finals)
        return Collected(frames=np.full(len(self._ids), frames), finals=finals.sorted())

    def _end(
        self, done: NDArray[np.bool_], info: dict[str, Any], finals: FinalObservations, reported: list[Array]
    ) -> None:
        """Record the last observations, and infos, of episodes that ended with a frame. Start the next episodes."""
        env, actor, episodes, trajectories, spec, infos = self._context
        if infos is not None and self._mode is AutoresetMode.SAME_STEP:
            infos.write(info.get("final_info", {}), reported, done)
        counted = ended = done.nonzero()[0]
        if not spec.reset_when_done:
            counted = ended[~self._waiting[ended]]
        if self._mode is AutoresetMode.DISABLED:
            finals.add(counted, [array[counted] for array in actor.carried])
            following, _ = env.reset(options={"reset_mask": done})
            actor.restart(ended, following)
        else:
            finals.add(counted, self._final_rows(info, counted))
            actor.restart(counted)
        episodes.end(counted)
        self._ids[counted] = trajectories.take(len(counted))
        if not spec.reset_when_done:
            self._waiting[counted] = True

    def _close_rows(self, arrays: dict[Any, Array], last: int, finals: FinalObservations) -> None:
        """Record the observations after rows whose episode goes on; with `set_truncated`, end their trajectories."""
        _, actor, _, trajectories, spec, _ = self._context
        open_ = np.flatnonzero(~(arrays[TERMINATED][:, last] | arrays[TRUNCATED][:, last] | self._waiting))
        finals.add(open_, [array[open_] for array in actor.carried])
        if spec.set_truncated:
            arrays[TRUNCATED][open_, last] = True
            self._ids[open_] = trajectories.take(len(open_))

    def _pad(self, arrays: dict[Any, Array]) -> None:
        """Turn the frames of waiting environments into padding: a vector can only step all of them."""
        arrays[MASK][...] = True
        for env in np.flatnonzero(self._waiting):
            end = int(np.argmax(arrays[TERMINATED][env] | arrays[TRUNCATED][env])) + 1
            for key, array in arrays.items():
                array[env, end:] = NO_TRAJECTORY if key == TRAJECTORY else 0

    def _final_rows(self, info: dict[str, Any], ended: NDArray[np.intp]) -> list[Array]:
        """Return the last observations of environments that have reset by themselves, and their hidden states."""
        actor, final = self._context.actor, info.get("final_obs")
        if final is None:
            raise EnvironmentInvalid(
                f"environment {self._context.env} declares SameStep, but its infos have no 'final_obs' when an episode "
                "ends; add it, or declare NextStep or Disabled in metadata['autoreset_mode']"
            )
        rows = [actor.observations.split(final[env]) for env in ended]
        leaves = [np.stack(leaf) for leaf in zip(*rows, strict=True)]
        hidden = [array[ended] for array in actor.carried[len(leaves) :]]
        return [
            leaf.astype(array.dtype, copy=False) for leaf, array in zip([*leaves, *hidden], actor.carried, strict=True)
        ]


def _until(stop: Callable[[], bool], total: int) -> Iterator[int]:
    yield 0
    for t in range(1, total):
        if stop():
            return
        yield t
