"""`rollfleet.sb3.ServedVecEnv`: what Stable-Baselines3's `DummyVecEnv` returns, from environments in servers."""

from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from tests.sdk.envs.chatty import Chatty

pytest.importorskip("stable_baselines3", reason="pip install stable-baselines3")

from gymnasium.wrappers import TimeLimit
from stable_baselines3 import PPO
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecMonitor, VecNormalize

from rollfleet.errors import EnvironmentFailed
from rollfleet.sb3 import ServedVecEnv
from rollfleet.testing import CountingEnv


def limited() -> gymnasium.Env[Any, Any]:
    return Monitor(TimeLimit(gymnasium.make("CartPole-v1"), 12))


def without_times(infos: Any) -> list[dict[str, Any]]:
    for info in infos:
        info.get("episode", {}).pop("t", None)
    return list(infos)


def test_results_are_those_of_the_serial_vector() -> None:
    ours: Any = ServedVecEnv([limited] * 5, workers=2)
    theirs: Any = DummyVecEnv([limited] * 5)
    for envs in (ours, theirs):
        envs.seed(3)
    np.testing.assert_array_equal(ours.reset(), theirs.reset())
    rng, truncated = np.random.default_rng(0), 0
    for _ in range(60):
        actions = rng.integers(0, 2, 5)
        (*one, infos), (*other, expected) = ours.step(actions), theirs.step(actions)
        for found, wanted in zip(one, other, strict=True):
            np.testing.assert_array_equal(found, wanted)
            assert found.dtype == wanted.dtype
        np.testing.assert_equal(without_times(infos), without_times(expected))
        truncated += sum(info["TimeLimit.truncated"] for info in infos)
    assert truncated > 3
    ours.close()


def test_a_call_reaches_the_environments_that_it_names() -> None:
    envs = ServedVecEnv([limited, lambda: gymnasium.make("CartPole-v1"), limited, limited], workers=2)
    assert envs.env_is_wrapped(Monitor) == [True, False, True, True]
    assert envs.env_is_wrapped(gymnasium.Wrapper, [1, 0]) == [True, True]
    envs.set_attr("gravity", [1, 2], indices=[0, -1])
    assert envs.get_attr("gravity") == [[1, 2], 9.8, 9.8, [1, 2]]
    assert envs.get_attr("gravity", indices=[3, 1]) == [[1, 2], 9.8]
    assert envs.env_method("get_wrapper_attr", "gravity", indices=2) == [9.8]
    assert envs.has_attr("gravity")
    assert not envs.has_attr("grace")
    envs.close()


def test_environments_have_options_of_their_own() -> None:
    envs = ServedVecEnv([Chatty] * 3, workers=2)
    envs.set_options([{"a": 1}, {}, {"a": 2}])
    envs.reset()
    assert [info["options"] for info in envs.reset_infos] == ["{'a': 1}", "{}", "{'a': 2}"]
    envs.reset()
    assert {info["options"] for info in envs.reset_infos} == {"{}"}
    images = envs.get_images()
    assert [image.shape for image in images] == [(2, 2, 3)] * 3
    actions = [envs.action_space.sample() for _ in range(3)]
    observations: Any = envs.step(actions)[0]  # type: ignore[arg-type]
    assert observations["arm"]["angle"].shape == (3, 2)
    envs.close()


def test_ppo_learns_on_servers_as_on_the_serial_vector() -> None:
    found: list[Any] = []
    for kind, kwargs in ((ServedVecEnv, {"workers": 2}), (DummyVecEnv, {})):
        envs: Any = VecNormalize(VecMonitor(kind([partial(gymnasium.make, "CartPole-v1")] * 4, **kwargs)))
        model = PPO("MlpPolicy", envs, n_steps=32, batch_size=64, n_epochs=1, seed=1, device="cpu")
        model.learn(256)
        found.append((envs.obs_rms.mean.tolist(), [episode["r"] for episode in model.ep_info_buffer or ()]))
        envs.close()
    assert found[0] == found[1]
    assert found[0][1]


@pytest.mark.parametrize("options", [None, {"level": 1}])
def test_after_an_error_of_a_step_all_environments_can_be_reset(options: dict[str, int] | None) -> None:
    envs, actions = ServedVecEnv([partial(CountingEnv, breaks_at=2), CountingEnv], workers=2), np.zeros(2, np.int64)
    envs.reset()
    envs.step(actions)
    with pytest.raises(EnvironmentFailed, match="the simulator broke"):
        envs.step(actions)
    envs.set_options(options)
    envs.reset()
    observations: Any = envs.step(actions)[0]
    assert observations[0] == observations[1]
    envs.close()
