"""Environments that fail one by one: their episodes end at the last complete transition, and the others go on."""

import math
import re
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from tests.sdk.counting import OPTIONS, always_0
from tests.sdk.places import Collect
from tests.sdk.rollout.failing import FAILED, NO_LIMIT, TRAJECTORY, Failing, check
from tests.sdk.rollout.recurrent_policy import LANES, Recurrent
from tests.sdk.rollouts import Observing, collected, poles, rollout_of

import rollfleet
from rollfleet.data.batch import to_batch
from rollfleet.envs.serial import SerialVectorEnv
from rollfleet.envs.subprocesses import ProcessVectorEnv
from rollfleet.errors import EnvironmentFailed, EnvironmentInvalid, JobInvalid
from rollfleet.testing import CountingEnv
from rollfleet_api.messages import MOST_NUMBERS
from rollfleet_api.placement import EnvironmentFailuresSpec


@pytest.mark.parametrize("more", [{}, {"trajs_per_batch": 5}], ids=["rows", "whole trajectories"])
@pytest.mark.parametrize(
    ("how", "vectorization", "share", "failures"),
    [
        ("raises", "sync", 0.02, NO_LIMIT),
        ("raises", "async", 0.02, NO_LIMIT),
        ("dies", "async", 0.005, NO_LIMIT),
        ("hangs", "async", 0.005, NO_LIMIT | {"stepTimeoutSeconds": 1.0}),
        ("raises", "servers", 0.02, NO_LIMIT),
        ("dies", "servers", 0.005, NO_LIMIT),
        ("hangs", "servers", 0.005, NO_LIMIT | {"stepTimeoutSeconds": 1.0}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_failed_episode_ends_at_its_last_complete_transition(
    how: str, vectorization: str, share: float, failures: dict[str, Any], more: dict[str, Any]
) -> None:
    kwargs = {"share": share, "how": how}
    env: Any = Failing
    if vectorization == "servers":
        env = rollfleet.make_vec(Failing, num_envs=4, workers=2, env_kwargs=kwargs)
    else:
        more = more | {"num_envs": 4, "vectorization": vectorization, "env_kwargs": kwargs}
    with rollfleet.Collector(env, frames_per_batch=256, env_failures=failures, **more) as collector:
        failed = ended = 0
        while not (failed and ended):
            found = check(next(collector))
            failed, ended = failed + found[0], ended + found[1]
        (name,), (worker,) = (stats := collector.stats()).failed_episodes, stats.workers.values()
    newest = re.match(rf"environment (\d): {name}, (\d+) times in the hour before ", worker.newest_failure)
    assert newest
    assert int(newest[1]) < 4
    assert 0 < int(newest[2]) <= stats.failed_episodes[name]
    assert name == {"raises": "ConnectionError", "dies": "ChildProcessError", "hangs": "TimeoutError"}[how]
    assert set(collector.episode_lengths) <= {40}, "the return of a failed episode is none"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_million_frames_with_failures_are_true_and_the_mean_return_is_unbiased() -> None:
    class Priced(Failing):
        """Each episode has a price, which is not seen before its last frame."""

        length = 10

        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            observation, reward, *rest = super().step(action)
            return observation, reward + (self._name - 0.5) * (self.frame == self.length), *rest

    returns, failed = [], 0
    with rollfleet.Collector(
        Priced, env_kwargs={"share": 0.01}, num_envs=8, frames_per_batch=8000, total_frames=1_000_000, env_failures={}
    ) as collector:
        for batch in collector:
            last = (batch["observation"][..., 1] == 9).unsqueeze(-1)
            price = (batch["observation"][..., :1] - 0.5) * last
            batch["next", "reward"] -= price.float()
            batch["next", "reward"].round_()
            failed += check(batch)[0]
            ended = batch["next", "terminated"]
            returns += price[ended].tolist()
    assert failed > 5000
    error = np.std(returns) / len(returns) ** 0.5
    assert abs(np.mean(returns)) < 4 * error, "p < 0.0001"


class Chain(Observing):
    """Goes among three states as `moves` say, and ends with `END` at each step. One state fails."""

    observation_space = gymnasium.spaces.Box(0, 2, (1,), np.float64)
    moves = np.array([[0.6, 0.3, 0.1], [0.2, 0.5, 0.3], [0.1, 0.2, 0.7]])
    END, GAMMA, FAILS = 0.05, 0.9, 0.015

    @classmethod
    def values(cls) -> torch.Tensor:
        """Return the closed form of the states' values."""
        stays = np.eye(3) - cls.GAMMA * (1 - cls.END) * cls.moves
        return torch.from_numpy(np.linalg.solve(stays, np.arange(3.0)))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if seed is not None:
            self.np_random = np.random.default_rng(seed)
        self._state = int(self.np_random.integers(3))
        return np.array([self._state]), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        fails, moves, ends = self.np_random.random(3)
        if self._state == 2 and fails < self.FAILS:
            raise ConnectionError("the simulator is gone")
        reward = self._state + self.np_random.normal()
        self._state = int(np.searchsorted(self.moves[self._state].cumsum(), moves))
        return np.array([self._state]), reward, bool(ends < self.END), False, {}


@pytest.mark.slow
def test_an_estimate_of_values_is_unbiased_where_a_tenth_of_the_episodes_fails_in_one_state() -> None:
    values, errors, failing = Chain.values(), [], []
    failed = ended = 0
    with rollfleet.Collector(
        Chain, num_envs=8, frames_per_batch=8000, total_frames=120_000, env_failures={}
    ) as collector:
        for batch in collector:
            now, then = (values[each["observation"][..., 0].long()] for each in (batch, batch["next"]))
            bootstrap = Chain.GAMMA * then * ~batch["next", "terminated"][..., 0]
            errors.append((batch["next", "reward"][..., 0] + bootstrap - now).flatten())
            failing.append(batch[FAILED].flatten())
            failed, ended = failed + int(batch[FAILED].sum()), ended + int(batch["next", "done"].sum())
    found, flagged = torch.cat(errors), torch.cat(failing)
    assert 0.08 < failed / ended < 0.15

    def p_value(errors: torch.Tensor) -> float:
        return math.erfc(abs(float(errors.mean() / errors.std())) * (len(errors) / 2) ** 0.5)

    assert p_value(found) > 0.001
    ends = torch.where(flagged, found - Chain.GAMMA * values.mean(), found)
    assert p_value(ends) < 0.001, "what a failure that looks like an end would do is seen"


def test_the_others_do_not_notice() -> None:
    def others(at: int) -> Any:
        env = SerialVectorEnv([Failing, Failing, partial(Failing, at=at)])
        return collected(rollout_of(env, always_0, failures=EnvironmentFailuresSpec(max_share=1.0)), 20)[:2]

    without, beside = others(0), others(7)
    for key in without.keys(True, True):
        if key != TRAJECTORY:
            assert torch.equal(without[key], beside[key]), key


class Breaking(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Breaks at its 20th step."""

    steps = 0

    def step(self, action: Any) -> Any:
        self.steps += 1
        if self.steps == 20:
            raise ConnectionError("the simulator is gone")
        return self.env.step(action)


def test_the_next_episode_begins_with_a_new_hidden_state() -> None:
    policy = Recurrent()
    with rollfleet.Collector(
        lambda: Breaking(poles()),
        policy,
        num_envs=LANES,
        frames_per_batch=LANES * 90,
        env_failures=NO_LIMIT,
        is_init=True,
    ) as collector:
        batch = next(collector)
    assert batch[FAILED].sum(1).tolist() == [4] * LANES
    policy.assert_replayed(batch, policy.start.expand(LANES, -1))


def test_failures_are_counted_in_all_places(collect: Collect) -> None:
    collector = collect(Failing, always_0, env_kwargs={"share": 0.05}, env_failures=NO_LIMIT, **OPTIONS)
    failed = 0
    while failed < 3:
        failed += check(next(collector))[0]
    assert collector.stats().failed_episodes["ConnectionError"] >= failed


@pytest.mark.parametrize(
    ("kwargs", "error", "message"),
    [
        (
            {"share": 1.0},
            EnvironmentInvalid,
            "10 of the last 10 episodes failed, .*`maxShare`, 0.5, .*simulator is gone",
        ),
        ({"resets": False}, EnvironmentFailed, "environment 0 was replaced 5 times, and failed each time"),
    ],
    ids=["each step", "each reset"],
)
def test_an_environment_that_always_fails_ends_the_run(
    kwargs: dict[str, Any], error: type[Exception], message: str
) -> None:
    with (
        rollfleet.Collector(Failing, env_kwargs=kwargs, num_envs=2, frames_per_batch=64, env_failures={}) as collector,
        pytest.raises(error, match=f"(?s){message}"),
    ):
        next(collector)


def processes(count: int = 0) -> ProcessVectorEnv:
    return ProcessVectorEnv([Failing, Failing], count or 2)


def test_a_process_that_died_between_two_steps_answers_no_call_and_costs_its_episode() -> None:
    env = processes()
    rollout = rollout_of(env, always_0, failures=EnvironmentFailuresSpec(max_share=1.0))
    before = to_batch(rollout.collect(version=0)).clone()
    env.processes[1].kill()
    with pytest.raises(EnvironmentFailed, match="environments 1 to 1"):
        env.call("length")
    after = to_batch(rollout.collect(version=0)).clone()
    rollout.close()
    assert torch.equal(after["observation"][0, 0], before["next", "observation"][0, -1])
    assert after["observation"][1, 0, 1] == 0
    check(after)


class Diverging(Failing):
    """Observes NaN at its ninth frame."""

    def seen(self) -> Any:
        return np.array([self._name, np.nan if self.frame == 9 else self.frame])


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_an_observation_outside_of_its_space_is_a_failure_if_asked_for(vectorization: str) -> None:
    failures = NO_LIMIT | {"checkObservations": True}
    with rollfleet.Collector(
        Diverging, num_envs=2, frames_per_batch=64, env_failures=failures, vectorization=vectorization
    ) as collector:
        batch = next(collector)
        (name,) = collector.stats().failed_episodes
    assert check(batch) == (6, 0)
    assert name.endswith("ObservationOutside")


class Inventive(Failing):
    """Each error has a class of its own."""

    def step(self, action: Any) -> Any:
        if self.frame == 3:
            raise type(f"Error{id(object())}-{self._name}", (Exception,), {})
        return super().step(action)


def test_errors_of_many_classes_are_counted_as_others() -> None:
    rollout = rollout_of(
        SerialVectorEnv([Inventive]), always_0, steps=400, failures=EnvironmentFailuresSpec(max_share=1.0)
    )
    counts = rollout.collect(version=0).failed_episodes
    rollout.close()
    assert len(counts) == MOST_NUMBERS
    assert counts["others"] == sum(counts.values()) - (MOST_NUMBERS - 1) > 0


def own_vector() -> SyncVectorEnv:
    return SyncVectorEnv([CountingEnv, CountingEnv], autoreset_mode=AutoresetMode.DISABLED)


def torchrl_env() -> Any:
    from torchrl.envs import GymEnv

    return GymEnv("CartPole-v1")


@pytest.mark.parametrize(
    ("env", "more", "message"),
    [
        (own_vector, {}, "replaces no single environment; remove `env_failures`"),
        (torchrl_env, {}, "TorchRL's environments cannot be replaced one by one; remove `env_failures`"),
        (Failing, {"env_failures": {"resetTimeoutSeconds": 1}}, "write `vectorization='async'`"),
        (Failing, {"reset_when_done": False}, "remove `reset_when_done`"),
        (
            Failing,
            {"vectorization": "async", "processes": rollfleet.Processes(env_processes=1)},
            "has a process of its own; remove `env_processes`",
        ),
    ],
)
def test_what_cannot_be_is_refused(env: Any, more: dict[str, Any], message: str) -> None:
    keywords: dict[str, Any] = {"env_failures": {}, "num_envs": 2, "frames_per_batch": 16} | more
    with pytest.raises(JobInvalid, match=message):
        rollfleet.Collector(env, always_0, **keywords)
