"""Rollfleet's batches in TorchRL's replay buffers, samplers and transforms."""

import runpy
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from tests.pages import blocks
from torchrl import data
from torchrl.data.postprocs import MultiStep

import rollfleet
from rollfleet import Processes
from rollfleet.errors import JobInvalid

TRAJECTORY = ("collector", "traj_ids")
OPTIONS: dict[str, Any] = {"num_envs": 4, "frames_per_batch": 200, "seed": 5, "step_count": True}


def buffer(**keywords: Any) -> Any:
    return data.TensorDictReplayBuffer(storage=data.LazyTensorStorage(1000), batch_size=64, **keywords)


def test_torchrls_buffer_is_filled_by_the_keyword() -> None:
    frames = buffer()
    with rollfleet.Collector("CartPole-v1", replay_buffer=frames, total_frames=800, **OPTIONS) as collector:
        assert list(collector) == [None] * 4
    assert len(frames) == 800
    sample = frames.sample()
    assert sample.batch_size == (64,)
    assert not torch.equal(sample["observation"], sample["next", "observation"])
    stored = frames[:]
    with rollfleet.Collector("CartPole-v1", total_frames=800, **OPTIONS) as collector:
        expected: Any = torch.cat([batch.reshape(-1) for batch in collector])
    for key, value in expected.items(True, True):
        assert torch.equal(stored[key], value), key


def test_slices_sampled_by_torchrl_are_pieces_of_one_trajectory() -> None:
    sampler = data.SliceSampler(slice_len=8, traj_key=TRAJECTORY, strict_length=True, cache_values=False)
    frames = buffer(sampler=sampler)
    with rollfleet.Collector("CartPole-v1", replay_buffer=frames, total_frames=800, **OPTIONS) as collector:
        for _ in collector:
            pass
    assert len(frames[:][TRAJECTORY].unique()) > 20
    for _ in range(10):
        slices = frames.sample().reshape(8, 8)
        for piece in slices:
            assert len(piece[TRAJECTORY].unique()) == 1
            count = piece["step_count"].squeeze(-1)
            follows = count[1:] == count[:-1] + 1
            assert torch.equal(piece["observation"][1:][follows], piece["next", "observation"][:-1][follows])
            assert follows.all()


@pytest.mark.parametrize(
    ("place", "rows"),
    [
        ({}, 4),
        ({"workers": 2, "processes": Processes(start_method="fork")}, 8),
        ({"workers": 2, "processes": Processes(start_method="fork"), "cat_results": "stack"}, 8),
    ],
    ids=["here", "processes", "a stack of processes"],
)
def test_a_storage_of_two_dimensions_has_a_row_for_each_environment_as_in_torchrl(
    place: dict[str, Any], rows: int
) -> None:
    mine: Any = data.TensorDictReplayBuffer(storage=data.LazyTensorStorage(4000, ndim=2), batch_size=64)
    frames: dict[str, Any] = OPTIONS | {"total_frames": 800} | place
    with rollfleet.Collector("CartPole-v1", replay_buffer=mine, **frames) as collector:
        for _ in collector:
            pass
    assert (len(mine), mine.write_count) == (800, 800 // rows)
    stored = mine[:]
    assert stored.batch_size == (rows, 800 // rows)
    with rollfleet.Collector("CartPole-v1", **frames | {"cat_results": "envs"}) as collector:
        expected: Any = torch.cat(list(collector), dim=1)
    assert torch.equal(stored["observation"], expected["observation"])
    assert torch.equal(stored[TRAJECTORY], expected[TRAJECTORY])
    assert mine.sample().batch_size == (64,)


@pytest.mark.parametrize(
    ("ndim", "keywords", "message"),
    [
        (2, {"trajs_per_batch": 2}, "these batches have padding, .* write ndim=1"),
        (3, {}, "ndim=3, and batches have 2 dimensions; write ndim=2, or 1"),
        (1, {"postproc": lambda batch: 5}, "`replay_buffer` stores TensorDicts, and `postproc` returned 5"),
    ],
)
def test_batches_that_a_storage_cannot_take_are_refused(ndim: int, keywords: dict[str, Any], message: str) -> None:
    rows = data.TensorDictReplayBuffer(storage=data.LazyTensorStorage(4000, ndim=ndim), batch_size=64)
    options: dict[str, Any] = OPTIONS | keywords
    with (
        rollfleet.Collector("CartPole-v1", replay_buffer=rows, **options) as collector,
        pytest.raises(JobInvalid, match=message),
    ):
        next(collector)


def test_torchrls_multistep_is_a_postproc() -> None:
    multistep = MultiStep(gamma=0.5, n_steps=3)
    with rollfleet.Collector("CartPole-v1", **OPTIONS) as collector:
        plain = next(collector)
    with rollfleet.Collector("CartPole-v1", postproc=multistep, **OPTIONS) as collector:
        found = next(collector)
    assert (found == multistep(plain)).all()
    assert set(found["next", "reward"].unique().tolist()) == {1.0, 1.5, 1.75}  # of three steps, or to an episode's end


def test_torchrls_prioritised_buffer_samples_what_has_priority() -> None:
    frames = data.TensorDictPrioritizedReplayBuffer(
        alpha=1.0, beta=1.0, storage=data.LazyTensorStorage(1000), batch_size=64, priority_key="td_error"
    )
    with rollfleet.Collector("CartPole-v1", replay_buffer=frames, total_frames=800, **OPTIONS) as collector:
        assert list(collector) == [None] * 4
    frames.update_priority(torch.arange(800), torch.full((800,), 1e-6))
    sample = frames.sample()
    sample["td_error"] = torch.where(sample["index"] == sample["index"][0], 1e6, 1e-6)
    frames.update_tensordict_priority(sample)
    assert torch.equal(frames.sample()["observation"], sample["observation"][:1].expand(64, -1))


def test_n_step_frames_of_the_dqn_example_end_where_their_steps_end(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(repository / "examples/dqn"))
    n_step = runpy.run_path(str(repository / "examples/dqn/learner.py"))["n_step"]
    seen, one = torch.arange(7.0)[None, :, None], torch.ones(1, 6, 1)
    ends = torch.tensor([False, False, True, False, False, False])[None, :, None]
    following = {"observation": seen[:, 1:], "reward": one, "done": ends, "terminated": ends}
    found = n_step(TensorDict({"observation": seen[:, :-1], "action": one, "next": following}, [1, 6]))
    assert found["next", "observation"].flatten().tolist() == [3, 3, 3, 6, 6, 6]
    assert found["next", "terminated"].flatten().tolist() == [True] * 3 + [False] * 3
    torch.testing.assert_close(found["next", "reward"].flatten()[:3], torch.tensor([2.9701, 1.99, 1.0]))
    torch.testing.assert_close(found["gamma"].flatten()[:3], torch.tensor([0.99**3, 0.99**2, 0.99]))


def test_the_program_of_the_page_about_off_policy_learning_runs(repository: Path) -> None:
    (program,) = blocks((repository / "docs/off-policy.md").read_text(), "python")
    names: dict[str, Any] = {}
    exec(program, names)  # the repository's own page
    assert names["replay"].write_count == 1280
