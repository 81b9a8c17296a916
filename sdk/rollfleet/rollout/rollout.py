"""Steps environments with a policy, and records what happened without a gap or a seam."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from torch import Tensor

from rollfleet.data.batch import IS_INIT, LOG_PROB, MASK, STEP_COUNT, VERSION, Fragment, Key
from rollfleet.data.storage import Layout, Storage
from rollfleet.envs.factory import VectorEnv, check
from rollfleet.errors import EnvironmentInvalid
from rollfleet.exploration import exploring
from rollfleet.policies.actor import Actor, Array, Policy
from rollfleet.policies.uniform import UniformActions
from rollfleet.rollout.context import Collected, StepContext
from rollfleet.rollout.episodes import EpisodeCounts
from rollfleet.rollout.lockstep import LockstepStepper
from rollfleet.rollout.next_step import NextStepStepper
from rollfleet.rollout.seeding import Seeds, TorchStream
from rollfleet.rollout.settings import RolloutSettings
from rollfleet.rollout.trajectory_ids import TrajectoryIds
from rollfleet.rollout.whole_trajectories import WholeTrajectories

__all__ = ["Rollout", "RolloutSettings"]


class Rollout:
    """Collects fragments of T steps from a vector of environments; episodes go on from one fragment to the next.

    It owns the environments. One thread at a time; after an exception out of `collect` only `close` makes sense.
    """

    def __init__(
        self,
        env: VectorEnv,
        policy: Policy,
        *,
        steps: int,
        seeds: Seeds,
        trajectories: TrajectoryIds,
        settings: RolloutSettings | None = None,
    ) -> None:
        """Neither the environment nor the policy is called before the first `collect`.

        Args:
            env: With any autoreset mode.
            policy: See `Policy`.
            steps: T, frames of each environment in a fragment.
            seeds: For the first reset, random actions, and what the policy draws from torch.
            trajectories: Where ids come from.
            settings: How to collect.

        Raises:
            EnvironmentInvalid: A space or the autoreset mode is not supported, or does not go with the settings.
            PolicyInvalid: The policy is no callable.
            ValueError: `steps` is below 1, or there are not as many seeds as environments.
        """
        if steps < 1:
            raise ValueError(f"steps must be at least 1, not {steps}")
        if len(seeds.envs) != env.num_envs:
            raise ValueError(f"{len(seeds.envs)} seeds for {env.num_envs} environments")
        self._settings = settings or RolloutSettings()
        self._mode = check(env, f"environment {env}")
        self._check_resets(f"environment {env}")
        self._env, self._steps = env, steps
        self._episodes = EpisodeCounts(env.num_envs)
        spaces = (env.single_observation_space, env.single_action_space)
        self._actor = Actor(policy, spaces, env.num_envs, lambda: self._episodes.lengths == 0)
        self._uniform = UniformActions(env.single_action_space)
        self._storages: list[Storage] = []
        self._layout: Layout = {}
        self._in_collect = False
        self.begin_anew(seeds, trajectories)

    def begin_anew(self, seeds: Seeds, trajectories: TrajectoryIds) -> None:
        """The next fragment is as the first of a new rollout with these; environments and policy stay the same ones."""
        self._seeds, self._trajectories = seeds, trajectories
        self._generator = torch.Generator().manual_seed(seeds.actions)
        self._stream = TorchStream(seeds.torch, self._actor.device)
        self._seeded = 0  # how often the environments were
        self._started = False
        self._lanes: LockstepStepper | NextStepStepper | None = None
        self._whole = WholeTrajectories(self._env.num_envs)

    def collect(
        self,
        *,
        version: int,
        steps: int = 0,
        random_actions: bool = False,
        stop: Callable[[], bool] | None = None,
    ) -> Fragment:
        """T more frames of each environment (or, with `trajs_per_batch`, so many whole trajectories).

        Args:
            version: Of the policy as it is now; stamped on every frame that it acts in.
            steps: T from now on; 0: as it was.
            random_actions: Act by uniform random actions instead. The policy is still called, for what else it puts
                into the batch; `action_log_prob`, where it gives that, is that of the random actions.
            stop: Asked between steps. Once it is true the fragment is cut there, after at least one frame of each
                environment, and the next call goes on without a gap. With `trajs_per_batch` it then holds the
                trajectories that have ended; if none has, those that have begun, truncated.

        Returns:
            A fragment whose memory is used again by the second next call.

        Raises:
            PolicyInvalid: The policy returned what does not fit.
            EnvironmentInvalid: The environment does not behave as its autoreset mode says.
        """
        self._in_collect = True
        if steps and steps != self._steps:
            self._resize(steps)
        if not self._started or self._settings.reset_at_each_iter:
            self._reset()
        elif not self._settings.reset_when_done and self._lanes is not None:
            self._lanes.resume()
        if self._settings.trajs_per_batch:
            fragment = self._collect_whole(version, random_actions, stop)
        else:
            storage, collected = self._run(version, random_actions, stop)
            frames = int(collected.frames[0])
            recorded = {key: tensor[:, :frames].contiguous() for key, tensor in storage.tensors.items()}
            returns, lengths = self._episodes.take()
            final = {
                key: _as_tensor(leaf, recorded[key].dtype)
                for key, leaf in zip(self._actor.carried_keys, collected.finals, strict=True)
            }
            fragment = Fragment(
                steps=recorded, final=final, episode_returns=returns, episode_lengths=lengths, version=version
            )
        self._track(fragment.steps)
        self._in_collect = False
        return fragment

    def state_dict(self) -> dict[str, Any]:
        """What a run needs to go on: numbers and tensors, which `torch.load` takes with `weights_only`.

        It holds how many trajectory ids were given out, and where the generators of random actions, of torch and of the
        environments' seeds are; not where the environments are, since none can tell.
        """
        return {
            "trajectories": self._trajectories.taken,
            "seeded": self._seeded,
            "actions": self._generator.get_state(),
            "torch": self._stream.state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a `state_dict`: with ids that were not used, and with new episodes in all environments.

        Raises:
            ValueError: This rollout has given out more ids than that.
        """
        self._trajectories.skip_to(state["trajectories"])
        self._generator.set_state(state["actions"])
        self._stream.load_state(state["torch"])
        self._seeded = state["seeded"]
        self._whole = WholeTrajectories(self._env.num_envs)
        self._started = False

    def close(self) -> None:
        """Close the environments; those in processes of their own are ended, also in mid-step. Again is harmless."""
        env = self._env.unwrapped
        if self._in_collect and isinstance(env, AsyncVectorEnv) and not env.closed:
            # An exception came out of `collect`. Closing in order would wait for answers that may never come.
            for process in env.processes:
                process.terminate()
            for process, pipe in zip(env.processes, env.parent_pipes, strict=True):
                process.join()
                if pipe is not None:
                    pipe.close()
            env.closed = True
        else:
            self._env.close()

    def _check_resets(self, source: str) -> None:
        if self._mode is AutoresetMode.DISABLED:
            return
        if limit := self._settings.max_frames_per_traj:
            raise EnvironmentInvalid(
                f"{source} resets by itself ({self._mode.value}), so maxFramesPerTraj cannot end its episodes; wrap "
                f"its environments in gymnasium.wrappers.TimeLimit(env, {limit}) and leave maxFramesPerTraj at 0"
            )
        if not self._settings.reset_when_done:
            raise EnvironmentInvalid(
                f"{source} resets by itself ({self._mode.value}), so resetWhenDone: false cannot keep it from doing "
                "so; use one whose autoreset mode is Disabled"
            )

    def _reset(self) -> None:
        seed: Any = None
        if not self._started:
            seeds = self._seeds.again(self._seeded).envs
            seed = seeds if _takes_seeds(self._env.unwrapped) else seeds[0]
            self._seeded += 1
        observation, _ = self._env.reset(seed=seed)
        self._actor.restart(slice(None), observation)
        self._episodes.forget(slice(None))
        self._whole.forget_open()
        if self._lanes is not None:
            self._lanes.restart()
        self._started = True

    def _run(self, version: int, random_actions: bool, stop: Callable[[], bool] | None) -> tuple[Storage, Collected]:
        with self._stream.active(), exploring(self._settings.exploration), self._actor.acting():
            values = self._actor.first(quickly=not random_actions)
            lanes = self._lanes or self._allocate()
            self._storages.reverse()
            storage = self._storages[0]
            act = self._randomly if random_actions else self._actor
            if random_actions:
                values = self._randomised(values)
            return storage, lanes.collect(storage, act, values, version=version, stop=stop)

    def _collect_whole(self, version: int, random_actions: bool, stop: Callable[[], bool] | None) -> Fragment:
        wanted, whole, stopped = self._settings.trajs_per_batch, self._whole, False

        def enough() -> bool:
            nonlocal stopped
            stopped = stopped or (stop is not None and stop())
            return stopped or len(whole) + self._episodes.ended >= wanted

        while len(whole) < wanted and not (stopped and whole.begun):
            storage, collected = self._run(version, random_actions, enough)
            whole.add(storage, collected)
            self._episodes.take()
        if not len(whole):
            whole.cut_open(self._actor.carried)
        return whole.take(wanted, self._actor.carried_keys, version)

    def _allocate(self) -> LockstepStepper | NextStepStepper:
        envs, settings = self._env.num_envs, self._settings
        layout = self._actor.layout()
        uneven = self._mode is AutoresetMode.NEXT_STEP
        if uneven or settings.trajs_per_batch:
            layout[VERSION] = (torch.int64, ())
        if not settings.reset_when_done:
            layout[MASK] = (torch.bool, ())
        if settings.step_count or settings.is_init or self._actor.reads_starts:
            layout[STEP_COUNT] = (torch.int64, (1,))
        self._layout = layout
        self._storages = [Storage(layout, envs, self._steps) for _ in range(2)]
        context = StepContext(self._env, self._actor, self._episodes, self._trajectories, settings)
        if uneven:
            self._lanes = NextStepStepper(context, layout, self._steps)
        else:
            self._lanes = LockstepStepper(context, self._mode)
        return self._lanes

    def _resize(self, steps: int) -> None:
        self._steps = steps
        if self._lanes is None:
            return
        envs = self._env.num_envs
        self._storages = [Storage(self._layout, envs, steps) for _ in range(2)]
        if isinstance(self._lanes, NextStepStepper):
            self._lanes.make_room(steps)

    def _track(self, steps: dict[Key, Tensor]) -> None:
        """Turn the count of steps, which is all that was recorded, into what was asked for."""
        count = steps.get(STEP_COUNT)
        if count is None:
            return
        if self._settings.is_init or self._actor.reads_starts:
            steps[IS_INIT] = count == 0
            if MASK in steps:
                steps[IS_INIT] &= steps[MASK].unsqueeze(-1)
        if not self._settings.step_count:
            del steps[STEP_COUNT]

    def _randomly(self) -> list[Array]:
        return self._randomised(self._actor())

    def _randomised(self, values: list[Array]) -> list[Array]:
        actions, log_prob = self._uniform.sample(self._env.num_envs, self._generator)
        values[: len(actions)] = [action.numpy() for action in actions]
        if LOG_PROB in self._actor.keys:
            values[self._actor.keys.index(LOG_PROB)] = log_prob.numpy()
        return values


def _takes_seeds(env: object) -> bool:
    # Only these are known to take a seed for each environment; VectorEnv itself promises a single number.
    return isinstance(env, SyncVectorEnv | AsyncVectorEnv) or bool(getattr(env, "takes_seeds", False))


def _as_tensor(leaf: Array, dtype: torch.dtype) -> Tensor:
    tensor = torch.from_numpy(np.ascontiguousarray(leaf))
    return tensor.view(dtype) if dtype is torch.bfloat16 else tensor
