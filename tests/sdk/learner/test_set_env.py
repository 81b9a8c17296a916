"""Settings of environments: each has them from its next reset on, and each frame says which ones its episode has."""

from functools import partial
from itertools import islice
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorWrapper
from tests.job_server import Connect, Server
from tests.sdk.counting import Learned, always_0
from tests.sdk.places import Collect
from tests.sdk.rollouts import Observing
from tests.waiting import wait_until

import rollfleet
from rollfleet.errors import JobInvalid, RollfleetError, Timeout

ENV_VERSION, TRAJECTORY, MASK = ("collector", "env_version"), ("collector", "traj_ids"), ("collector", "mask")
OPTIONS: dict[str, Any] = {"num_envs": 2, "frames_per_batch": 24}  # 12 steps of one worker, 6 of two


class Levels(Observing):
    """Observes the level of its settings, 0 without; episodes of 3 frames, and of 5 in every other environment."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float64)
    fails = False

    def __init__(self, length: int = 3) -> None:
        self.length, self.level, self._next = length, 0, 0

    def seen(self) -> Any:
        return np.array([self.level], np.float64)

    def set_level(self, settings: dict[str, Any]) -> None:
        self._next = settings.get("level", 0)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.level = (options or {}).get("level", self._next)
        return super().reset(seed=seed)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self.level == 2 and self.frame == 1 and self.fails:
            raise ConnectionError
        return super().step(action)


class Failing(Levels):
    fails = True


def batched(num_envs: int, mode: str = "NextStep") -> "BatchOfLevels":
    makers = [partial(Levels, 3 + 2 * n) for n in range(num_envs)]
    return BatchOfLevels(makers, autoreset_mode=AutoresetMode(mode))


class BatchOfLevels(SyncVectorEnv):
    def set_level(self, settings: dict[str, Any]) -> None:
        self.call("set_level", settings)


def check(batch: Any, levels: list[int]) -> set[int]:
    """Check that each frame has the level of its version, `levels[version]`. Returns the versions."""
    versions, seen = batch[ENV_VERSION], batch["observation"][..., 0]
    real = batch.get(MASK, torch.ones(batch.shape, dtype=torch.bool))
    assert versions.dtype is torch.int64
    assert torch.equal(torch.tensor(levels)[versions][real].double(), seen[real])
    same = (batch[TRAJECTORY][:, 1:] == batch[TRAJECTORY][:, :-1]) & real[:, 1:]
    assert torch.equal(versions[:, 1:][same], versions[:, :-1][same])
    return set(versions[real].tolist())


@pytest.mark.parametrize(
    "more",
    [
        pytest.param({}, id="one-by-one"),
        pytest.param({"settings_method": "set_level"}, id="method"),
        pytest.param({"reset_when_done": False}, id="waiting"),
        pytest.param({"frames_per_batch": None, "trajs_per_batch": 3}, id="trajectories"),
        pytest.param({"vectorization": "async"}, id="processes"),
    ],
)
def test_each_frame_has_the_version_of_its_episodes_settings(collect: Collect, more: dict[str, Any]) -> None:
    collector = collect(Levels, always_0, **{**OPTIONS, **more})
    assert ENV_VERSION not in next(collector).keys(True)
    for version, level in enumerate((7, 4, 2), 1):
        assert collector.set_env({"level": level}) == version
        collector.wait_for_env_version(version, timeout_s=30)
        versions = [check(each, [0, 7, 4, 2]) for each in islice(collector, 3)]
        assert versions[-1] == {version}


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_a_batch_of_environments_takes_settings_by_its_method(here: Collect, mode: str) -> None:
    options = OPTIONS | {"vectorization": "native", "env_kwargs": {"mode": mode}}
    collector = here(batched, always_0, settings_method="set_level", **options)
    next(collector)
    for version in (1, 2, 3):
        collector.set_env({"level": version})
        assert version in check(next(collector), [0, 1, 2, 3])


def test_torchrls_environments_take_settings_by_their_method(collect: Collect) -> None:
    def make() -> Any:
        from torchrl.envs import GymWrapper

        return GymWrapper(Levels())

    collector = collect(make, None, settings_method="set_level", **OPTIONS | {"num_envs": 1})
    for version in (1, 2):
        collector.set_env({"level": version})
        for batch in islice(collector, 2):
            check(batch, [0, 1, 2])


def test_an_environment_that_replaces_another_has_its_settings(collect: Collect) -> None:
    collector = collect(Failing, always_0, env_failures={"maxShare": 1.0}, **OPTIONS)
    next(collector)
    collector.set_env({"level": 2})
    next(collector)
    batch = next(collector)
    assert check(batch, [0, 2]) == {1}
    assert batch["collector", "failed"].any()


def test_environments_in_servers_take_settings_and_fail_one_by_one_with_a_device_too(here: Collect) -> None:
    envs = rollfleet.make_vec(Failing, num_envs=2, workers=1)
    collector = here(envs, always_0, env_device="cpu", env_failures={"maxShare": 1.0}, **OPTIONS)
    collector.set_env({"level": 2})
    batch = next(collector)
    assert check(batch, [0, 2]) == {1}
    assert batch["collector", "failed"].any()


def test_environments_in_servers_take_no_settings_through_a_wrapper_of_their_vector(here: Collect) -> None:
    envs: Any = VectorWrapper(rollfleet.make_vec(Levels, num_envs=2, workers=1))
    collector = here(envs, always_0, **OPTIONS)
    collector.set_env({"level": 1})
    with pytest.raises(RollfleetError, match=r"`make_vec` in a wrapper takes no settings; .* without the wrapper"):
        next(collector)


def test_a_function_sets_each_environment_of_each_worker(collect: Collect) -> None:
    collector = collect(Levels, always_0, **OPTIONS)
    collector.set_env(lambda worker, env: {"level": np.int64(10 * worker + env)})
    seen = next(collector)["observation"][:, 0, 0]
    assert seen.tolist() == [10 * worker + env for worker in range(collect.workers) for env in range(2)]


def test_workers_that_join_have_the_settings(processes: Collect) -> None:
    collector = processes(Levels, always_0, mode="async", **OPTIONS)
    collector.set_env(lambda worker, _: {"level": worker + 1})
    next(collector)
    (new,) = collector.add_workers()
    wait_until(lambda: len(collector.stats().workers) == 3)
    collector.wait_for_env_version(1, timeout_s=30)
    assert new == 2
    seen = {level for batch in islice(collector, 12) for level in batch["observation"].unique().tolist()}
    assert seen == {1.0, 2.0}  # the third worker has those of the first


def test_a_restored_run_has_the_settings_of_its_state(collect: Collect) -> None:
    first = collect(Levels, always_0, **OPTIONS)
    first.set_env({"level": 1})
    first.set_env({"level": 5})
    next(first)
    state = first.state_dict()
    first.shutdown()

    mode = {"mode": "async"} if collect.workers > 1 else {}
    second = collect(Levels, always_0, **mode, **OPTIONS)
    second.load_state_dict(state)
    assert check(next(second), [0, 1, 5]) == {2}
    second.load_state_dict({key: value for key, value in state.items() if "env" not in key})  # of an earlier release
    for wrong in ("{", "3", "[]", "[[3]]"):
        with pytest.raises(JobInvalid, match=r"state\['env_settings'\]: no (settings|plain value): "):
            second.load_state_dict(state | {"env_settings": wrong})


def test_a_learner_that_takes_over_without_a_state_begins_without_settings(server: Server, connect: Connect) -> None:
    env = {"entrypoint": f"{__name__}:Levels", "numEnvs": 2}
    server.start_workers(mode="Sync", workers=1, env=env, policy={"random": {}}, collect={"framesPerBatch": 24})
    first = connect()
    first.set_env({"level": 3})
    next(first)
    state = first.state_dict()
    first.detach()

    second = connect()
    next(second)  # episodes of the first learner end in it
    assert check(next(second), [0, 3, 0]) == {2}
    second.load_state_dict(state)
    next(second)
    assert check(next(second), [0, 3, 0, 3]) == {3}
    second.shutdown()


def test_evaluation_has_settings_of_its_own(here: Collect) -> None:
    class Paid(Levels):
        def step(self, action: Any) -> Any:
            observation, _, *rest = super().step(action)
            return observation, float(self.level), *rest

    evaluation = {"every": 1, "episodes": 2, "settings": {"level": 9}}
    collector = here(Paid, Learned(), evaluation=evaluation, **OPTIONS)
    collector.set_env({"level": 1})
    next(collector)
    assert collector.evaluations[0].mean_return == 27.0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (3, 'settings: expected a dict such as {"level": 3}, got 3'),
        (lambda worker, env: [env], r"settings: expected a dict such as .*, got \[0\]"),
        ({1: 2}, "settings: expected a dict"),
        ({"level": object()}, "settings: they cannot be sent: object is no number, text, list, dict or array"),
        ({"map": np.random.default_rng(0).random(100_000)}, "settings: .* set a name or a seed"),
    ],
)
def test_wrong_settings_are_named_and_change_nothing(here: Collect, settings: Any, message: str) -> None:
    collector = here(Levels, always_0, **OPTIONS)
    with pytest.raises(JobInvalid, match=message):
        collector.set_env(settings)
    assert ENV_VERSION not in next(collector).keys(True)
    with pytest.raises(Timeout, match=r"env_version 1 was not sent within 0 s; the newest is 0"):
        collector.wait_for_env_version(1, timeout_s=0)


@pytest.mark.parametrize(
    ("env", "more", "settings", "message"),
    [
        (Levels, {"settings_method": "set_lvl"}, {}, "has no method 'set_lvl', which `settings_method`"),
        (batched, {"vectorization": "native"}, {}, "resets its environments by itself: name the method"),
        (
            batched,
            {"vectorization": "native", "settings_method": "set_level"},
            lambda _, env: {"level": env},
            "takes one dict of settings for all its environments",
        ),
    ],
)
def test_environments_that_cannot_take_settings_say_so(
    collect: Collect, env: Any, more: dict[str, Any], settings: Any, message: str
) -> None:
    collector = collect(env, always_0, **OPTIONS, **more)
    collector.set_env(settings)
    with pytest.raises(RollfleetError, match=message):
        list(islice(collector, 3))
