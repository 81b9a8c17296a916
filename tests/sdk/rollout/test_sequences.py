"""A rollout records the frames of a plain Gymnasium loop, one by one, in every autoreset mode."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from numpy.typing import NDArray
from tensordict import TensorDict
from tests.sdk.rollouts import along_time, always_0, collected, rollout_of, towards_fall
from torch import Tensor

from rollfleet.data.batch import to_batch
from rollfleet.envs.factory import VectorEnv, make_env
from rollfleet.rollout.seeding import Seeds
from rollfleet.testing import CountingEnv
from rollfleet_api.job import EnvSpec, Vectorization

LIMIT = 35  # so that episodes end both ways: they fall after 25 to 60 frames


@dataclass
class PlainFrames:
    """Frames of one environment in a plain loop."""

    observation: list[NDArray[np.float32]] = field(default_factory=list)
    reward: list[float] = field(default_factory=list)
    following: list[NDArray[np.float32]] = field(default_factory=list)
    terminated: list[bool] = field(default_factory=list)
    truncated: list[bool] = field(default_factory=list)
    returns: list[float] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)

    def add(self, now: NDArray[np.float32], reward: float, after: NDArray[np.float32], end: tuple[bool, bool]) -> None:
        self.observation.append(now.copy())
        self.reward.append(reward)
        self.following.append(after.copy())
        self.terminated.append(end[0])
        self.truncated.append(end[1])


def plain_loop(seed: int, frames: int) -> PlainFrames:
    env, plain = gymnasium.make("CartPole-v1", max_episode_steps=LIMIT), PlainFrames()
    observation, _ = env.reset(seed=seed)
    start = 0
    for frame in range(frames):
        following, reward, terminated, truncated, _ = env.step(int(observation[2] > 0))
        plain.add(observation, float(reward), following, (terminated, truncated))
        observation = following
        if terminated or truncated:
            plain.lengths.append(frame + 1 - start)
            plain.returns.append(sum(plain.reward[start:]))
            start = frame + 1
            observation, _ = env.reset()
    return plain


def plain_native_loop(seed: int, num_envs: int, frames: int) -> list[PlainFrames]:
    """The same for Gymnasium's own vector CartPole, whose environments share one generator, without reset steps."""
    env = gymnasium.make_vec("CartPole-v1", num_envs, "vector_entry_point", max_episode_steps=LIMIT)
    result = [PlainFrames() for _ in range(num_envs)]
    observation, _ = env.reset(seed=seed)
    ended = [False] * num_envs
    while min(len(plain.reward) for plain in result) < frames:
        action = (observation[:, 2] > 0).astype(np.int64)
        following, reward, terminated, truncated, _ = env.step(action)
        for i, plain in enumerate(result):
            if not ended[i]:
                flags = (bool(terminated[i]), bool(truncated[i]))
                plain.add(observation[i], float(reward[i]), following[i], flags)
            ended[i] = bool(terminated[i] or truncated[i])
        observation = following
    return result


def assert_same_frames(batch: TensorDict, expected: list[PlainFrames]) -> None:
    for i, plain in enumerate(expected):
        frames = batch.shape[1]
        torch.testing.assert_close(batch["observation"][i], tensor(plain.observation, frames), rtol=0, atol=0)
        torch.testing.assert_close(batch["next", "observation"][i], tensor(plain.following, frames), rtol=0, atol=0)
        assert batch["next", "reward"][i, :, 0].tolist() == plain.reward[:frames]
        assert batch["next", "terminated"][i, :, 0].tolist() == plain.terminated[:frames]
        assert batch["next", "truncated"][i, :, 0].tolist() == plain.truncated[:frames]
    assert (batch["next", "done"] == (batch["next", "terminated"] | batch["next", "truncated"])).all()
    assert not (batch["done"] | batch["terminated"] | batch["truncated"]).any()


def assert_ids_follow_episodes(batch: TensorDict) -> None:
    """Check that each episode has one id, which no other episode has."""
    ids, done = batch["collector", "traj_ids"], batch["next", "done"].squeeze(-1)
    assert ((ids[:, 1:] != ids[:, :-1]) == done[:, :-1]).all()
    episodes = int(done[:, :-1].sum()) + len(ids)
    assert len(ids.unique()) == episodes


def tensor(rows: list[NDArray[np.float32]], frames: int) -> Tensor:
    return torch.from_numpy(np.stack(rows[:frames]))


def played(env: VectorEnv, *, steps: int, fragments: int, **seeded: int) -> tuple[TensorDict, list[float], list[int]]:
    rollout = rollout_of(env, towards_fall, steps=steps, **seeded)
    batches, returns, lengths = [], [], []
    for version in range(fragments):
        fragment = rollout.collect(version=version)
        assert all(value.is_contiguous() for value in fragment.steps.values())
        batches.append(to_batch(fragment).clone())
        returns += fragment.episode_returns.tolist()
        lengths += fragment.episode_lengths.tolist()
    rollout.close()
    return along_time(batches), returns, lengths


def make() -> gymnasium.Env[NDArray[np.float32], np.int64]:
    return gymnasium.make("CartPole-v1", max_episode_steps=LIMIT)


def built(vectorization: Vectorization) -> Callable[[int], VectorEnv]:
    return lambda n: make_env(
        EnvSpec(id="CartPole-v1", num_envs=n, kwargs={"max_episode_steps": LIMIT}, vectorization=vectorization)
    )


MODES: dict[str, Callable[[int], VectorEnv]] = {
    "built-sync": built(Vectorization.SYNC),
    "built-async": built(Vectorization.ASYNC),
    "sync-same-step": lambda n: SyncVectorEnv([make] * n, autoreset_mode=AutoresetMode.SAME_STEP),
    "sync-next-step": lambda n: SyncVectorEnv([make] * n, autoreset_mode=AutoresetMode.NEXT_STEP),
    "sync-disabled": lambda n: SyncVectorEnv([make] * n, autoreset_mode=AutoresetMode.DISABLED),
    "async-same-step": lambda n: AsyncVectorEnv([make] * n, autoreset_mode=AutoresetMode.SAME_STEP),
    "async-next-step": lambda n: AsyncVectorEnv([make] * n, autoreset_mode=AutoresetMode.NEXT_STEP),
    "shared-buffer-same-step": lambda n: SyncVectorEnv([make] * n, copy=False, autoreset_mode=AutoresetMode.SAME_STEP),
    "shared-buffer-next-step": lambda n: SyncVectorEnv([make] * n, copy=False, autoreset_mode=AutoresetMode.NEXT_STEP),
}


@pytest.mark.parametrize(
    "mode", [pytest.param(mode, marks=[pytest.mark.slow] if "async" in mode else []) for mode in MODES]
)
def test_every_environment_equals_a_plain_loop_over_hundreds_of_episodes(mode: str) -> None:
    num_envs, steps, fragments = (2, 250, 8) if "async" in mode else (5, 37, 60)
    seeds = Seeds.derive(7, 3, 1, num_envs)
    of = {"seed": 7, "worker": 3, "incarnation": 1}
    batch, returns, lengths = played(MODES[mode](num_envs), steps=steps, fragments=fragments, **of)
    plain = [plain_loop(seed, steps * fragments) for seed in seeds.envs]
    assert_same_frames(batch, plain)
    assert_ids_follow_episodes(batch)
    assert sum(len(one.lengths) for one in plain) > 100
    assert batch["next", "truncated"].any()
    assert batch["next", "terminated"].any()
    if "next-step" not in mode:  # there, faster environments have ended episodes of the next fragment
        assert sorted(returns) == sorted(value for one in plain for value in one.returns)
        assert sorted(lengths) == sorted(value for one in plain for value in one.lengths)
    else:
        assert set(lengths) <= {
            value for one in [plain_loop(s, steps * fragments * 2) for s in seeds.envs] for value in one.lengths
        }


def test_gymnasiums_native_vector_environment_equals_its_plain_loop() -> None:
    num_envs, steps, fragments = 6, 50, 40
    seeds = Seeds.derive(1, 0, 0, num_envs)
    batch, _, _ = played(built(Vectorization.NATIVE)(num_envs), steps=steps, fragments=fragments, seed=1)
    assert_same_frames(batch, plain_native_loop(seeds.envs[0], num_envs, steps * fragments))
    assert_ids_follow_episodes(batch)
    assert batch["next", "done"].sum() > 300


def countdowns(*lengths: int) -> VectorEnv:
    makers = [partial(CountingEnv, episode_frames=length) for length in lengths]
    return SyncVectorEnv(makers, autoreset_mode=AutoresetMode.NEXT_STEP)


def test_an_environment_far_ahead_is_cut_with_its_true_next_observation_and_a_new_id() -> None:
    slow, fast = collected(rollout_of(countdowns(1, 1000), always_0, steps=10), 8)
    # Half of the slow environment's steps are resets, because its episodes have one frame: it loses nothing.
    assert slow["next", "observation"].squeeze(-1).tolist() == list(range(1, 81))
    assert slow["next", "terminated"].all()
    after = fast["next", "observation"].squeeze(-1)
    jumps = after[1:] != after[:-1] + 1
    assert jumps.any()
    assert (fast["next", "truncated"].squeeze(-1)[:-1] == jumps).all()
    assert not fast["next", "terminated"].any()
    assert (fast["observation"].squeeze(-1) == after - 1).all()
    ids = fast["collector", "traj_ids"]
    assert ((ids[1:] != ids[:-1]) == jumps).all()


def test_a_frame_that_waited_for_slower_environments_keeps_the_version_that_acted() -> None:
    acted: list[int] = []

    def policy(observation: Tensor) -> dict[str, Tensor]:
        return {"action": always_0(observation), "acted": torch.full((len(observation),), acted[-1])}

    rollout = rollout_of(countdowns(1, 3), policy, steps=10)
    waited = False
    for version in range(6):
        acted.append(version)
        batch = to_batch(rollout.collect(version=version))
        assert (batch["collector", "policy_version"] == batch["acted"]).all()
        waited |= bool((batch["acted"] < version).any())
    assert waited


class Generous(gymnasium.vector.VectorWrapper):
    """Rewards each step with 1, also those that only reset."""

    def step(self, actions):  # type: ignore[no-untyped-def]
        observation, reward, *rest = self.env.step(actions)
        return observation, np.ones_like(reward), *rest


def test_the_reward_of_a_reset_step_counts_for_no_episode() -> None:
    fragment = rollout_of(Generous(countdowns(3, 4)), always_0, steps=20).collect(version=0)
    assert set(fragment.episode_lengths.tolist()) == {3, 4}
    assert fragment.episode_returns.tolist() == fragment.episode_lengths.tolist()


def test_max_frames_per_traj_truncates_like_gymnasiums_time_limit() -> None:
    env = EnvSpec(id="CartPole-v1", num_envs=4)
    rollout = rollout_of(env, towards_fall, steps=50, seed=7, max_frames_per_traj=LIMIT)
    batch, seeds = collected(rollout, 10), Seeds.derive(7, 0, 0, 4)
    assert_same_frames(batch, [plain_loop(seed, 500) for seed in seeds.envs])
    assert_ids_follow_episodes(batch)
    assert batch["next", "truncated"].any()
