"""Environments stepped by a policy, and recorded as contiguous fragments."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from gymnasium.vector import AsyncVectorEnv, AutoresetMode
from numpy.typing import NDArray
from torch import Tensor

from rollfleet.data.batch import (
    FAILED,
    INFO,
    IS_INIT,
    LOG_PROB,
    MASK,
    OPTIONAL,
    REWARD,
    STEP_COUNT,
    TERMINATED,
    TRAJECTORY,
    TRUNCATED,
    VERSION,
    Fragment,
    Key,
    Layout,
)
from rollfleet.data.tensor_memory import Array, as_tensor
from rollfleet.data.whole_trajectories import WholeTrajectories
from rollfleet.envs.factory import VectorEnv, check, give
from rollfleet.envs.gymnasium_backend import end_processes, takes_seeds
from rollfleet.envs.serial import SerialVectorEnv
from rollfleet.envs.settings import Settings
from rollfleet.envs.subprocesses import ProcessVectorEnv
from rollfleet.errors import EnvironmentFailed, EnvironmentInvalid
from rollfleet.policies.actor import Actor, Policy
from rollfleet.policies.random_policy import UniformActions
from rollfleet.rollout.episodes import EpisodeCounts, LongEpisodes
from rollfleet.rollout.failed_episodes import FailedEpisodes
from rollfleet.rollout.finite_check import FiniteCheck, Frames, limits_of
from rollfleet.rollout.infos import Infos
from rollfleet.rollout.seeding import Seeds, TorchStream
from rollfleet.rollout.stepper import Collected, StepContext, Stepper
from rollfleet.rollout.storage import Storage
from rollfleet.rollout.suspicions import Suspicions
from rollfleet.rollout.trajectory_ids import TrajectoryIds
from rollfleet.rollout.whole_trajectories import Piece, add_frames, break_off, cut_after, fragment_of
from rollfleet.system.interrupts import interruptible
from rollfleet_api.collection import CollectSpec, NonFinite
from rollfleet_api.placement import EnvironmentFailuresSpec


class Rollout:
    """Collects fragments of T steps from a vector of environments; episodes continue from one fragment to the next.

    It owns the environments. Use it from one thread at a time. After an exception out of `collect` (an environment's, a
    policy's, Ctrl-C), which may have come in mid-step, the next `collect` begins new episodes in all environments.

    How options of `CollectSpec` act here:
        set_truncated: The last frame of each row is truncated, as in TorchRL. That is a mark alone: the episode goes on
            under its trajectory id.
        reset_at_each_iter: All environments are reset before each fragment but the first. Returns and lengths leave
            out the episodes that were cut off. Only `set_truncated` marks their last frame.
        reset_when_done: If false, an environment whose episode ended waits for the next fragment, and the rest of its
            row is padding: zeros, the trajectory id -1, and False in `("collector", "mask")`.
        step_count: int64 [envs, T, 1], frames of the episode before this one.
        is_init: bool [envs, T, 1], true for the first frame of an episode.
        info_keys: float64 [envs, T, ...], under ("next", "info"): see `Infos`.
        trajs_per_batch: A fragment is [trajectories, T of the longest], in order of their end, with padding as above.
            Trajectories that are not complete continue in the next fragment.

    Example:
        >>> from rollfleet import RandomPolicy, make_env
        >>> from rollfleet_api.job import EnvSpec
        >>> env = make_env(EnvSpec(id="CartPole-v1", num_envs=2))
        >>> policy = RandomPolicy(env.single_action_space)
        >>> seeds, ids = Seeds.derive(0, worker=0, incarnation=0, num_envs=2), TrajectoryIds(0, 0)
        >>> rollout = Rollout(env, policy, steps=8, seeds=seeds, trajectories=ids)
        >>> rollout.collect(version=1).frames
        16
        >>> rollout.close()
    """

    path = ""  # see `Rollouts`

    def __init__(
        self,
        env: VectorEnv,
        policy: Policy,
        *,
        steps: int,
        seeds: Seeds,
        trajectories: TrajectoryIds,
        collect: CollectSpec | None = None,
        trained_here: bool = False,
        failures: EnvironmentFailuresSpec | None = None,
    ) -> None:
        """Prepare; neither the environments nor the policy are called before the first `collect`.

        Args:
            env: With any autoreset mode.
            policy: See `Policy`.
            steps: T, frames of each environment in a fragment.
            seeds: For the first reset, random actions, and the policy's draws from torch.
            trajectories: The source of trajectory ids.
            collect: A job's `collect`; None: its defaults. Amounts of frames are not read: `steps` is used instead.
            trained_here: Whether the learner trains this very policy.
            failures: A job's `failure.environments`; None: an error of an environment ends `collect`.

        Raises:
            EnvironmentInvalid: A space or the autoreset mode is not supported, or does not suit the options.
            PolicyInvalid: The policy is not callable.
        """
        self._spec = collect or CollectSpec(frames_per_batch=steps * env.num_envs)
        self._mode = check(env, f"environment {env}")
        self._check_resets(f"environment {env}")
        self._env, self._steps = env, steps
        self._episodes, self._long = EpisodeCounts(env.num_envs), LongEpisodes("trajs_per_batch")
        spaces = (env.single_observation_space, env.single_action_space)
        self._actor = Actor(
            policy,
            spaces,
            env.num_envs,
            lambda: self._episodes.lengths,
            exploration=self._spec.exploration,
            trained_here=trained_here,
            acts_again=failures is not None,
        )
        self._failed = None if failures is None else FailedEpisodes(env, failures)
        self._uniform = UniformActions(env.single_action_space)
        if self._spec.info_keys:
            self._keep_infos(env)
        self._infos: Infos | None = None
        self._suspicions = Suspicions(env, self._actor.actions)
        self._finite = FiniteCheck(env, raises=self._spec.non_finite is NonFinite.ERROR)
        self._storages: list[Storage] = []
        self._layout: Layout = {}
        self._in_collect = False
        self.reseed(seeds, trajectories)

    def reseed(self, seeds: Seeds, trajectories: TrajectoryIds) -> None:
        """Make the next fragment that of a new rollout with these seeds and ids, same environments and policy."""
        self._seeds, self._trajectories = seeds, trajectories
        self._generator = torch.Generator().manual_seed(seeds.actions)
        self._stream = TorchStream(seeds.torch, self._actor.device)
        self._actor.reseed(seeds.torch >> 31)  # torch's generators use 32 bits of a seed: the stream has the others
        self._seeded = 0  # number of times that the environments were seeded
        self._frames: NDArray[np.int64] = np.zeros(self._env.num_envs, np.int64)  # of each since then
        self._started = False
        self._stepper: Stepper | None = None
        self._whole = WholeTrajectories[Piece]()

    def collect(
        self,
        *,
        version: int,
        steps: int = 0,
        random_actions: bool = False,
        stop: Callable[[], bool] = lambda: False,
    ) -> Fragment:
        """Collect T more frames of each environment or, with `trajs_per_batch`, that many whole trajectories.

        Args:
            version: The policy's version, recorded with every frame that it acts in.
            steps: T from now on; 0: unchanged.
            random_actions: Take uniform random actions. The policy is not called (only once, if it never was, to learn
                its outputs): its hidden state stays, and its outputs are zero, but `action_log_prob`, if it has one, is
                that of the random actions.
            stop: Checked between steps. Once it is true, the fragment ends there, after at least one frame of each
                environment, and the next call continues without a gap. With `trajs_per_batch` the fragment then holds
                the complete trajectories; if none is complete, the incomplete ones, truncated.

        Returns:
            A fragment; its memory is reused by the second next call.

        Raises:
            PolicyInvalid: The policy's output does not fit the action space, or its earlier output.
            EnvironmentInvalid: The environment does not behave as its autoreset mode says.
            EnvironmentFailed: The last call was interrupted, and this kind of environment cannot go on.
        """
        if self._in_collect:
            self._restart_episodes()
        self._in_collect = True
        self._episodes.act(version)
        if steps and steps != self._steps:
            self._steps = steps
            self._storages = [Storage(self._layout, self._env.num_envs, steps) for _ in self._storages]
        if not self._started or self._spec.reset_at_each_iter:
            self._reset()
        elif not self._spec.reset_when_done and self._stepper is not None:
            self._stepper.resume()
        if self._spec.trajs_per_batch:
            fragment = self._collect_whole(version, random_actions, stop)
        else:
            storage, collected = self._run(version, random_actions, stop)
            frames = int(collected.frames[0])
            if self._spec.set_truncated:
                mask = storage.arrays.get(MASK)
                storage.arrays[TRUNCATED][:, frames - 1] = True if mask is None else mask[:, frames - 1]
            recorded = {key: tensor[:, :frames].contiguous() for key, tensor in storage.tensors.items()}
            final = {
                key: as_tensor(leaf, recorded[key].dtype)
                for key, leaf in zip(self._actor.carried_keys, collected.finals, strict=True)
            }
            fragment = Fragment(steps=recorded, final=final, episodes=self._episodes.take(), version=version)
        self._track(fragment.steps)
        self._suspicions.check(fragment.steps, self._infos, ended=len(fragment.episodes["lengths"]) > 0)
        failed, newest = self._failed.take() if self._failed else ({}, "")
        fragment = replace(fragment, non_finite=self._finite.take(), labels=self._episodes.labels)
        fragment = replace(fragment, failed_episodes=failed, newest_failure=newest)
        for key in self._actor.private_keys:
            del fragment.steps[key], fragment.final[key]
        self._in_collect = False
        return fragment

    @property
    def first_reset_failed(self) -> bool:
        """See `Rollouts`."""
        return self._seeded == 1 and not self._started and self._stepper is None

    @property
    def environments_s(self) -> float:
        """See `Rollouts`."""
        return self._stepper.environments_s if self._stepper else 0.0

    def set_env(self, settings: Settings) -> None:
        """See `Rollouts`."""
        give(self._env, settings)
        if self._stepper is not None:
            self._stepper.renumber_waiting()

    def start_over(self) -> None:
        """See `Rollouts`."""
        self._started = False
        self._episodes.take()

    def outcomes(self, fragment: Fragment) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """See `Rollouts`."""
        steps = fragment.steps
        done = (steps[TERMINATED] | steps[TRUNCATED]).numpy()[..., 0]
        return steps[REWARD].double().numpy()[..., 0], done

    def close(self) -> None:
        """Close the environments and end their processes, even in mid-step. May be called again."""
        env = self._env.unwrapped
        if self._in_collect and isinstance(env, AsyncVectorEnv) and not env.closed:
            end_processes(env)  # `collect` failed
        else:
            self._env.close()

    def _check_resets(self, source: str) -> None:
        if self._mode is AutoresetMode.DISABLED:
            return
        if limit := self._spec.max_frames_per_traj:
            raise EnvironmentInvalid(
                f"{source} resets by itself ({self._mode.value}), so `max_frames_per_traj` (`maxFramesPerTraj` of "
                f"a job) cannot end its episodes; remove it, and wrap its environments in "
                f"gymnasium.wrappers.TimeLimit(env, {limit})"
            )
        if not self._spec.reset_when_done:
            raise EnvironmentInvalid(
                f"{source} resets by itself ({self._mode.value}), so `reset_when_done=False` (`resetWhenDone: false` "
                "of a job) cannot prevent it; use an environment whose autoreset mode is Disabled"
            )

    def _keep_infos(self, env: VectorEnv) -> None:
        if INFO[1:] in (key[:1] for key in self._actor.carried_keys):
            raise EnvironmentInvalid(
                f"environment {env} has observations named 'info', where a batch has infos; rename them in a wrapper, "
                "or leave `info_keys` (`infoKeys` of a job) empty"
            )
        if isinstance(env.unwrapped, SerialVectorEnv | ProcessVectorEnv):  # others report all infos
            env.unwrapped.info_keys = self._spec.info_keys

    def _restart_episodes(self) -> None:
        """Begin new episodes after the last call was interrupted."""
        if isinstance(self._env.unwrapped, AsyncVectorEnv):
            raise EnvironmentFailed(
                f"{self._env} was interrupted, and may still owe the answers of a step; make a new collector "
                "(one with an id or a factory, and vectorization='async', can go on)"
            )
        self.start_over()

    def _reset(self) -> None:
        seed: Any = None
        if not self._started:
            seeds = self._seeds.again(self._seeded).envs
            seed = seeds if takes_seeds(self._env.unwrapped) else seeds[0]
            self._seeded += 1
            self._frames[...] = 0
        with interruptible():
            observation, info = self._env.reset(seed=seed)
        if self._failed:
            self._failed.note(info)
            self._failed.take_lost()
        if self._spec.info_keys and self._infos is None:
            self._infos = Infos(self._env, self._spec.info_keys, info)
        self._actor.advance(observation)
        self._actor.restart(slice(None))
        self._episodes.discard(slice(None))
        self._whole.forget()
        if self._stepper is not None:
            self._stepper.restart()
        self._started = True

    def _run(self, version: int, random_actions: bool, stop: Callable[[], bool]) -> tuple[Storage, Collected]:
        with self._stream.active(), self._actor.unchanged(), interruptible():
            values = self._randomly() if random_actions else self._actor.first()
            stepper = self._stepper or self._allocate()
            self._storages.reverse()
            storage = self._storages[0]
            known, act = [values], self._randomly if random_actions else self._actor
            collected = stepper.collect(storage, lambda: known.pop() if known else act(), version=version, stop=stop)
        if self._finite.limits:
            self._check(storage, collected)
        mask = storage.arrays.get(MASK)
        self._frames += collected.frames if mask is None else mask.sum(1)
        return storage, collected

    def _check(self, storage: Storage, collected: Collected) -> None:
        longest, tensors, arrays = int(collected.frames.max()), storage.tensors, storage.arrays
        if longest < self._steps:
            tensors = {key: each[:, :longest] for key, each in tensors.items()}
            arrays = {key: each[:, :longest] for key, each in arrays.items()}

        def frames() -> Frames:
            real = (arrays[TRAJECTORY] >= 0) & (np.arange(longest) < collected.frames[:, None])
            ends = arrays[TERMINATED] | arrays[TRUNCATED]
            if not self._spec.trajs_per_batch:
                ends[:, -1] = True
            seeds, before = self._seeds.again(self._seeded - 1).envs, self._frames.tolist()
            return Frames(arrays[TRAJECTORY], real, ends & real, seeds, before)

        finals = zip(self._actor.carried_keys, map(torch.from_numpy, collected.finals), strict=False)
        self._finite.check(tensors, finals, frames)

    def _collect_whole(self, version: int, random_actions: bool, stop: Callable[[], bool]) -> Fragment:
        wanted, whole, stopped = self._spec.trajs_per_batch, self._whole, False

        def enough() -> bool:
            nonlocal stopped
            stopped = stopped or stop()
            return stopped or len(whole) + self._episodes.ended >= wanted

        while len(whole) < wanted and not (stopped and whole.started):
            storage, collected = self._run(version, random_actions, enough)
            for lost in self._failed.take_lost() if self._failed else ():
                break_off(whole, *lost)
            add_frames(whole, storage, collected, self._episodes.take_said())
            self._long.check(self._episodes.lengths)
        if not len(whole):  # what follows is not their beginning: begin new episodes
            cut_after(whole, self._actor.carried)
            self.start_over()
        return fragment_of(whole.take(wanted), self._actor.carried_keys, version)

    def _allocate(self) -> Stepper:
        num_envs, spec = self._env.num_envs, self._spec
        layout = self._actor.layout()
        if self._mode is AutoresetMode.NEXT_STEP or spec.trajs_per_batch:
            layout[VERSION] = OPTIONAL[VERSION]
        if not spec.reset_when_done:
            layout[MASK] = OPTIONAL[MASK]
        if spec.step_count or spec.is_init or self._actor.reads_starts or self._actor.reads_counts:
            layout[STEP_COUNT] = OPTIONAL[STEP_COUNT]
        if self._failed:
            layout[FAILED] = OPTIONAL[FAILED]
        if self._infos is not None:
            layout |= {key: (torch.float64, shape) for key, shape in self._infos.shapes.items()}
        self._layout = layout
        if spec.non_finite is not NonFinite.IGNORE:
            self._finite.limits = limits_of(self._actor)
        self._storages = [Storage(layout, num_envs, self._steps) for _ in range(2)]
        context = StepContext(
            self._env, self._actor, self._episodes, self._trajectories, spec, self._infos, self._failed
        )
        self._stepper = Stepper(context, self._mode, layout, self._steps)
        return self._stepper

    def _track(self, steps: dict[Key, Tensor]) -> None:
        """Replace the recorded step count by the requested `step_count` and `is_init`."""
        count = steps.get(STEP_COUNT)
        if count is None:
            return
        if self._spec.is_init or self._actor.reads_starts:
            steps[IS_INIT] = count == 0
            if MASK in steps:
                steps[IS_INIT] &= steps[MASK].unsqueeze(-1)
        if not (self._spec.step_count or self._actor.reads_counts):
            del steps[STEP_COUNT]

    def _randomly(self) -> list[Array]:
        values = self._actor.idle()
        actions, log_prob = self._uniform.sample(self._env.num_envs, self._generator)
        values[: len(actions)] = [action.numpy() for action in actions]
        if LOG_PROB in self._actor.keys:
            values[self._actor.keys.index(LOG_PROB)] = log_prob.numpy()
        return values
