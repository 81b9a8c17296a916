"""Environments that reset in a step of their own, and so get ahead of each other."""

from functools import partial

import numpy as np
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorWrapper
from tests.sdk.rollouts import always_0, collected, rollout_of
from torch import Tensor

from rollfleet.data.batch import to_batch
from rollfleet.envs.factory import VectorEnv
from rollfleet.testing import CountingEnv


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


class Generous(VectorWrapper):
    """Rewards each step with 1, also those that only reset."""

    def step(self, actions):  # type: ignore[no-untyped-def]
        observation, reward, *rest = self.env.step(actions)
        return observation, np.ones_like(reward), *rest


def test_the_reward_of_a_reset_step_counts_for_no_episode() -> None:
    fragment = rollout_of(Generous(countdowns(3, 4)), always_0, steps=20).collect(version=0)
    assert set(fragment.episodes["lengths"].tolist()) == {3, 4}
    assert fragment.episodes["returns"].tolist() == fragment.episodes["lengths"].tolist()
