"""`rollfleet.make_vec`: the numbers of Gymnasium's `SyncVectorEnv`, from environments in servers."""

import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Text
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from tests.running import gone
from tests.sdk.envs.chatty import Chatty
from tests.sdk.rollout.robot import Robot
from tests.sdk.same_values import assert_same

import rollfleet
from rollfleet.envs.failures import FAILURES
from rollfleet.errors import EnvironmentFailed, EnvironmentInvalid, JobInvalid
from rollfleet_api.placement import EnvironmentFailuresSpec


@pytest.fixture(params=["processes", "other hosts"])
def two_servers(request: pytest.FixtureRequest, certificate: Path) -> dict[str, Any]:
    """Where environments are, as arguments of `make_vec`."""
    if request.param == "processes":
        return {"workers": 2}
    return {"servers": request.getfixturevalue("addresses"), "certificate": certificate}


@pytest.mark.parametrize("mode", AutoresetMode)
def test_results_are_those_of_gymnasiums_serial_vector(mode: AutoresetMode, two_servers: dict[str, Any]) -> None:
    theirs = SyncVectorEnv([Chatty] * 5, autoreset_mode=mode)
    ours = rollfleet.make_vec(Chatty, num_envs=5, autoreset_mode=mode.value, **two_servers)
    assert (ours.single_observation_space, ours.observation_space) == (
        Chatty.observation_space,
        theirs.observation_space,
    )
    assert (ours.single_action_space, ours.action_space) == (Chatty.action_space, theirs.action_space)
    assert (ours.num_envs, ours.metadata, ours.render_mode) == (5, theirs.metadata, "rgb_array")
    seeds: list[Any] = [3, [4, None, 6, 7, 8]]
    for seed in seeds:
        assert_same(*(env.reset(seed=seed, options={"a": 1}) for env in (ours, theirs)))
    theirs.action_space.seed(0)
    ended = 0
    for _ in range(150):
        actions = theirs.action_space.sample()
        outcome, expected = ours.step(actions), theirs.step(actions)
        assert_same(outcome, expected)
        done = outcome[2] | outcome[3]
        ended += done.sum()
        if done.any() and mode is AutoresetMode.DISABLED:
            for again_seed in (None, 9):
                again = [env.reset(seed=again_seed, options={"reset_mask": done.copy()}) for env in (ours, theirs)]
                assert_same(*again)
    assert ended > 10
    assert_same(ours.render(), theirs.render())
    for env in (ours, theirs):
        env.set_attr("_left", [5, 6, 7, 8, 9])
    assert ours.get_attr("_left") == theirs.get_attr("_left") == (5, 6, 7, 8, 9)
    assert ours.call("grow", 2, times=3) == theirs.call("grow", 2, times=3)
    assert ours.np_random_seed == theirs.np_random_seed
    assert [one.random() for one in ours.np_random] == [one.random() for one in theirs.np_random]
    ours.close()


def test_results_are_the_callers_own() -> None:
    envs = rollfleet.make_vec("CartPole-v1", num_envs=2, workers=1)
    first, _ = envs.reset(seed=0)
    kept = first.copy()
    envs.step([0, 1])
    np.testing.assert_array_equal(first, kept)
    envs.close()


@pytest.mark.parametrize("seed", [np.int64(3), np.arange(3, 5)], ids=["number", "array"])
def test_seeds_may_be_of_numpy(seed: Any) -> None:
    envs = rollfleet.make_vec("CartPole-v1", num_envs=2, workers=1)
    first, _ = envs.reset(seed=3)
    np.testing.assert_array_equal(envs.reset(seed=seed)[0], first)
    envs.close()


def test_environments_that_are_sent_apart_step_as_those_sent_together(two_servers: dict[str, Any]) -> None:
    theirs = SyncVectorEnv([Chatty] * 6)
    ours = rollfleet.make_vec(Chatty, num_envs=6, batch_size=3, **two_servers)
    theirs.action_space.seed(0)
    actions = [theirs.action_space.sample() for _ in range(80)]
    expected = [(*theirs.reset(seed=0)[:1], np.zeros(6), *[np.zeros(6, np.bool_)] * 2)] + [
        theirs.step(each) for each in actions
    ]
    ours.async_reset(seed=0)
    leaves: list[Callable[[Any], Any]] = [lambda a: a["move"]]
    leaves += [lambda a: a["keys"][0], lambda a: a["keys"][1], lambda a: a["keys"][2], lambda a: a["small"]]
    steps = np.zeros(6, int)
    seen: set[tuple[int, ...]] = set()
    while steps.max() < len(actions):
        *outcome, infos = ours.recv()
        envs = infos["env_id"]
        seen.add(tuple(envs.tolist()))
        for row, env in enumerate(envs):
            reached = expected[steps[env]]
            assert_same([one[row] for one in outcome[1:]], [other[env] for other in reached[1:4]])
            assert_same(outcome[0]["arm"]["angle"][row], reached[0]["arm"]["angle"][env])
            if "left" in infos and infos["_left"][row]:
                assert infos["left"][row] == reached[4]["left"][env]
        pick = [actions[steps[env]] for env in envs]
        move, *keys, small = (
            np.stack([leaf(each)[env] for each, env in zip(pick, envs, strict=True)]) for leaf in leaves
        )
        ours.send({"move": move, "keys": tuple(keys), "small": small}, envs)
        steps[envs] += 1
    assert len(seen) > 1
    ours.close()


class Waiting(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Steps once an event is set."""

    def __init__(self, event: Any) -> None:
        super().__init__(gymnasium.make("CartPole-v1"))
        self._event = event

    def step(self, action: Any) -> Any:
        self._event.wait()
        return super().step(action)


def test_recv_does_not_wait_for_a_slow_server() -> None:
    slow, fast = multiprocessing.Event(), multiprocessing.Event()
    fast.set()
    envs = rollfleet.make_vec([partial(Waiting, slow), partial(Waiting, fast)], workers=2, batch_size=1)
    envs.reset(seed=0)
    envs.send([0, 0])
    for _ in range(3):
        *_, infos = envs.recv()
        assert infos["env_id"].tolist() == [1]
        envs.send([0], [1])
    with pytest.raises(EnvironmentInvalid, match="environments are under way: call `recv`, or `reset`, first"):
        envs.get_attr("spec")
    pids = [process.pid or 0 for process in envs.processes]
    envs.close()  # one is in mid-step
    assert gone(pids)


class Breaking(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Breaks at its third step."""

    steps = 0

    def step(self, action: Any) -> Any:
        self.steps += 1
        if self.steps == 3:
            raise RuntimeError("the arm came off")
        return super().step(action)


def test_after_a_failure_a_reset_begins_again() -> None:
    pole = partial(gymnasium.make, "CartPole-v1")
    envs = rollfleet.make_vec([lambda: Breaking(pole()), pole, pole, pole], workers=2)
    first, _ = envs.reset(seed=0)
    envs.step([0, 1, 0, 1])
    envs.step([0, 1, 0, 1])
    with pytest.raises(EnvironmentFailed, match=r"environments 0 to 1: Traceback(.|\n)*the arm came off"):
        envs.step([0, 1, 0, 1])
    np.testing.assert_array_equal(envs.reset(seed=0)[0], first)
    os.kill(envs.processes[1].pid or 0, signal.SIGKILL)
    with pytest.raises(EnvironmentFailed, match=r"environments 2 to 3 .* ended: killed by SIGKILL"):
        envs.step([0, 1, 0, 1])
    np.testing.assert_array_equal(envs.reset(seed=0)[0], first)
    envs.step([0, 1, 0, 1])
    envs.close()


@pytest.mark.parametrize("mode", AutoresetMode)
def test_a_collector_has_the_batches_of_its_own_environments(mode: AutoresetMode, two_servers: dict[str, Any]) -> None:
    envs = rollfleet.make_vec("CartPole-v1", num_envs=4, autoreset_mode=mode, **two_servers)
    policy = rollfleet.ActorCritic(envs.single_observation_space, envs.single_action_space)
    more: dict[str, Any] = {"frames_per_batch": 4 * 60, "seed": 3, "num_envs": 4, "max_frames_per_traj": 50}
    batches = []
    for env in (envs, "CartPole-v1"):
        with rollfleet.Collector(env, policy, **more) as collector:
            batches.append([next(collector).clone() for _ in range(3)])
            assert collector.call(0, "env.gravity") == {0: [9.8] * 4}
    for ours, theirs in zip(*batches, strict=True):
        assert sorted(map(str, ours.keys(True, True))) == sorted(map(str, theirs.keys(True, True)))
        assert (ours == theirs).all()
    assert envs.closed


class Helped(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Starts a process, its helper, that lives on when its own is killed."""

    def __init__(self) -> None:
        super().__init__(gymnasium.make("CartPole-v1"))
        self._helper = multiprocessing.get_context("fork").Process(target=signal.pause)
        self._helper.start()

    def reset(self, **options: Any) -> Any:
        return super().reset(**options)[0], {"server": os.getpid(), "helper": self._helper.pid}

    def close(self) -> None:
        self._helper.kill()
        self._helper.join()
        super().close()


def test_the_end_of_a_server_is_noticed_while_a_process_that_it_started_lives_on(two_servers: dict[str, Any]) -> None:
    envs = rollfleet.make_vec(Helped, num_envs=2, **two_servers)
    _, pids = envs.reset()
    envs.reset_on_request()
    envs.failures = EnvironmentFailuresSpec(step_timeout_seconds=10.0)
    envs.reset()
    os.kill(pids["server"][0], signal.SIGKILL)
    *_, infos = envs.step(np.zeros(2, np.int64))
    os.kill(pids["helper"][0], signal.SIGKILL)
    envs.close()
    assert [failure.name for failure in infos[FAILURES][0]] == ["ChildProcessError"]


PROGRAM = """
import sys, rollfleet, gymnasium

class Light(gymnasium.Wrapper):
    @property
    def has_torch(self):
        return "torch" in sys.modules

envs = rollfleet.make_vec(lambda: Light(gymnasium.make("CartPole-v1")), num_envs=2, workers=1)
envs.reset(seed=0)
envs.step([0, 1])
sys.exit(any(envs.get_attr("has_torch")) or "torch" in sys.modules)
"""


def test_neither_servers_nor_a_program_without_a_policy_import_torch() -> None:
    assert subprocess.run([sys.executable, "-P", "-c", PROGRAM], check=False, timeout=60).returncode == 0


class OfText(gymnasium.Env[Any, Any]):
    observation_space, action_space = Text(3), Box(-1, 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"env": "CartPol-v1"}, "environment 'CartPol-v1'.*did you mean 'CartPole-v1'"),
        ({"env": 3}, "env: an id such as 'CartPole-v1', a function"),
        ({"env": [Robot] * 3, "num_envs": 2}, "a list of 2 of them"),
        ({"env": int}, "'int' returned a int; return a gymnasium.Env"),
        (
            {"env": [Robot, Chatty, Chatty, Robot], "workers": 4},
            "space Dict.* differs from Dict.* of another environment",
        ),
        ({"env": OfText}, "observation space Text.* is not supported"),
        ({"env": "CartPole-v1", "env_kwargs": {"colour": 1}}, "could not be built with kwargs .*colour"),
        ({"num_envs": 0}, "num_envs: must be at least 1, got 0"),
        ({"workers": 0}, "workers: must be at least 1, got 0"),
        ({"workers": 5}, "workers: 5 servers for 4 environments; write 4 at most"),
        ({"batch_size": 3, "workers": 2}, "batch_size: 3 is no number of whole servers"),
        ({"batch_size": 2, "workers": 3}, "batch_size: 2 is no number of whole servers"),
        (
            {"autoreset_mode": "never"},
            "autoreset_mode: expected one of 'NextStep', 'SameStep', 'Disabled', got 'never'",
        ),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_an_argument_that_cannot_be_used_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises((JobInvalid, EnvironmentFailed), match=f"(?s){message}"):
        rollfleet.make_vec(**{"env": "CartPole-v1", "num_envs": 4, **arguments})


@pytest.mark.parametrize("wrong", [{"workers": 5}, {"workers": 2, "batch_size": 3}], ids=str)
def test_an_argument_that_is_refused_leaves_no_environment_open(wrong: dict[str, Any]) -> None:
    closed: list[int] = []

    class Closing(Robot):
        def close(self) -> None:
            closed.append(1)

    with pytest.raises(JobInvalid):
        rollfleet.make_vec(Closing, num_envs=4, **wrong)
    assert closed


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda envs: envs.step([0]), r"actions of shape \[1\]; expected \[4\]"),
        (lambda envs: envs.step(0), r"actions of shape \[\]; expected \[4\]"),
        (lambda envs: envs.step([0.5] * 4), "actions: 0.5 is no int64"),
        (lambda envs: envs.step([0, 1, 0, 1]), r"episode of environment 0 .* has ended: .* call reset\(options"),
        (lambda envs: envs.send([0, 1], [0, 2]), r"env_id: \[0, 2\] are not all environments of some servers"),
        (
            lambda envs: (envs.send([0, 1], [0, 1]), envs.send([0, 1], [0, 1])),
            "environment 0 is under way: call `recv`",
        ),
        (lambda envs: envs.recv(), "recv waits for 4 environments, and 0 are under way; call `send`"),
        (lambda envs: envs.set_attr("length", [1]), "values: 1 values for 4 environments"),
        (lambda envs: envs.reset(seed=[1]), "seed: 1 seeds for 4 environments"),
        (lambda envs: envs.reset(options={"reset_mask": [True] * 4}), r"reset_mask: expected a bool array \[4\]"),
        (lambda envs: envs.reset(options={"reset_mask": np.zeros(4, bool)}), "reset_mask: names no environment"),
        (lambda envs: (envs.close(), envs.step([0] * 4)), "is closed; make another"),
        (lambda envs: (envs.send([0] * 4), envs.close(), envs.recv()), "is closed; make another"),
    ],
)
def test_a_call_that_cannot_be_is_refused(call: Any, message: str) -> None:
    envs = rollfleet.make_vec("CartPole-v1", num_envs=4, workers=2, autoreset_mode=AutoresetMode.DISABLED)
    envs.reset(seed=0)
    if "has ended" in message:
        while not envs.step([1] * 4)[2][0]:
            pass
    with pytest.raises(EnvironmentInvalid, match=message):
        call(envs)
    envs.close()
