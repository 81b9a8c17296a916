"""A rollout after an exception in mid-step: the next frames are those of new episodes, never of a mixture."""

import os
import select
import signal
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from tests.sdk.rollouts import rollout_of
from torch import Tensor

from rollfleet.data.batch import MASK, Fragment, to_batch
from rollfleet.envs.factory import VectorEnv
from rollfleet.envs.serial import SerialVectorEnv
from rollfleet.envs.subprocesses import ProcessVectorEnv
from rollfleet.errors import EnvironmentFailed
from rollfleet.rollout.rollout import Rollout

ENVS, STEPS, EPISODE = 3, 6, 4


class Counting(gymnasium.Env[Any, Any]):
    """Observes its steps since the reset, and the action before; the reward is the action.

    Args:
        fails_at: It raises at these steps of its life.
        gates: Two named pipes. The last step of the first episode opens the first one, and waits at the second. It
            removes the first: Ctrl-C may cost its process, and another environment in its place does not wait.
    """

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float64)
    action_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float64)

    def __init__(self, fails_at: tuple[int, ...] = (), gates: tuple[Path, Path] | None = None) -> None:
        self._fails_at, self._gates, self._life = fails_at, gates, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._steps = 0
        return np.zeros(2), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._life += 1
        self._steps += 1
        if self._life in self._fails_at:
            raise ValueError("the arm came off")
        if self._gates and self._life == EPISODE and self._gates[0].exists():
            self._gates[0].open("w").close()
            self._gates[0].unlink()
            gate = os.open(self._gates[1], os.O_RDONLY | os.O_NONBLOCK)
            try:
                while not select.select([gate], [], [], 0.05)[0]:  # a signal just before a longer wait would not end it
                    pass
            finally:
                os.close(gate)
        return np.array([self._steps, action[0]]), float(action[0]), self._steps == EPISODE, False, {}


class NumberedActions:
    """Acts with the number of its call, so that an action names its step; raises at some calls."""

    def __init__(self, fails_at: tuple[int, ...] = ()) -> None:
        self._fails_at, self._calls = fails_at, 0

    def __call__(self, observation: Tensor) -> Tensor:
        self._calls += 1
        if self._calls in self._fails_at:
            raise ValueError("the head came off")
        return torch.full((len(observation), 1), float(self._calls), dtype=torch.float64)


MODES: dict[str, Callable[[list[Callable[[], Counting]]], VectorEnv]] = {
    "serial": SerialVectorEnv,
    "in processes": lambda makers: ProcessVectorEnv(makers, 2),
    "next step": SyncVectorEnv,
    "same step": partial(SyncVectorEnv, autoreset_mode=AutoresetMode.SAME_STEP),
}


def vector(mode: str, first: Callable[[], Counting]) -> VectorEnv:
    return MODES[mode]([first] + [Counting] * (ENVS - 1))


def collect(rollout: Rollout, errors: tuple[type[BaseException], ...]) -> Fragment | None:
    """Return a copy of the next fragment; None after one of these errors."""
    try:
        fragment = rollout.collect(version=0)
    except errors:
        return None
    return replace(fragment, steps={key: value.clone() for key, value in fragment.steps.items()})


def check(fragments: list[Fragment | None]) -> None:
    """Check that each transition is of one step, and that no trajectory has a gap or goes on after an exception."""
    following: dict[int, float] = {}  # the count at the next frame, by trajectory
    for fragment in fragments:
        if fragment is None:
            following = {}
            continue
        batch: Any = to_batch(fragment)
        frames = batch[batch[MASK]] if MASK in batch.keys(True) else batch.reshape(-1)
        for frame in frames:
            trajectory, count = int(frame["collector", "traj_ids"]), float(frame["observation"][0])
            assert count == following.pop(trajectory, 0.0)
            following[trajectory] = count + 1
            after = frame["next", "observation"]
            assert float(after[0]) == count + 1
            assert float(after[1]) == float(frame["action"]) == float(frame["next", "reward"])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("options", [{}, {"trajs_per_batch": 3}], ids=str)
@pytest.mark.parametrize(
    ("env_fails_at", "policy_fails_at", "errors"),
    [((3, 9, 14), (), (ValueError, EnvironmentFailed)), ((), (4, 12, 13), (ValueError,))],
    ids=["of an environment", "of the policy"],
)
def test_after_an_error_new_episodes_begin(
    mode: str, options: dict[str, Any], env_fails_at: tuple[int, ...], policy_fails_at: tuple[int, ...], errors: Any
) -> None:
    env = vector(mode, lambda: Counting(fails_at=env_fails_at))
    rollout = rollout_of(env, NumberedActions(fails_at=policy_fails_at), steps=STEPS, **options)
    fragments = [collect(rollout, errors) for _ in range(8)]
    rollout.close()
    assert fragments.count(None) == 3
    check(fragments)


@pytest.fixture
def gates(tmp_path: Path) -> tuple[Path, Path]:
    """Two named pipes."""
    for name in ("reached", "open"):
        os.mkfifo(tmp_path / name)
    return tmp_path / "reached", tmp_path / "open"


def interrupt_at(gate: Path) -> threading.Thread:
    """Send this process a SIGINT, as Ctrl-C does, once an environment opens the gate."""

    def interrupt() -> None:
        gate.open("rb").close()
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    return thread


@pytest.mark.parametrize("mode", MODES)
def test_after_ctrl_c_in_mid_step_frames_are_those_of_new_episodes(mode: str, gates: tuple[Path, Path]) -> None:
    rollout = rollout_of(vector(mode, lambda: Counting(gates=gates)), NumberedActions(), steps=STEPS)
    thread = interrupt_at(gates[0])
    fragments = [collect(rollout, (KeyboardInterrupt,))]
    assert fragments == [None]
    thread.join()
    opened = os.open(gates[1], os.O_RDWR)
    os.write(opened, b"x")  # a process still is in mid-step, and answers now
    fragments += [collect(rollout, ()) for _ in range(4)]
    rollout.close()
    os.close(opened)
    check(fragments)


class Killed(Counting):
    """Its process is killed in the first step."""

    def step(self, action: Any) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)


def test_gymnasiums_own_processes_end_after_one_was_killed_and_the_others_have_answered() -> None:
    env = AsyncVectorEnv([Killed, Counting])
    rollout = rollout_of(env, NumberedActions(), steps=STEPS)
    with pytest.raises((EOFError, ConnectionError)):
        rollout.collect(version=0)
    assert env.parent_pipes[1].poll(30)
    rollout.close()
    assert not any(process.is_alive() for process in env.processes)


def test_after_ctrl_c_gymnasiums_own_processes_are_refused(gates: tuple[Path, Path]) -> None:
    env = AsyncVectorEnv([lambda: Counting(gates=gates), Counting])
    rollout = rollout_of(env, NumberedActions(), steps=STEPS)
    thread = interrupt_at(gates[0])
    assert collect(rollout, (KeyboardInterrupt,)) is None
    thread.join()
    with pytest.raises(EnvironmentFailed, match="make a new collector"):
        rollout.collect(version=0)
    rollout.close()
