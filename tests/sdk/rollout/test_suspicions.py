"""Values that are allowed, and most likely mistakes: one warning each, at the first."""

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete, Space
from torch import Tensor

from rollfleet import Collector
from rollfleet.testing import CountingEnv

FRAMES = 16  # of an environment in a batch: three episodes


class Actions(CountingEnv):
    """Takes actions of any space."""

    def __init__(self, space: Space[Any]) -> None:
        super().__init__()
        self.action_space: Any = space

    def step(self, action: Any) -> Any:
        return super().step(0)


class Reporting(CountingEnv):
    """Reports its success at the end of an episode."""

    def step(self, action: Any) -> Any:
        *outcome, _ = super().step(action)
        return *outcome, {"success": True, "lives": 3} if outcome[2] else {}


def warnings(caplog: pytest.LogCaptureFixture, env: Any, policy: Any = None, **keywords: Any) -> list[str]:
    """Return the warnings of four batches."""
    with Collector(env, policy, num_envs=2, frames_per_batch=2 * FRAMES, **keywords) as collector:
        for _ in range(4):
            next(collector)
    return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


def constant(value: Any) -> Any:
    return lambda seen: torch.as_tensor(value).expand(len(seen), *np.shape(value)).clone()


@pytest.mark.parametrize(
    ("space", "inside", "outside"),
    [
        (Box(-1, 1, (2,)), [0.5, -1.0], [0.5, 1.5]),
        (Discrete(3, start=5), 7, 8),
        (MultiDiscrete([2, 3]), [1, 2], [0, 3]),
    ],
    ids=["box", "discrete", "multi"],
)
def test_an_action_outside_of_its_space_is_one_warning(
    caplog: pytest.LogCaptureFixture, space: Space[Any], inside: Any, outside: Any
) -> None:
    assert warnings(caplog, lambda: Actions(space), constant(inside), reset_when_done=False) == []
    (found,) = warnings(caplog, lambda: Actions(space), constant(outside))
    assert str(space) in found


def test_an_action_in_a_dict_is_checked_as_well(caplog: pytest.LogCaptureFixture) -> None:
    space = Dict(left=Discrete(2), right=Box(-1, 1, ()))

    def policy(seen: Tensor) -> Any:
        return {"action": {"left": torch.zeros(len(seen)).long(), "right": torch.full((len(seen),), 3.0)}}

    (found,) = warnings(caplog, lambda: Actions(space), policy)
    assert "the action 3.0, outside of Box" in found


def test_an_info_that_no_frame_has_is_one_warning_that_names_the_others(caplog: pytest.LogCaptureFixture) -> None:
    assert warnings(caplog, Reporting, info_keys=["success"]) == []
    (found,) = warnings(caplog, Reporting, info_keys=["success", "sucess"])
    assert "'sucess' by the end of an episode; they have 'lives', 'success'" in found


def test_values_of_nested_infos_have_dotted_keys() -> None:
    def env() -> gymnasium.Env[Any, Any]:
        return gymnasium.wrappers.RecordEpisodeStatistics(CountingEnv())

    for each in (env, lambda: gymnasium.vector.SyncVectorEnv([env, env])):
        with Collector(each, num_envs=2, frames_per_batch=40, info_keys=["episode.r"]) as collector:
            batch = next(collector)
        infos, done = batch["next", "info", "episode.r"], batch["next", "done"].squeeze(-1)
        assert done.any()
        assert torch.equal(infos.isnan(), ~done)
        assert infos[done].tolist() == list(collector.episode_returns)
