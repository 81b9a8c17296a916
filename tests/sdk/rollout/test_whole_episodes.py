"""Whole episodes have the returns of a plain Gymnasium loop, from the seeds of the evaluation."""

from functools import partial
from typing import Any

import gymnasium
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from tests.sdk.rollouts import always_0, rollout_of, towards_fall
from torch import Tensor

from rollfleet import make_env
from rollfleet.rollout.episodes import LONG_FRAMES
from rollfleet.rollout.seeding import Seeds
from rollfleet.rollout.whole_episodes import WholeEpisodes
from rollfleet.testing import CountingEnv
from rollfleet_api.job import CollectSpec, EnvSpec, Exploration

SEED, ENVS, COUNT = 5, 3, 7  # the last part has one episode that counts, and two that do not
COLLECT = CollectSpec(frames_per_batch=3, seed=SEED, set_truncated=True, reset_at_each_iter=True)


def plain_loop(limit: int) -> tuple[list[float], list[int]]:
    """Return the returns and lengths of the episodes, without Rollfleet."""
    returns, lengths = [], []
    env = gymnasium.make("CartPole-v1")
    for episode in range(COUNT):
        seeds = Seeds.of_evaluation(SEED, episode // ENVS, ENVS).envs
        observation, _ = env.reset(seed=seeds[episode % ENVS])
        total, length, done = 0.0, 0, False
        while not done and length < limit:
            action = int(towards_fall(torch.from_numpy(observation)[None])[0])
            observation, reward, terminated, truncated, _ = env.step(action)
            total, length, done = total + float(reward), length + 1, terminated or truncated
        returns.append(total)
        lengths.append(length)
    env.close()
    return returns, lengths


def environments(mode: AutoresetMode | None) -> Any:
    if mode is None:
        return make_env(EnvSpec(id="CartPole-v1", num_envs=ENVS))
    return SyncVectorEnv([partial(gymnasium.make, "CartPole-v1")] * ENVS, autoreset_mode=mode)


@pytest.mark.parametrize(("mode", "limit"), [(None, 0), (None, 20), *((mode, 0) for mode in AutoresetMode)])
def test_each_environment_counts_its_first_episode_of_a_part(mode: AutoresetMode | None, limit: int) -> None:
    collect = COLLECT.model_copy(update={"max_frames_per_traj": limit})
    episodes = WholeEpisodes(environments(mode), towards_fall, collect, Exploration.DETERMINISTIC)
    for _ in range(2):  # the same again, whatever came before
        found = episodes.run(COUNT)
        assert found is not None
        assert tuple(map(list, found)) == plain_loop(limit or 10_000)
    episodes.close()


def test_a_wait_for_an_episode_that_may_have_no_end_is_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    def endless() -> SyncVectorEnv:
        return SyncVectorEnv([partial(CountingEnv, episode_frames=LONG_FRAMES + 100)])

    WholeEpisodes(endless(), always_0, COLLECT, Exploration.DETERMINISTIC).run(1)
    rollout_of(endless(), always_0, steps=LONG_FRAMES // 2, trajs_per_batch=1).collect(version=0)
    hint = "waits for the end of an episode that has 30,0"
    assert [message.partition(hint)[0] for message in caplog.messages] == ["evaluation ", "trajs_per_batch "]


def test_stopped_episodes_have_no_result() -> None:
    steps = iter(range(10))
    episodes = WholeEpisodes(environments(None), towards_fall, COLLECT, Exploration.DETERMINISTIC)
    assert episodes.run(COUNT, stop=lambda: next(steps) >= 5) is None
    assert episodes.run(COUNT) is not None
    episodes.close()


def test_seeds_of_evaluation_are_no_workers() -> None:
    found = {seed for part in range(20) for seed in Seeds.of_evaluation(0, part, 50).envs}
    workers = {seed for worker in range(20) for seed in Seeds.derive(0, worker, 0, 50).envs}
    assert len(found) == 1000
    assert not found & workers


def test_a_random_policy_has_the_same_episodes_again_and_disturbs_no_generator() -> None:
    def sampled(observation: Tensor) -> Tensor:
        return torch.randint(2, (len(observation),))

    torch.manual_seed(1)
    episodes = WholeEpisodes(environments(None), sampled, COLLECT, Exploration.RANDOM)
    state = torch.get_rng_state()
    one, other = episodes.run(COUNT), episodes.run(COUNT)
    assert one is not None
    assert other is not None
    assert list(one[0]) == list(other[0])
    assert torch.equal(torch.get_rng_state(), state)
    episodes.close()
