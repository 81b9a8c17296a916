"""Whole episodes of a policy, for their returns alone: no frame is kept."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from rollfleet.envs.factory import VectorEnv
from rollfleet.policies.actor import Policy
from rollfleet.rollout.episodes import LongEpisodes
from rollfleet.rollout.rollouts import make_rollout
from rollfleet.rollout.seeding import Seeds
from rollfleet.rollout.trajectory_ids import TrajectoryIds
from rollfleet_api.collection import CollectSpec, Exploration, NonFinite

STEPS = 32  # of a fragment: memory for its frames, and at most as many steps after the last episode's end


class WholeEpisodes:
    """Runs episodes from fixed seeds: the same policy has the same returns each time, in any process.

    It owns its environments. Of a job's `collect` the seed and the limit of an episode count.

    A vector of `n` environments runs `n` episodes at a time, one in each environment. It steps on until the last of
    them has ended; later episodes do not count, because short ones would be too many.

    Example:
        >>> from rollfleet import RandomPolicy, make_env
        >>> from rollfleet_api.job import EnvSpec
        >>> env = make_env(EnvSpec(id="CartPole-v1", num_envs=2))
        >>> collect = CollectSpec(frames_per_batch=2)
        >>> episodes = WholeEpisodes(env, RandomPolicy(env.single_action_space), collect, Exploration.RANDOM)
        >>> returns, lengths = episodes.run(3)
        >>> bool((returns == lengths).all()), returns.shape
        (True, (3,))
        >>> episodes.close()

    Raises:
        EnvironmentInvalid: A space or the autoreset mode is not supported, or does not suit the options.
        PolicyInvalid: The policy is not callable.
    """

    def __init__(self, env: VectorEnv, policy: Policy, collect: CollectSpec, exploration: Exploration) -> None:
        self._seed, self._num_envs = collect.seed, env.num_envs
        self._long = LongEpisodes("evaluation")
        options = CollectSpec(
            frames_per_batch=env.num_envs * STEPS,
            max_frames_per_traj=collect.max_frames_per_traj,
            exploration=exploration,
            step_count=collect.step_count,
            is_init=collect.is_init,
            non_finite=NonFinite.IGNORE,  # the batches of workers show it
        )
        seeds, ids = Seeds.of_evaluation(self._seed, 0, env.num_envs), TrajectoryIds(0, 0)
        self._rollout = make_rollout(env, policy, steps=STEPS, seeds=seeds, trajectories=ids, collect=options)

    def run(
        self, count: int, stop: Callable[[], bool] = lambda: False, *, first: int = 0
    ) -> tuple[NDArray[np.float64], NDArray[np.int64]] | None:
        """Run episodes and return their returns, float64 `[count]`, and lengths in frames, int64 `[count]`.

        Args:
            count: Number of episodes.
            stop: Checked between steps. Once it is true, there is no result: None is returned.
            first: How often each environment has begun an episode before, for the seeds.
        """
        parts = []
        for part in range(first, first - (-count // self._num_envs)):
            found = self._run_one_in_each(part, stop)
            if found is None:
                return None
            parts.append(found)
        returns, lengths = (np.concatenate(each)[:count] for each in zip(*parts, strict=True))
        return returns, lengths

    def close(self) -> None:
        """Close the environments."""
        self._rollout.close()

    def _run_one_in_each(
        self, part: int, stop: Callable[[], bool]
    ) -> tuple[NDArray[np.float64], NDArray[np.int64]] | None:
        self._rollout.reseed(Seeds.of_evaluation(self._seed, part, self._num_envs), TrajectoryIds(0, 0))
        returns, lengths = np.zeros(self._num_envs), np.zeros(self._num_envs, np.int64)
        running = np.ones(self._num_envs, np.bool_)
        while running.any():
            fragment = self._rollout.collect(version=0, stop=stop)
            if stop():
                return None
            rewards, done = self._rollout.outcomes(fragment)
            counted, ended = _until_first_end(done)
            counted[~running] = False
            returns += np.where(counted, rewards, 0.0).sum(1)
            lengths += counted.sum(1)
            running &= ~ended
            self._long.check(lengths[running])
        return returns, lengths


def _until_first_end(done: NDArray[np.bool_]) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return which frames `[envs, T]` are not behind an episode's end, and which environments have one, `[envs]`."""
    ends_before: NDArray[np.int64] = np.cumsum(done, axis=1) - done
    return ends_before == 0, np.logical_or.reduce(done, axis=1)
