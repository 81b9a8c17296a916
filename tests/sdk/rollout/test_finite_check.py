"""NaN, infinity and absurd observations: the first is reported with its place, and all frames with one are counted."""

from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from tests.sdk.places import Collect

from rollfleet import Collector
from rollfleet.errors import EnvironmentInvalid, PolicyInvalid, WorkerFailed
from rollfleet.testing import CountingEnv

NAMES = {"observation": "'observation'", "final": "('next', 'observation')", "reward": "('next', 'reward')"}
AT = {"observation": 3, "final": 5, "reward": 4}  # the step of an episode of 5 that has the wrong value


class Wrong(CountingEnv):
    """Has a wrong value in one step of each episode from the second one on."""

    observation_space = Box(0, 1000, (1,))

    def __init__(self, where: str, value: float = np.nan) -> None:
        super().__init__()
        self._where, self._value = where, value

    def step(self, action: Any) -> Any:
        observation, reward, *rest = super().step(action)
        if self.steps > 5 and (self.steps - 1) % 5 + 1 == AT[self._where]:
            if self._where == "reward":
                return observation, self._value, *rest
            return np.array([self._value], np.float32), reward, *rest
        return observation, reward, *rest


def zeros(seen: Any) -> Any:
    return torch.zeros(len(seen), dtype=torch.int64)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name.startswith("rollfleet.")]


def vector(mode: AutoresetMode, where: str) -> Any:
    return lambda: SyncVectorEnv([lambda: Wrong(where)] * 2, autoreset_mode=mode)


@pytest.mark.parametrize("where", NAMES)
@pytest.mark.parametrize(
    "keywords",
    [{}, {"trajs_per_batch": 2}, {"reset_when_done": False}, *map(str, AutoresetMode)],
    ids=str,
)
def test_the_first_is_one_warning_with_its_place_and_each_frame_counts(
    caplog: pytest.LogCaptureFixture, where: str, keywords: Any
) -> None:
    env: Any = lambda: Wrong(where)  # noqa: E731
    if isinstance(keywords, str):
        mode = next(each for each in AutoresetMode if str(each) == keywords)
        env, keywords = vector(mode, where), {}
    frames = 0
    with Collector(env, zeros, num_envs=2, frames_per_batch=20, total_frames=80, **keywords) as collector:
        for batch in collector:
            real = batch["collector", "traj_ids"] >= 0
            wrong = batch["observation"].isnan() | batch["next", "reward"].isnan()
            wrong |= batch["next", "observation"].isnan() & batch["next", "done"]
            frames += int((wrong.squeeze(-1) & real).sum())
        assert 0 < frames <= collector.stats().non_finite <= frames + 2  # and whole trajectories to come
        (found,) = warnings(caplog)
    step = {"observation": 8, "final": 9, "reward": 8}[where]
    assert found.startswith("worker 0, environment 0 of <Wrong instance> (seed ")
    assert f"), frame {step}: {NAMES[where]} is nan: " in found


@pytest.mark.parametrize(("value", "wrong"), [(np.inf, True), (1.1e9, True), (9e8, False)])
def test_infinity_and_a_million_times_outside_of_the_space_count(
    caplog: pytest.LogCaptureFixture, value: float, wrong: bool
) -> None:
    with Collector(lambda: Wrong("observation", value), zeros, frames_per_batch=20) as collector:
        next(collector)
        assert collector.stats().non_finite == 3 * wrong
    assert len(warnings(caplog)) == wrong
    assert all(("a million times outside of its space" in found) == np.isfinite(value) for found in warnings(caplog))


def test_as_an_error_the_first_ends_the_run_and_ignored_it_is_none(collect: Collect) -> None:
    keywords: dict[str, Any] = {"frames_per_batch": 20}
    collector = collect(lambda: Wrong("observation"), zeros, non_finite="error", **keywords)
    with pytest.raises((EnvironmentInvalid, WorkerFailed), match=r"frame 8: 'observation' is nan, and `non_finite`"):
        list(islice(collector, 2))
    collector = collect(lambda: Wrong("observation"), zeros, non_finite="ignore", **keywords)
    assert next(collector)["observation"].isnan().any()
    assert collector.stats().non_finite == 0
    collector = collect(lambda: Wrong("observation"), zeros, **keywords)
    expected = sum(int(next(collector)["observation"].isnan().sum()) for _ in range(2))
    assert collector.stats().non_finite == expected


def test_as_an_error_it_is_raised_again_in_each_batch_that_has_one() -> None:
    with Collector(lambda: Wrong("observation"), zeros, frames_per_batch=20, non_finite="error") as collector:
        for _ in range(2):
            with pytest.raises(EnvironmentInvalid, match="'observation' is nan, and `non_finite`"):
                next(collector)


@pytest.mark.parametrize(("value", "wrong"), [(np.nan, True), (-np.inf, False)])
def test_outputs_of_a_policy_may_be_infinite_and_not_nan(value: float, wrong: bool) -> None:
    def policy(seen: Any) -> Any:
        return {"action": zeros(seen), "logits": torch.full((len(seen), 2), value)}

    with Collector(CountingEnv, policy, frames_per_batch=10) as collector:
        next(collector)
        assert collector.stats().non_finite == 10 * wrong
    collector = Collector(CountingEnv, policy, frames_per_batch=10, non_finite="error")
    with collector:
        if wrong:
            with pytest.raises(PolicyInvalid, match="frame 0: 'logits' is nan"):
                next(collector)
        else:
            next(collector)


def test_torchrls_environments_are_looked_at_as_well(caplog: pytest.LogCaptureFixture) -> None:
    from torchrl.envs import GymWrapper

    env = lambda: GymWrapper(Wrong("observation"))  # noqa: E731
    with Collector(env, frames_per_batch=20) as collector:
        batch = next(collector)
        assert collector.stats().non_finite == int(batch["observation"].isnan().sum()) > 0
    (found,) = warnings(caplog)
    assert "environment 0 of GymWrapper (seed " in found
    assert ", frame 8: 'observation' is nan: " in found


def test_infos_that_are_not_reported_are_no_fault() -> None:
    with Collector(CountingEnv, zeros, frames_per_batch=20, info_keys=["nothing"]) as collector:
        next(collector)
        assert collector.stats().non_finite == 0
