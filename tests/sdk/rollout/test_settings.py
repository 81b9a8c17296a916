"""The effect of `collect` options on a rollout's fragments."""

from functools import partial
from typing import Any

import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from tensordict.nn import TensorDictModule
from tests.sdk.rollouts import Countdown, along_time, always_0, batches_of, rollout_of
from torch import Tensor
from torchrl.envs import GymWrapper, SerialEnv

from rollfleet.data.batch import to_batch
from rollfleet.envs.factory import VectorEnv
from rollfleet.envs.serial import SerialVectorEnv
from rollfleet.envs.torchrl_env import TorchRLEnv
from rollfleet.errors import EnvironmentInvalid
from rollfleet.rollout.seeding import Seeds
from rollfleet.rollout.tensordict_rollout import TensorDictRollout
from rollfleet.rollout.trajectory_ids import TrajectoryIds
from rollfleet_api.collection import CollectSpec


def vector(mode: str, *lengths: int) -> VectorEnv:
    makers = [partial(Countdown, length) for length in lengths]
    return SerialVectorEnv(makers) if mode == "serial" else SyncVectorEnv(makers, autoreset_mode=AutoresetMode(mode))


def gym_wrapped(length: int) -> GymWrapper:
    return GymWrapper(Countdown(length), categorical_action_encoding=True)


MODES = ["serial", "SameStep", "NextStep"]


@pytest.mark.parametrize("mode", MODES)
def test_set_truncated_marks_the_last_frame_of_each_row_and_the_episode_goes_on(mode: str) -> None:
    marked, plain = (rollout_of(vector(mode, 5, 3, 30), steps=10, set_truncated=how) for how in (True, False))
    for batch, expected in zip(batches_of(marked, 8), batches_of(plain, 8), strict=True):
        for flag in ("truncated", "done"):
            assert batch["next", flag][:, -1].all()
            expected["next", flag][:, -1] = True
        for key in expected.keys(True, True):
            assert torch.equal(batch[key], expected[key]), key


def test_set_truncated_means_the_same_for_environments_of_torchrl() -> None:
    lengths = (5, 3, 1000)
    theirs = TensorDictRollout(
        TorchRLEnv(SerialEnv(3, [partial(gym_wrapped, length) for length in lengths])),
        TensorDictModule(always_0, ["observation"], ["action"]),
        steps=10,
        seeds=Seeds.derive(0, 0, 0, 3),
        trajectories=TrajectoryIds(0, 0),
        collect=CollectSpec(frames_per_batch=1, set_truncated=True),
    )
    ours = rollout_of(vector("serial", *lengths), always_0, steps=10, set_truncated=True)
    for _ in range(4):
        batch, expected = (to_batch(rollout.collect(version=0)) for rollout in (ours, theirs))
        for key in (*(("next", flag) for flag in ("truncated", "terminated", "done")), ("collector", "traj_ids")):
            assert torch.equal(batch[key], expected[key]), key


@pytest.mark.parametrize("mode", MODES)
def test_reset_at_each_iter_starts_every_fragment_with_new_episodes_under_new_ids(mode: str) -> None:
    rollout = rollout_of(vector(mode, 4, 7), steps=10, reset_at_each_iter=True)
    fragments, batches = [], []
    for _ in range(3):
        fragments.append(rollout.collect(version=0))
        batches.append(to_batch(fragments[-1]).clone())
    seen: set[int] = set()
    for fragment, batch in zip(fragments, batches, strict=True):
        assert not batch["observation"][:, 0, 1].any()
        ids = set(batch["collector", "traj_ids"].unique().tolist())
        assert not ids & seen
        seen |= ids
        assert set(fragment.episodes["lengths"].tolist()) == {4, 7}  # cut episodes are not counted
        assert not batch["next", "truncated"].any()
    assert batches[0]["observation"][:, 0, 0].tolist() == [1, 1]  # only one reset before the first fragment
    assert torch.equal(batches[0]["next", "observation"][0, -1], torch.tensor([3.0, 2.0, 0.0]))


def test_set_truncated_marks_episodes_that_reset_at_each_iter_cuts() -> None:
    batches = batches_of(rollout_of(vector("serial", 4, 5), steps=10, reset_at_each_iter=True, set_truncated=True), 2)
    assert batches[1]["next", "truncated"][:, -1].all()
    assert not batches[1]["next", "truncated"][:, :-1].any()


@pytest.mark.parametrize("mode", ["serial", "Disabled"])
def test_without_reset_when_done_an_ended_environment_waits_for_the_next_fragment(mode: str) -> None:
    rollout = rollout_of(vector(mode, 4, 100, 2), steps=6, reset_when_done=False, is_init=True, step_count=True)
    fragments = [rollout.collect(version=version) for version in range(2)]
    batches = [to_batch(fragment) for fragment in fragments]
    for fragment, batch in zip(fragments, batches, strict=True):
        mask = batch["collector", "mask"]
        assert mask.sum(1).tolist() == [4, 6, 2]
        assert fragment.frames == 12
        assert fragment.episodes["lengths"].tolist() == [2, 4]
        for key, value in batch.exclude("collector").items(True, True):
            assert not value[~mask].any(), key
        assert (batch["collector", "traj_ids"][~mask] == -1).all()
        assert batch["next", "terminated"].squeeze(-1).nonzero().tolist() == [[0, 3], [2, 1]]
        assert batch["next", "observation"][0, 3, 1] == 4
        assert batch["next", "observation"][2, 1, 1] == 2
    first, second = batches
    assert second["observation"][:, 0, 1].tolist() == [0, 6, 0]
    assert torch.equal(first["next", "observation"][1, -1], second["observation"][1, 0])
    ids = [batch["collector", "traj_ids"][:, 0] for batch in batches]
    assert (ids[0] == ids[1]).tolist() == [False, True, False]
    assert second["is_init"].squeeze(-1).nonzero().tolist() == [[0, 0], [2, 0]]


@pytest.mark.parametrize(
    ("options", "lengths", "expected"),
    [
        ({"steps": 50, "reset_when_done": False}, (4, 2), [(4, (2, 50), [4, 2]), (4, (2, 50), [4, 2])]),
        ({"steps": 1000, "trajs_per_batch": 2}, (5, 3), [(5, (2, 5), [3, 5]), (4, (2, 3), [3, 3])]),
    ],
    ids=["all environments wait", "the last trajectory ended"],
)
def test_no_step_is_taken_whose_frames_would_not_count(
    options: dict[str, Any], lengths: tuple[int, ...], expected: list[Any]
) -> None:
    """The expected steps, shape and frames in each row, of two fragments."""
    steps: list[int] = []

    def policy(observation: Tensor) -> Tensor:
        steps.append(1)
        return always_0(observation)

    rollout = rollout_of(vector("serial", *lengths), policy, **options)
    for each in expected:
        steps.clear()
        batch = to_batch(rollout.collect(version=0))
        assert (len(steps), batch.shape, batch["collector", "mask"].sum(1).tolist()) == each


def test_stop_cuts_a_fragment_in_which_some_environments_wait() -> None:
    rollout = rollout_of(vector("serial", 2, 100), steps=50, reset_when_done=False)
    answers = iter([False, False, False, True])
    batch = to_batch(rollout.collect(version=0, stop=lambda: next(answers)))
    assert batch["collector", "mask"].sum(1).tolist() == [2, 4]
    assert batch.shape == (2, 4)
    assert to_batch(rollout.collect(version=0))["observation"][:, 0, 1].tolist() == [0, 4]


@pytest.mark.parametrize("mode", MODES)
def test_step_count_and_is_init_give_a_frames_position_in_its_episode(mode: str) -> None:
    batch = along_time(batches_of(rollout_of(vector(mode, 5, 3, 100), steps=7, step_count=True, is_init=True), 4))
    frame = batch["observation"][..., 1:2].long()
    assert torch.equal(batch["step_count"], frame)
    assert torch.equal(batch["next", "step_count"], frame + 1)
    assert torch.equal(batch["is_init"], frame == 0)
    assert not batch["next", "is_init"].any()
    assert batch["next", "is_init"].shape == batch["is_init"].shape == (3, 28, 1)


@pytest.mark.parametrize("asked", ["step_count", "is_init"])
def test_a_batch_has_only_the_requested_keys(asked: str) -> None:
    options: dict[str, Any] = {asked: True}
    batch = batches_of(rollout_of(vector("serial", 5), steps=7, **options), 1)[0]
    assert {"step_count", "is_init"} & set(batch.keys()) == {asked}
    assert {"step_count", "is_init"} & set(batch["next"].keys()) == {asked}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("steps", [1, 4, 50])
def test_each_whole_trajectory_is_returned_once_and_none_is_cut(mode: str, steps: int) -> None:
    lengths = (5, 3, 11)
    rollout = rollout_of(vector(mode, *lengths), steps=steps, trajs_per_batch=4, step_count=True, is_init=True)
    seen: list[tuple[int, int, int]] = []
    for version in range(12):
        fragment = rollout.collect(version=version)
        batch = to_batch(fragment)
        mask = batch["collector", "mask"]
        frames = mask.sum(1)
        assert batch.shape == (4, int(frames.max()))
        assert batch.names == [None, "time"]
        assert fragment.frames == int(frames.sum())
        assert fragment.episodes["lengths"].tolist() == fragment.episodes["returns"].tolist() == frames.tolist()
        assert torch.equal(mask, torch.arange(batch.shape[1]) < frames[:, None])
        ids = batch["collector", "traj_ids"]
        assert torch.equal(ids == -1, ~mask)
        assert torch.equal(batch["is_init"].squeeze(-1), mask & (torch.arange(batch.shape[1]) == 0))
        for row, length in enumerate(frames.tolist()):
            count = torch.arange(length)
            assert torch.equal(batch["observation"][row, :length, 1].long(), count)
            assert torch.equal(batch["next", "observation"][row, :length, 1].long(), count + 1)
            assert torch.equal(batch["step_count"][row, :length, 0], count)
            assert batch["next", "terminated"][row, :length, 0].tolist() == [False] * (length - 1) + [True]
            assert not batch["next", "truncated"][row].any()
            assert len(ids[row, :length].unique()) == 1
            seen.append((length, int(batch["observation"][row, 0, 0]), int(ids[row, 0])))
            versions = batch["collector", "policy_version"][row, :length]
            assert (versions.diff() >= 0).all()
            assert version - 3 <= int(versions[-1]) <= version
        assert not any(value.is_inference() for value in fragment.steps.values())
        assert all(value.is_contiguous() for value in (*fragment.steps.values(), *fragment.final.values()))
    assert len({one[2] for one in seen}) == len(seen)
    for length in lengths:
        episodes = sorted(episode for one, episode, _ in seen if one == length)
        assert episodes == list(range(1, len(episodes) + 1))
        assert len(episodes) > 2


@pytest.mark.parametrize("mode", MODES)
def test_a_stopped_fragment_has_complete_trajectories_or_else_incomplete_ones(mode: str) -> None:
    rollout = rollout_of(vector(mode, 50, 60, 4), steps=10, trajs_per_batch=3)
    asked: list[int] = []

    def stop() -> bool:
        asked.append(1)
        return len(asked) in (2, 6)

    cut, whole = (rollout.collect(version=0, stop=stop) for _ in range(2))
    assert (cut.episodes["lengths"].tolist(), whole.episodes["lengths"].tolist()) == ([], [4])
    first, second = to_batch(cut).clone(), to_batch(whole).clone()
    assert first["collector", "mask"].sum(1).tolist() == [2, 2, 2]
    assert first["next", "truncated"].squeeze(-1).nonzero().tolist() == [[0, 1], [1, 1], [2, 1]]
    assert first["next", "observation"][:, -1, 1].tolist() == [2, 2, 2]
    assert second["collector", "mask"].sum(1).tolist() == [4]  # of a new episode: the first batch has cut the others
    assert second["next", "terminated"].squeeze(-1).tolist() == [[False, False, False, True]]
    ids = [set(batch["collector", "traj_ids"].flatten().tolist()) for batch in (first, second)]
    assert ids[0].isdisjoint(ids[1])
    third = to_batch(rollout.collect(version=0))
    assert third["observation"][0, 0, 1] == 0


@pytest.mark.parametrize("mode", MODES)
def test_incomplete_trajectories_are_no_episodes_in_whichever_fragment_they_come(mode: str) -> None:
    rollout = rollout_of(vector(mode, 50, 60), steps=10, trajs_per_batch=1)
    fragments = [rollout.collect(version=0, stop=lambda: True) for _ in range(2)]
    assert [fragment.frames for fragment in fragments] == [1, 1]
    assert [len(fragment.episodes["lengths"]) for fragment in fragments] == [0, 0]


def test_a_stop_while_all_environments_reset_waits_for_the_first_frame() -> None:
    rollout = rollout_of(vector("NextStep", 3, 3), steps=10, trajs_per_batch=2)
    assert to_batch(rollout.collect(version=0))["collector", "mask"].sum(1).tolist() == [3, 3]
    stopped = to_batch(rollout.collect(version=0, stop=lambda: True))
    assert stopped["collector", "mask"].sum(1).tolist() == [1, 1]


def test_trajectories_that_a_reset_cut_off_are_never_returned() -> None:
    rollout = rollout_of(vector("serial", 5, 3), steps=10, trajs_per_batch=2, reset_at_each_iter=True)
    for batch in batches_of(rollout, 5):
        assert batch["collector", "mask"].sum(1).tolist() == [3, 5]
        assert not batch["observation"][:, 0, 1].any()


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"reset_when_done": False}, "`reset_when_done=False`"),
    ({"max_frames_per_traj": 9}, r"`max_frames_per_traj` .*TimeLimit\(env, 9\)"),
]


@pytest.mark.parametrize("mode", ["SameStep", "NextStep"])
@pytest.mark.parametrize(("option", "shown"), REFUSED)
def test_resets_cannot_be_set_for_environments_that_reset_by_themselves(
    mode: str, option: dict[str, Any], shown: str
) -> None:
    with pytest.raises(EnvironmentInvalid, match=rf"resets by itself \({mode}\), so {shown}"):
        rollout_of(vector(mode, 3), steps=5, **option)
