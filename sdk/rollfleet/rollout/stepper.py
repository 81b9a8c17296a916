"""The loop that steps a vector of environments with a policy, and writes their frames."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from rollfleet.data.batch import (
    FAILED,
    MASK,
    NO_TRAJECTORY,
    REWARD,
    STEP_COUNT,
    TERMINATED,
    TRAJECTORY,
    TRUNCATED,
    VERSION,
    Key,
    Layout,
)
from rollfleet.data.tensor_memory import Array
from rollfleet.envs.factory import VectorEnv
from rollfleet.envs.failures import FAILURES
from rollfleet.errors import EnvironmentInvalid
from rollfleet.policies.actor import Actor
from rollfleet.rollout.episodes import NOTHING, EpisodeCounts, FinalObservations
from rollfleet.rollout.failed_episodes import FailedEpisodes, Lost
from rollfleet.rollout.infos import Infos
from rollfleet.rollout.last_infos import LastInfos
from rollfleet.rollout.storage import Staging, Storage
from rollfleet.rollout.trajectory_ids import TrajectoryIds
from rollfleet_api.collection import CollectSpec


class StepContext(NamedTuple):
    """The parts of a rollout that its stepper works with."""

    env: VectorEnv
    actor: Actor
    episodes: EpisodeCounts
    trajectories: TrajectoryIds
    spec: CollectSpec
    infos: Infos | None
    failed: FailedEpisodes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """The frames that a stepper wrote into a storage.

    Attributes:
        frames: int64 [envs], the number of frames of each environment.
        finals: One array [n, ...] per carried leaf: the observations after frames that ended an episode. Without
            `trajs_per_batch` also those after the last frame of each row. Sorted by environment, then frame.
    """

    frames: NDArray[np.int64]
    finals: list[Array]


class Stepper:
    """Steps environments and writes one row [envs] a step. A rollout has one and owns it.

    A vector can only step all of its environments. So an environment has no frame in a step in which it only resets
    (`AutoresetMode.NEXT_STEP`), or waits for the next fragment (`reset_when_done`). A mask marks the frames.
    Environments that reset in a step of their own go on until the slowest has T frames: see `Staging`. With
    `trajs_per_batch` rows may differ in length: all frames are handed over, and nothing is cut.

    The order of calls is `resume` or `restart`, then `collect`. T may differ from one `collect` to the next.

    Attributes:
        environments_s: The time that the environments have taken so far, for steps and for resets after them.
    """

    def __init__(self, context: StepContext, mode: AutoresetMode, layout: Layout, steps: int) -> None:
        """Expect all environments at the first observation of an episode, in `actor.carried`. `steps`: the first T."""
        self._context, self._mode, self.environments_s = context, mode, 0.0
        num_envs = context.env.num_envs
        self._ids: NDArray[np.int64] = context.trajectories.take(num_envs)
        self._idle: NDArray[np.bool_] = np.zeros(num_envs, np.bool_)  # which have no frame in the next step
        self._finals = FinalObservations()
        self._last_infos = LastInfos(f"environment {context.env}", context.spec, num_envs)
        self._staging = Staging(layout, num_envs, steps) if mode is AutoresetMode.NEXT_STEP else None

    def restart(self) -> None:
        """Start over: all environments were reset, and frames that were kept back are dropped."""
        self._ids[...] = self._context.trajectories.take(len(self._ids))
        self._idle[...] = False
        if self._staging is not None:
            self._staging.clear()

    def renumber_waiting(self) -> None:
        """Give new trajectory ids to environments whose reset is still to come: settings have changed before it."""
        self._ids[self._idle] = self._context.trajectories.take(int(np.count_nonzero(self._idle)))

    def resume(self) -> None:
        """Start the next fragment: reset environments that waited for it."""
        if not self._idle.any():
            return
        env, actor, episodes, *_ = self._context
        following, _ = env.reset(options={"reset_mask": self._idle.copy()})
        waited = np.flatnonzero(self._idle)
        actor.restart(waited, following)
        episodes.discard(waited)
        self._idle[...] = False

    def collect(
        self, into: Storage, act: Callable[[], list[Array]], *, version: int, stop: Callable[[], bool]
    ) -> Collected:
        """Fill a storage [envs, T]; when `stop` is true, fill as much as every environment has.

        `act` calls the policy on `actor.carried`, into which the policy may write: record it before. `stop` is checked
        between steps, after at least one frame of each environment.
        """
        if self._staging is not None:
            return self._collect_staged(self._staging, into, act, version, stop)
        self._finals = FinalObservations()
        columns = {key: array.swapaxes(0, 1) for key, array in into.arrays.items()}  # [T, envs, ...]
        end = self._step(columns, range(len(columns[REWARD])), act, stop)
        self._complete(columns, range(end), version)
        if not self._context.spec.trajs_per_batch:
            open_ = np.flatnonzero(~(columns[TERMINATED][end - 1] | columns[TRUNCATED][end - 1] | self._idle))
            self._finals.add(open_, [array[open_] for array in self._context.actor.carried])
        if self._idle.all():
            columns[MASK][end:] = False
            end = len(columns[MASK])
        if MASK in into.arrays:
            padding = ~into.arrays[MASK]
            for key, array in into.arrays.items():
                array[padding] = NO_TRAJECTORY if key == TRAJECTORY else 0
        return Collected(frames=np.full(len(self._ids), end), finals=self._finals.sorted())

    def _collect_staged(
        self, staging: Staging, into: Storage, act: Callable[[], list[Array]], version: int, stop: Callable[[], bool]
    ) -> Collected:
        actor, start, steps = self._context.actor, staging.rows, into.arrays[REWARD].shape[1]
        ragged = bool(self._context.spec.trajs_per_batch)
        least = int(staging.held.min())  # frames of the slowest
        while least < steps:
            rows = staging.room(steps - least if least or ragged else 1)
            end = self._step(staging.columns, rows, act, stop)
            staging.add(end)
            least = steps if ragged else int(staging.held.min())
            if end < rows.stop or (0 < least < steps and stop()):
                break
        for key, value in zip(actor.carried_keys, actor.carried, strict=True):
            staging.columns[key][staging.rows] = value  # the observation after the last step
        if not ragged:
            staging.cut(steps)
        self._complete(staging.columns, range(start, staging.rows), version)
        held = staging.held
        frames = held.copy() if ragged else np.full_like(held, min(steps, int(held.min())))
        finals = staging.take(into, frames, actor.carried_keys, closed=not ragged)
        return Collected(frames=frames, finals=finals)

    def _step(
        self, columns: Mapping[Key, Array], rows: range, act: Callable[[], list[Array]], stop: Callable[[], bool]
    ) -> int:
        """Step once for each of these rows; return the row before which `stop` was true, or the end.

        `columns` are [rows, envs, ...]. Trajectory ids, versions, and outputs of `actor.rest` are left out.
        """
        env, actor, episodes, _, spec, infos, _ = self._context
        returns, lengths, limit = episodes.returns, episodes.lengths, spec.max_frames_per_traj
        idle, carried, mask = self._idle, actor.carried, columns.get(MASK)
        seen, outputs = ([columns[key] for key in keys] for keys in (actor.carried_keys, actor.keys))
        failed = columns.get(FAILED)
        counts, reported = columns.get(STEP_COUNT), [columns[key] for key in (infos.shapes if infos else ())]
        rewards, terminations, truncations = columns[REWARD], columns[TERMINATED], columns[TRUNCATED]
        step, action_of, advance, clock_s = env.step, actor.action_of, actor.advance, time.perf_counter
        for row in rows:
            if row != rows.start and stop():
                return row
            for column, value in zip(seen, carried, strict=True):
                column[row] = value
            if counts is not None:
                counts[row] = lengths
            values = act()
            for column, value in zip(outputs, values, strict=False):  # the next hidden state follows the outputs
                column[row] = value
            actions, began_s = action_of(values), clock_s()
            following, reward, terminated, truncated, info = step(actions)
            self.environments_s += clock_s() - began_s
            if failed is not None:
                failed[row] = False
                if FAILURES in info:
                    values, outcome = self._step_again(columns, row, values, act, (following, info))
                    following, reward, terminated, truncated, info = outcome
            if row == rows.start:
                check_outcome(env, (reward, terminated, truncated))
            rewards[row] = reward
            if mask is None:
                returns += reward
                lengths += 1
            else:
                mask[row] = frames = ~idle
                returns += np.where(frames, reward, 0.0)
                lengths += frames
            if limit:
                truncated = np.logical_or(truncated, lengths >= limit)
            terminations[row] = terminated
            truncations[row] = truncated
            if infos is not None:
                infos.write(info, [column[row] for column in reported])
            advance(following, values)
            done = np.logical_or(terminated, truncated)
            if self._staging is not None and np.count_nonzero(idle):
                actor.restart(idle.nonzero()[0])
                done &= ~idle
                idle[...] = False
            if np.count_nonzero(done):
                self._end(columns, row, done, info)
                if not spec.reset_when_done and idle.all():
                    return row + 1
        return rows.stop

    def _step_again(
        self,
        columns: Mapping[Key, Array],
        row: int,
        values: list[Array],
        act: Callable[[], list[Array]],
        outcome: tuple[Any, dict[str, Any]],
    ) -> tuple[list[Array], Any]:
        """Where environments have failed in a step, take the first step of their next episodes in its row.

        `values` are what the policy returned for the step, `outcome` the observations after it, and its infos. Returns
        the values of the row, and the whole outcome.
        """
        env, actor, episodes, *_, failed = self._context
        following, info = outcome
        whole: Any = None
        while FAILURES in info and failed is not None:
            envs = failed.note(info)
            self._break_off(columns, row, envs, failed)
            episodes.discard(envs)
            values = [value.copy() for value in values]
            actor.look_again(envs, following)
            for key, array in zip(actor.carried_keys, actor.carried, strict=True):
                columns[key][row, envs] = array[envs]
            if STEP_COUNT in columns:
                columns[STEP_COUNT][row, envs] = 0
            for value, new in zip(values, act(), strict=True):
                value[envs] = new[envs]
            for key, value in zip(actor.keys, values, strict=False):
                columns[key][row, envs] = value[envs]
            whole = env.step_again(envs.tolist(), actor.action_of(values), info)  # type: ignore[attr-defined]
            following, info = whole[0], whole[-1]
        return values, whole

    def _break_off(
        self, columns: Mapping[Key, Array], row: int, envs: NDArray[np.intp], failed: FailedEpisodes
    ) -> None:
        """End the episodes of these environments before a row: with its observation as their last."""
        seen = [columns[key] for key in self._context.actor.carried_keys]
        if not row:
            if self._context.spec.trajs_per_batch:
                failed.lost += [Lost(int(self._ids[env]), [array[row, env].copy() for array in seen]) for env in envs]
            self._ids[envs] = self._context.trajectories.take(len(envs))
            return
        under_way = envs[~(columns[TERMINATED][row - 1, envs] | columns[TRUNCATED][row - 1, envs])]
        columns[TRUNCATED][row - 1, under_way] = columns[FAILED][row - 1, under_way] = True
        self._finals.add(under_way, [array[row, under_way] for array in seen])

    def _end(self, columns: Mapping[Key, Array], row: int, done: NDArray[np.bool_], info: dict[str, Any]) -> None:
        """Record the last observations, and infos, of episodes that ended with a row. Start the next episodes."""
        env, actor, episodes, _, spec, infos, failed = self._context
        ended = counted = done.nonzero()[0]
        if not spec.reset_when_done:
            counted = ended[~self._idle[ended]]
        episodes.end(counted, self._last_infos.read(info.get("final_info", info), counted) if info else NOTHING)
        episodes.labels = self._last_infos.labels
        if self._mode is AutoresetMode.DISABLED:
            self._finals.add(counted, [array[counted] for array in actor.carried])
            began_s = time.perf_counter()
            following, firsts = env.reset(options={"reset_mask": done})
            self.environments_s += time.perf_counter() - began_s
            if failed is not None:
                failed.note_ended(len(counted))
                if len(lost := np.setdiff1d(failed.note(firsts), ended)):  # with the server of one that was to reset
                    columns[TRUNCATED][row, lost] = columns[FAILED][row, lost] = True
                    self._finals.add(lost, [array[lost] for array in actor.carried])
                    episodes.discard(lost)
                    ended = np.concatenate([ended, lost])
            actor.restart(ended, following)
        elif self._mode is AutoresetMode.SAME_STEP:
            if infos is not None:
                infos.write(info.get("final_info", {}), [columns[key][row] for key in infos.shapes], done)
            self._finals.add(counted, self._final_rows(info, counted))
            actor.restart(counted)
        if self._staging is not None or not spec.reset_when_done:
            self._idle[counted] = True

    def _complete(self, columns: Mapping[Key, Array], rows: range, version: int) -> None:
        """Write the values of rows that need not be written step by step."""
        at = slice(rows.start, rows.stop)
        for key, values in self._context.actor.rest():
            columns[key][at] = values
        if VERSION in columns:
            columns[VERSION][at] = version
        ended = columns[TERMINATED][at] | columns[TRUNCATED][at]
        if MASK in columns:
            ended &= columns[MASK][at]
        columns[TRAJECTORY][at] = self._context.trajectories.along(ended, self._ids)

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


def check_outcome(env: VectorEnv, outcome: Sequence[Any]) -> None:
    """Check the rewards and flags of a step: numpy would repeat a single one, and take any value for a flag.

    Raises:
        EnvironmentInvalid: One is not [envs], rewards are not numbers, or flags are neither true nor false.
    """
    for name, value in zip(("rewards", "terminated", "truncated"), outcome, strict=True):
        kinds, wanted = ("biuf", "numbers") if name == "rewards" else ("b", "True or False")
        found = np.asarray(value)
        if found.shape != (env.num_envs,):
            raise EnvironmentInvalid(
                f"environment {env} returned {name} of shape {list(found.shape)}; expected [{env.num_envs}]"
            )
        if found.dtype.kind not in kinds and (kinds != "b" or not np.isin(found, (0, 1)).all()):
            raise EnvironmentInvalid(f"environment {env} returned {name} {found.tolist()}; expected {wanted}")
