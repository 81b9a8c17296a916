"""`info_keys`, and the numbers of last infos: however episodes end and wherever they step, in every place."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import islice
from statistics import fmean
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from tests.sdk.places import Collect
from tests.sdk.rollouts import rollout_of
from torch import Tensor

from rollfleet import ReplayBuffer
from rollfleet.data.batch import EPISODES, to_batch
from rollfleet.envs.factory import make_env
from rollfleet.errors import EnvironmentInvalid, JobInvalid
from rollfleet.rollout.rollout import Rollout
from rollfleet_api.job import EnvSpec, Vectorization
from rollfleet_api.messages import MOST_NUMBERS, MOST_STATISTICS, Statistic

FRAMES = 4  # of an episode
KEYS = ("place", "level", "success", "never")


class Reporting(gymnasium.Env[Any, Any]):
    """Observes its steps so far, over all episodes; reports them, a number that floats cannot hold, and its success."""

    observation_space: Any = Box(-np.inf, np.inf, (1,), np.float64)
    action_space = Discrete(2)

    def __init__(self, **infos: Any) -> None:
        self._steps, self._infos = 0, infos

    def _info(self) -> dict[str, Any]:
        return {"place": np.array([self._steps, -self._steps], np.int32), "level": 2**40 + self._steps, "text": "x"}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return np.array([float(self._steps)]), self._info()

    def step(self, action: Any) -> Any:
        self._steps += 1
        done = self._steps % FRAMES == 0
        info = self._info() | ({"success": self._steps % (2 * FRAMES) == 0} if done else {}) | self._infos
        return np.array([float(self._steps)]), 1.0, done, False, info


def spec(vectorization: Vectorization, **more: Any) -> EnvSpec:
    return EnvSpec(entrypoint="tests:reporting", num_envs=3, vectorization=vectorization, **more)


MAKERS = [Reporting] * 3
ENVS: dict[str, Callable[[], Any]] = {
    "sync": lambda: make_env(spec(Vectorization.SYNC), Reporting),
    "async": lambda: make_env(spec(Vectorization.ASYNC, processes=2), Reporting),
    "tensors": lambda: make_env(spec(Vectorization.SYNC), Reporting, device=torch.device("cpu")),
    "SyncVectorEnv, next step": lambda: SyncVectorEnv(MAKERS),
    "SyncVectorEnv, same step": lambda: SyncVectorEnv(MAKERS, autoreset_mode=AutoresetMode.SAME_STEP),
    "SyncVectorEnv, disabled": lambda: SyncVectorEnv(MAKERS, autoreset_mode=AutoresetMode.DISABLED),
    "AsyncVectorEnv, next step": lambda: AsyncVectorEnv(MAKERS),
    "AsyncVectorEnv, same step": lambda: AsyncVectorEnv(MAKERS, autoreset_mode=AutoresetMode.SAME_STEP),
}


@pytest.fixture
def roll() -> Iterator[Callable[..., Rollout]]:
    """Makes rollouts of a vector of environments that record the infos under `KEYS`."""
    with ExitStack() as stack:

        def roll(env: Any, info_keys: tuple[str, ...] = KEYS, **collect: Any) -> Rollout:
            rollout = rollout_of(env, steps=10, info_keys=info_keys, **collect)
            stack.callback(rollout.close)
            return rollout

        yield roll


def check(batch: Any) -> None:
    """Check each frame's infos by its next observation."""
    mask = batch.get(("collector", "mask"), torch.ones(batch.shape, dtype=torch.bool))
    following, infos = batch["next", "observation"][mask].squeeze(-1), batch["next", "info"]
    assert set(infos.keys()) == set(KEYS)
    assert all(infos[key].dtype is torch.float64 for key in KEYS)
    assert torch.equal(infos["place"][mask], torch.stack([following, -following], dim=-1))
    assert torch.equal(infos["level"][mask], following + 2**40)
    success: Tensor = infos["success"][mask]
    assert torch.equal(success.isnan(), ~batch["next", "done"][mask].squeeze(-1))
    assert torch.equal(success[following % FRAMES == 0] == 1, following[following % FRAMES == 0] % (2 * FRAMES) == 0)
    assert infos["never"][mask].isnan().all()
    assert not any(infos[key][~mask].any() for key in KEYS)


@pytest.mark.parametrize(
    ("vector", "options"),
    [
        *((vector, {}) for vector in ENVS),
        ("sync", {"trajs_per_batch": 4}),
        ("SyncVectorEnv, same step", {"trajs_per_batch": 4}),
        ("SyncVectorEnv, next step", {"trajs_per_batch": 4}),
        ("sync", {"reset_when_done": False}),
        ("sync", {"reset_at_each_iter": True}),
        ("async", {"reset_when_done": False}),
    ],
    ids=str,
)
def test_each_frame_has_the_infos_of_its_step_and_padding_has_none(
    roll: Callable[..., Rollout], vector: str, options: dict[str, Any]
) -> None:
    rollout = roll(ENVS[vector](), **options)
    for version in range(3):
        batch = to_batch(rollout.collect(version=version))
        assert batch["next", "done"].any()
        check(batch)


def test_infos_of_environments_with_spaces_of_several_leaves(roll: Callable[..., Rollout]) -> None:
    class Tree(gymnasium.ObservationWrapper[Any, Any, Any]):
        observation_space: Any = Dict(at=Reporting.observation_space)

        def observation(self, observation: Any) -> Any:
            return {"at": observation}

    batch = to_batch(roll(make_env(spec(Vectorization.SYNC), lambda: Tree(Reporting()))).collect(version=0))
    assert torch.equal(batch["next", "info", "place"][..., :1], batch["next", "at"])


def test_environments_may_report_tensors_and_numbers_of_several_kinds(roll: Callable[..., Rollout]) -> None:
    kinds = iter([1, 0.5, torch.tensor(0.25)])
    env = make_env(spec(Vectorization.SYNC), lambda: Reporting(success=next(kinds)))
    infos = to_batch(roll(env).collect(version=0))["next", "info"]
    assert infos["success"][:, 0].tolist() == [1.0, 0.5, 0.25]


@pytest.mark.parametrize("vectorization", [Vectorization.SYNC, Vectorization.ASYNC])
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"success": "yes"}, r"the info 'success' as .*'yes'.*; expected numbers, or arrays of numbers of one shape"),
        ({"success": {"r": 1.0}}, r"the info 'success' as .*'r': 1.0.*; expected numbers"),
        ({"success": None}, r"the info 'success' as None; expected numbers"),
        ({"never": [1, 2]}, r"'never' of shape \[2\]; expected one number: for an array, return it from `reset` too"),
        ({"place": 1}, r"'place' of shape \[\]; expected \[2\], the shape in the first reset's info"),
    ],
)
def test_a_value_that_does_not_fit_is_one_error(
    roll: Callable[..., Rollout], vectorization: Vectorization, wrong: dict[str, Any], message: str
) -> None:
    rollout = roll(make_env(spec(vectorization), lambda: Reporting(**wrong)))
    with pytest.raises(EnvironmentInvalid, match=message) as caught:
        rollout.collect(version=0)
    assert "\n" not in str(caught.value)


def test_an_observation_named_info_is_refused(roll: Callable[..., Rollout]) -> None:
    class Named(Reporting):
        observation_space = Dict(info=Reporting.observation_space)

    with pytest.raises(EnvironmentInvalid, match="observations named 'info'"):
        roll(make_env(spec(Vectorization.SYNC), Named))


@pytest.mark.parametrize("vector", ["sync", "async"])
def test_infos_that_were_not_asked_for_stay_in_the_environments(roll: Callable[..., Rollout], vector: str) -> None:
    env = ENVS[vector]()
    assert not any(key[:2] == ("next", "info") for key in roll(env, info_keys=()).collect(version=0).steps)
    assert env.step(np.zeros(3, np.int64))[-1] == {}


def test_batches_have_the_infos_that_were_asked_for_in_every_place(collect: Collect) -> None:
    buffer = ReplayBuffer(1000)
    keywords: dict[str, Any] = {"num_envs": 2, "frames_per_batch": 6 * collect.workers}
    collector = collect(Reporting, info_keys=KEYS, **keywords)
    for batch in islice(collector, 3):  # 3 frames a row: no episode ends in the first batch
        buffer.extend(batch.reshape(-1))
        check(batch)
    assert buffer.sample(8)["next", "info", "success"].shape == (8,)
    collector.shutdown()
    assert ("next", "info") not in next(collect(Reporting, **keywords)).keys(True)


@pytest.mark.parametrize(
    ("vector", "options"),
    [*((vector, {}) for vector in ENVS), ("async", {"trajs_per_batch": 5}), ("sync", {"reset_when_done": False})],
    ids=str,
)
def test_the_numbers_of_last_infos_are_those_of_their_episodes(
    roll: Callable[..., Rollout], vector: str, options: dict[str, Any]
) -> None:
    rollout = roll(ENVS[vector](), info_keys=(), **options)
    for _ in range(3):
        fragment = rollout.collect(version=0)
        batch, said = to_batch(fragment), fragment.episodes
        assert set(said) == {*EPISODES, "info.level", "info.success"}
        last = batch["next", "observation"][batch["next", "done"].squeeze(-1)].squeeze(-1)
        assert said["info.level"].sort().values.tolist() == (last + 2**40).sort().values.tolist()
        assert torch.equal(said["info.success"] == 1, (said["info.level"] - 2**40) % (2 * FRAMES) == 0)


def test_an_episode_without_a_number_has_none_and_the_first_32_names_count(
    roll: Callable[..., Rollout], caplog: pytest.LogCaptureFixture
) -> None:
    class Careless(Reporting):
        def step(self, action: Any) -> Any:
            *outcome, info = super().step(action)
            odd = self._steps % (2 * FRAMES) == FRAMES
            more = {f"{self._steps} {number}": number for number in range(50)} if self._steps > 3 * FRAMES else {}
            return *outcome, {"nested": {"odd": True}} | info | more if odd else more

    rollout = roll(SyncVectorEnv([Careless], autoreset_mode=AutoresetMode.DISABLED), info_keys=())
    first, *_, last = [rollout.collect(version=0).episodes for _ in range(4)]
    assert first["info.nested.odd"].nan_to_num(-1).tolist() == [1, -1]
    assert len(last) <= 2 + MOST_NUMBERS
    said = [record.message for record in caplog.records if "numbers at the end of an episode" in record.message]
    assert said == [
        "environment SyncVectorEnv(num_envs=1) says more than 32 numbers at the end of an episode; '16 29' and others "
        "are not counted: name those that count in `episode_metrics` (`collect.episodeMetrics` of a job)"
    ]


@pytest.mark.parametrize("more", [{"map": np.zeros(2)}, {"shared": {"sizes": np.zeros(9)}}, {7: np.zeros(3)}], ids=str)
def test_infos_that_have_no_name_or_no_number_for_each_environment_say_nothing_of_an_episode(
    roll: Callable[..., Rollout], more: dict[Any, Any]
) -> None:
    class Own(SyncVectorEnv):
        def step(self, actions: Any) -> Any:
            *outcome, info = super().step(actions)
            return *outcome, info | more

    rollout = roll(Own(MAKERS, autoreset_mode=AutoresetMode.DISABLED), info_keys=())
    assert set(rollout.collect(version=0).episodes) == {*EPISODES, "info.level", "info.success"}


class Tasks(Reporting):
    """Its `task` is one of two, the number of the third, or missing."""

    def step(self, action: Any) -> Any:
        *outcome, info = super().step(action)
        tasks: list[dict[str, Any]] = [{"task": "reach"}, {"task": "push"}, {"task": 3}, {}]
        return *outcome, info | tasks[self._steps // FRAMES % 4] | {"score": {"easy": 1, "hard": 2}, "text": "y" * 1000}


@pytest.mark.parametrize("vector", ["here", "async", *(name for name in ENVS if name.startswith("SyncVectorEnv"))])
@pytest.mark.parametrize("options", [{}, {"trajs_per_batch": 5}], ids=str)
def test_the_chosen_numbers_and_the_label_are_those_of_their_episode(vector: str, options: dict[str, Any]) -> None:
    vectors: dict[str, Any] = {
        "here": lambda: make_env(spec(Vectorization.SYNC), Tasks),
        "async": lambda: make_env(spec(Vectorization.ASYNC, processes=2), Tasks),
    }
    mode = {"next step": AutoresetMode.NEXT_STEP, "same step": AutoresetMode.SAME_STEP}.get(
        vector.partition(", ")[2], AutoresetMode.DISABLED
    )
    env = vectors.get(vector, lambda: SyncVectorEnv([Tasks] * 3, autoreset_mode=mode))()
    rollout = rollout_of(env, steps=40, episode_metrics=("level", "score.*"), episode_label="task", **options)
    fragment = rollout.collect(version=0)
    rollout.close()
    said = fragment.episodes
    assert set(said) == {*EPISODES, "info.level", "info.score.easy", "info.score.hard", "label"}
    ends = ((said["info.level"].long() - 2**40) // FRAMES % 4).tolist()
    labels = [None if label != label else fragment.labels[int(label)] for label in said["label"].tolist()]
    assert labels == [["reach", "push", "3", None][end] for end in ends]


def test_more_labels_than_31_are_others_in_words(roll: Callable[..., Rollout], caplog: Any) -> None:
    rollout = roll(
        make_env(spec(Vectorization.SYNC), Reporting), info_keys=(), episode_label="level", episode_metrics=()
    )
    found = [rollout.collect(version=0) for _ in range(30)][-1]
    assert (len(found.labels), found.labels[-1], *found.episodes) == (MOST_NUMBERS, "others", *EPISODES, "label")
    assert sum("more than 31 values of the label 'level'" in record.message for record in caplog.records) == 1


def test_a_learner_has_the_numbers_of_last_infos_in_every_place(collect: Collect) -> None:
    collector = collect(Reporting, num_envs=2, frames_per_batch=8 * collect.workers)
    for _ in islice(collector, 3):
        pass
    levels, successes = collector.episode_infos["level"], collector.episode_infos["success"]
    assert len(levels) == len(successes) == len(collector.episode_returns) > 0
    assert successes == [(level - 2**40) % (2 * FRAMES) == 0 for level in levels]
    found = collector.stats().episode_statistics
    assert found["success"] == Statistic(mean=fmean(successes), min=0.0, max=1.0, count=len(successes))
    assert found["last_version"].max == max(collector.episode_table()["last_version"])
    assert (found["return"].mean, found["length"].min) == (collector.mean_return, FRAMES)


def test_statistics_are_known_for_each_label_in_every_place(collect: Collect) -> None:
    collector = collect(Tasks, num_envs=2, frames_per_batch=16 * collect.workers, episode_label="task")
    for _ in islice(collector, 3):
        pass
    table, found = collector.episode_table(), collector.stats().episode_statistics
    assert {"push", "3"} <= set(table["label"])
    for label in ("reach", "push", "3"):
        own = [level for level, each in zip(table["level"], table["label"], strict=True) if each == label]
        assert found[f"level/{label}"] == Statistic(mean=fmean(own), min=min(own), max=max(own), count=len(own))
        assert found[f"return/{label}"].mean == FRAMES
    assert "last_version/push" not in found


def test_too_many_statistics_of_labels_are_told_in_words_and_take_no_memory(
    here: Collect, caplog: pytest.LogCaptureFixture
) -> None:
    many = {f"number {number}": 1.0 for number in range(20)}
    collector = here(lambda: Reporting(**many), frames_per_batch=80, episode_label="level")
    next(collector)
    found = collector.stats().episode_statistics
    assert len(found) == MOST_STATISTICS - (MOST_NUMBERS - 21)
    assert found["number 19"].count == 80 // FRAMES
    assert sum("statistics of labels are known" in record.message for record in caplog.records) == 1


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("success", r"info_keys: expected a list, got 'success'; write `info_keys=\['success'\]`"),
        (5, r"info_keys: expected a list, got 5; write `info_keys=\[5\]`"),
        (["success", 1], r'info_keys\[1\]: expected text, got 1; write it in quotes: "1"'),
    ],
)
def test_info_keys_is_a_sequence_of_names(here: Collect, wrong: Any, message: str) -> None:
    with pytest.raises(JobInvalid, match=f"^{message}$"):
        here("CartPole-v1", num_envs=1, frames_per_batch=8, info_keys=wrong)


class Odd(Reporting):
    """Says a number under the name of Gymnasium's mask of another one, and a number under a number."""

    def step(self, action: Any) -> Any:
        *outcome, info = super().step(action)
        return *outcome, info | {"x": 1.0, "_x": 2.0, 5: 3.0}


@pytest.mark.parametrize(
    "make",
    [
        lambda: make_env(spec(Vectorization.SYNC), Odd),
        lambda: make_env(spec(Vectorization.ASYNC, processes=2), Odd),
        lambda: SyncVectorEnv([Odd] * 3),
    ],
    ids=["sync", "async", "SyncVectorEnv"],
)
def test_a_key_that_is_a_number_or_the_name_of_a_mask_is_no_error(
    roll: Callable[..., Rollout], make: Callable[[], Any]
) -> None:
    said = roll(make(), info_keys=()).collect(version=0).episodes
    assert said["info.x"].tolist() == [1.0] * len(said["info.level"])
