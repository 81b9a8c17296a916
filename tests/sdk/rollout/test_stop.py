"""A fragment that is cut between two steps, and the next one."""

from collections.abc import Callable, Iterator
from functools import partial

import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from tests.sdk.rollouts import always_0, rollout_of
from torchrl.envs import GymEnv

from rollfleet.data.batch import Fragment, to_batch
from rollfleet.envs.factory import VectorEnv
from rollfleet.envs.serial import SerialVectorEnv
from rollfleet.envs.torchrl_env import TorchRLEnv
from rollfleet.rollout.seeding import Seeds
from rollfleet.rollout.tensordict_rollout import TensorDictRollout
from rollfleet.rollout.trajectory_ids import TrajectoryIds
from rollfleet.testing import CountingEnv
from rollfleet_api.collection import CollectSpec

MAKERS = [partial(CountingEnv, episode_frames=frames) for frames in (5, 3, 100)]
MODES: dict[str, Callable[[], VectorEnv]] = {
    "serial": lambda: SerialVectorEnv(MAKERS),
    "disabled": lambda: SyncVectorEnv(MAKERS, autoreset_mode=AutoresetMode.DISABLED),
    "same-step": lambda: SyncVectorEnv(MAKERS, autoreset_mode=AutoresetMode.SAME_STEP),
    "next-step": lambda: SyncVectorEnv(MAKERS, autoreset_mode=AutoresetMode.NEXT_STEP),
}


def after(questions: int) -> Callable[[], bool]:
    """Return a `stop` that is true from its `questions`-th call on."""
    answers: Iterator[bool] = iter([False] * (questions - 1))
    return lambda: next(answers, True)


def never() -> bool:
    return False


def assert_without_a_gap(batch: TensorDict) -> None:
    """Check that each environment has every frame once, with its true next observation."""
    steps = torch.arange(batch.shape[1]).float().expand(batch.shape)
    assert torch.equal(batch["observation"].squeeze(-1), steps)
    assert torch.equal(batch["next", "observation"].squeeze(-1), steps + 1)
    ids, done = batch["collector", "traj_ids"], batch["next", "done"].squeeze(-1)
    assert torch.equal(ids[:, 1:] != ids[:, :-1], done[:, :-1])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("asked", [1, 2, 4, 9])
def test_a_fragment_is_cut_when_stop_turns_true_and_the_next_continues(mode: str, asked: int) -> None:
    rollout = rollout_of(MODES[mode](), always_0, steps=20)
    fragments: list[Fragment] = []
    batches: list[TensorDict] = []
    for stop in (after(asked), never, after(asked), after(1), never):
        fragment = rollout.collect(version=0, stop=stop)
        for value in (*fragment.steps.values(), *fragment.final.values()):
            assert value.is_contiguous()
            assert not value.is_inference()  # it can be trained on
        batch = to_batch(fragment)
        assert batch.shape[1] == 20 if stop is never else 1 <= batch.shape[1] <= asked
        fragments.append(fragment)
        batches.append(batch.clone())
    if mode != "next-step":
        assert [batch.shape[1] for batch in batches] == [asked, 20, asked, 1, 20]
    joined: TensorDict = torch.cat(batches, dim=1)
    assert_without_a_gap(joined)
    if mode != "next-step":
        ended = joined["next", "done"].squeeze(-1).sum(1).tolist()
        lengths = torch.cat([fragment.episodes["lengths"] for fragment in fragments])
        assert sorted(lengths.tolist()) == [3] * ended[1] + [5] * ended[0]


def test_the_rest_of_a_trajectory_of_torchrl_that_was_cut_is_no_trajectory() -> None:
    rollout = TensorDictRollout(
        TorchRLEnv(GymEnv("CartPole-v1")),
        TensorDictModule(lambda _: torch.tensor([1, 0]), ["observation"], ["action"]),
        steps=20,
        seeds=Seeds.derive(0, 0, 0, 1),
        trajectories=TrajectoryIds(0, 0),
        collect=CollectSpec(frames_per_batch=20, trajs_per_batch=1),
    )
    cut, whole = (to_batch(rollout.collect(version=0, stop=stop)) for stop in (after(4), never))
    assert cut.shape == (1, 4)
    assert cut["next", "truncated"][0, -1]
    assert cut["next", "done"][0, -1]
    assert whole.shape[1] >= 8  # as long as CartPole takes to fall
    assert set(cut["collector", "traj_ids"][0].tolist()).isdisjoint(whole["collector", "traj_ids"][0].tolist())
