"""Environments that fail one by one: their episodes end at the last complete transition, and the others go on."""

import os
import time
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from tests.sdk.counting import OPTIONS, always_0
from tests.sdk.places import Collect
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

FAILED, TRAJECTORY = ("collector", "failed"), ("collector", "traj_ids")
NO_LIMIT = {"maxShare": 1.0}


class Failing(Observing):
    """Observes a number of the episode's own, and the frame in it, which is the reward of a step from there, too.

    Some steps fail, by this share of them: with an exception, the end of the process, or without an end. `at`, if it
    is not 0, is a step of each episode that fails.
    """

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float64)
    length = 40

    def __init__(self, share: float = 0.0, how: str = "raises", at: int = 0, resets: bool = True) -> None:
        self._share, self._how, self._at, self._resets = share, how, at, resets
        self._name = 0.0

    def seen(self) -> Any:
        return np.array([self._name, self.frame])

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if not self._resets:
            raise ConnectionError("no simulator")
        if seed is not None:
            self.np_random = np.random.default_rng(seed)
        self._name = self.np_random.random()
        self.frame = 0
        return self.seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self.np_random.random() < self._share or self.frame + 1 == self._at:
            if self._how == "dies":
                os._exit(3)
            time.sleep(0 if self._how == "raises" else 3600)
            raise ConnectionError("the simulator is gone")
        observation, _, *rest = super().step(action)
        return observation, self.frame - 1.0, *rest


def check(batch: Any) -> tuple[int, int]:
    """Check each transition of a batch; return the numbers of failed episodes, and of those that ended well."""
    mask = batch.get(("collector", "mask"), torch.ones(batch.shape, dtype=torch.bool))
    before, after = batch["observation"], batch["next", "observation"]
    truncated, done = batch["next", "truncated"][..., 0], batch["next", "done"][..., 0]
    failed, ids = batch[FAILED], batch[TRAJECTORY]
    assert torch.equal(before[..., 0][mask], after[..., 0][mask])
    assert torch.equal(before[..., 1][mask] + 1, after[..., 1][mask])
    assert torch.equal(before[..., 1][mask].float(), batch["next", "reward"][..., 0][mask])
    assert (truncated | ~failed).all()
    goes_on = (ids[:, 1:] == ids[:, :-1])[mask[:, 1:]]
    assert torch.equal(goes_on, ~done[:, :-1][mask[:, 1:]])
    assert torch.equal(after[:, :-1][mask[:, 1:]][goes_on], before[:, 1:][mask[:, 1:]][goes_on])
    assert (before[:, 1:, 1][mask[:, 1:]][~goes_on] == 0).all()
    return int(failed.sum()), int((done & ~failed).sum())


@pytest.mark.parametrize("more", [{}, {"trajs_per_batch": 5}], ids=["rows", "whole trajectories"])
@pytest.mark.parametrize(
    ("how", "vectorization", "share", "failures"),
    [
        ("raises", "sync", 0.02, NO_LIMIT),
        ("raises", "async", 0.02, NO_LIMIT),
        ("dies", "async", 0.005, NO_LIMIT),
        ("hangs", "async", 0.005, NO_LIMIT | {"stepTimeoutSeconds": 1.0}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_failed_episode_ends_at_its_last_complete_transition(
    how: str, vectorization: str, share: float, failures: dict[str, Any], more: dict[str, Any]
) -> None:
    with rollfleet.Collector(
        Failing,
        env_kwargs={"share": share, "how": how},
        num_envs=4,
        vectorization=vectorization,
        frames_per_batch=256,
        env_failures=failures,
        **more,
    ) as collector:
        failed = ended = 0
        while not (failed and ended):
            found = check(next(collector))
            failed, ended = failed + found[0], ended + found[1]
        (name,) = collector.stats().failed_episodes
    assert name == {"raises": "ConnectionError", "dies": "ChildProcessError", "hangs": "TimeoutError"}[how]
    assert set(collector.episode_lengths) <= {40}, "the return of a failed episode is none"


@pytest.mark.slow
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
        (partial(processes, 1), {}, "has 1 processes: .* make it without `processes`"),
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
