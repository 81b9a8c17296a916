"""What environments return: shapes of observations, and rewards and flags that are arrays of one number."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, Space
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from tests.sdk.rollouts import rollout_of

from rollfleet.envs.factory import make_env
from rollfleet.errors import EnvironmentInvalid
from rollfleet.rollout.rollout import Rollout
from rollfleet_api.job import EnvSpec, Vectorization

IMAGE = Box(0, 255, (4, 4, 3), np.uint8)
GREY = np.zeros((4, 4, 1), np.uint8)


class Returning(gymnasium.Env[Any, Any]):
    """Returns the given values from `step`, and `first` from `reset`."""

    action_space = Discrete(2)

    def __init__(self, space: Space[Any], first: Any, following: Any, outcome: Any = (0.0, False, False)) -> None:
        self.observation_space, self._first, self._following, self._outcome = space, first, following, outcome

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self._first, {}

    def step(self, action: Any) -> Any:
        return self._following, *self._outcome, {}


@pytest.fixture(params=[Vectorization.SYNC, Vectorization.ASYNC], ids=["sync", "async"])
def returning(request: pytest.FixtureRequest) -> Iterator[Callable[..., Rollout]]:
    """Makes rollouts of two such environments, in this process and in processes of their own."""
    with ExitStack() as stack:

        def make(*values: Any) -> Rollout:
            spec = EnvSpec(entrypoint="tests:returning", num_envs=2, vectorization=request.param)
            rollout = rollout_of(make_env(spec, lambda: Returning(*values)), steps=3)
            stack.callback(rollout.close)
            return rollout

        yield make


VECTOR = Box(-1, 1, (4,))
PAIR = Dict(camera=IMAGE, speed=Box(0, 1, (1,)))
UINT8, INT64 = "its observation space has uint8", "its observation space has int64"
REFUSED: dict[str, tuple[Space[Any], Any, str]] = {
    "a grey image": (IMAGE, GREY, "shape [4, 4, 1]"),
    "a number for a vector": (VECTOR, 0.5, "shape []"),
    "one element for a vector": (VECTOR, np.zeros(1), "shape [1]"),
    "a row for a vector": (VECTOR, np.zeros((1, 4)), "shape [1, 4]"),
    "a vector for a Discrete": (Discrete(5), np.ones(2, np.int64), "shape [2]; its observation space has []"),
    "a vector for a number": (Box(-1, 1, ()), np.ones(2, np.float32), "shape [2]; its observation space has []"),
    "a grey leaf of a Dict": (PAIR, {"camera": GREY, "speed": np.zeros(1)}, "shape [4, 4, 1]"),
    "a scaled image": (IMAGE, np.full((4, 4, 3), 0.5, np.float32), f"dtype float32, such as 0.5; {UINT8}"),
    "a bright image": (IMAGE, np.full((4, 4, 3), 300), f"dtype int64, such as 300; {UINT8}"),
    "a negative number": (IMAGE, np.full((4, 4, 3), -1, np.int8), f"dtype int8, such as -1; {UINT8}"),
    "no number": (IMAGE, np.full((4, 4, 3), np.nan), f"dtype float64, such as nan; {UINT8}"),
    "a scaled leaf of a Dict": (
        PAIR,
        {"camera": np.full((4, 4, 3), 0.5), "speed": np.zeros(1)},
        "dtype float64, such as 0.5 at ['camera']",
    ),
    "a float for a Discrete": (Discrete(5), 0.7, f"dtype float64, such as 0.7; {INT64}"),
    "a float of numpy for a Discrete": (Discrete(5), np.float32(0.7), "dtype float32, such as 0.69"),
    "an array for a Discrete": (Discrete(5), np.array(0.7), f"dtype float64, such as 0.7; {INT64}"),
    "a float for a Discrete in a Dict": (
        Dict(state=Discrete(5)),
        {"state": 0.7},
        "dtype float64, such as 0.7 at ['state']",
    ),
}


@pytest.mark.parametrize("when", ["reset", "step"])
@pytest.mark.parametrize("name", REFUSED)
def test_an_observation_that_its_space_does_not_hold_is_refused(
    returning: Callable[..., Rollout], name: str, when: str
) -> None:
    space, wrong, message = REFUSED[name]
    right = space.sample()
    rollout = returning(space, *((wrong, right) if when == "reset" else (right, wrong)))
    with pytest.raises(EnvironmentInvalid) as caught:
        rollout.collect(version=0)
    assert f"environment 0 (<Returning instance>) returned an observation of {message}" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("dtype", [np.int64, np.float32, np.float64, np.int16], ids=lambda dtype: dtype.__name__)
def test_numbers_of_another_dtype_are_taken_if_they_fit(returning: Callable[..., Rollout], dtype: Any) -> None:
    fragment = returning(IMAGE, np.full((4, 4, 3), 7, dtype), np.full((4, 4, 3), 255, dtype)).collect(version=0)
    assert fragment.steps[("observation",)][0, :, 0, 0, 0].tolist() == [7, 255, 255]


def test_lists_and_numbers_that_fit_are_taken(returning: Callable[..., Rollout]) -> None:
    fragment = returning(VECTOR, [0.0] * 4, [0.25, 0.5, 0.75, 1.0]).collect(version=0)
    assert fragment.steps[("observation",)][0, 1].tolist() == [0.25, 0.5, 0.75, 1.0]
    fragment = returning(Discrete(5), 1, np.int64(3)).collect(version=0)
    assert fragment.steps[("observation",)].tolist() == [[1, 3, 3]] * 2


@pytest.mark.parametrize("space", [VECTOR, Dict(at=VECTOR)], ids=["plain", "dict"])
def test_arrays_of_one_number_are_rewards_and_flags(returning: Callable[..., Rollout], space: Space[Any]) -> None:
    outcome = np.array([1.5]), np.array([False]), np.array([[True]])
    steps = returning(space, space.sample(), space.sample(), outcome).collect(version=0).steps
    assert (steps["next", "reward"] == 1.5).all()
    assert not steps["next", "terminated"].any()
    assert steps["next", "truncated"].all()


@pytest.mark.parametrize("space", [VECTOR, Dict(at=VECTOR)], ids=["plain", "dict"])
@pytest.mark.parametrize("method", ["reset", "step"])
def test_the_interface_of_old_gym_is_named(method: str, space: Space[Any]) -> None:
    class Old(Returning):
        def reset(self, **_: Any) -> Any:
            return self._first if method == "reset" else (self._first, {})

        def step(self, action: Any) -> Any:
            return self._first, 0.0, False, {}

    env = make_env(EnvSpec(entrypoint="tests:old"), lambda: Old(space, space.sample(), None))
    with pytest.raises(EnvironmentInvalid, match=rf"{method} returned a .* not .*follows the interface of old Gym"):
        rollout_of(env).collect(version=0)


@pytest.mark.parametrize("space", [VECTOR, Dict(at=VECTOR)], ids=["plain", "dict"])
@pytest.mark.parametrize(
    ("outcome", "message"),
    [
        ((np.zeros(2), False, False), r"reward array.*; return one number"),
        (("much", False, False), "reward 'much'; return one number"),
        (("1.5", False, False), "reward '1.5'; return one number"),
        ((None, False, False), "reward None; return one number"),
        ((0.0, "no", False), "terminated 'no'; return True or False"),
        ((0.0, 0.5, False), "terminated 0.5; return True or False"),
        ((0.0, False, None), "truncated None; return True or False"),
    ],
    ids=str,
)
def test_a_reward_that_is_no_number_or_a_flag_that_is_no_bool_is_refused(
    returning: Callable[..., Rollout], outcome: Any, message: str, space: Space[Any]
) -> None:
    rollout = returning(space, space.sample(), space.sample(), outcome)
    with pytest.raises(EnvironmentInvalid, match=rf"environment 0 \(<Returning instance>\) returned {message}"):
        rollout.collect(version=0)


@pytest.mark.parametrize("found", [{"speed": np.zeros(1)}, None, [1.0]], ids=str)
@pytest.mark.parametrize("when", ["reset", "step"])
def test_an_observation_without_a_key_of_its_dict_is_refused(
    returning: Callable[..., Rollout], found: Any, when: str
) -> None:
    right = PAIR.sample()
    rollout = returning(PAIR, *((found, right) if when == "reset" else (right, found)))
    with pytest.raises(EnvironmentInvalid, match=r"environment 0 .*: the value .* lacks parts of Dict"):
        rollout.collect(version=0)


class Together(VectorEnv[Any, Any, Any]):
    """A vector environment that returns values for one environment."""

    def __init__(self, mode: AutoresetMode, space: Space[Any] = VECTOR, **wrong: Any) -> None:
        self.num_envs, self.metadata, self._wrong = 3, {"autoreset_mode": mode}, wrong
        self.single_observation_space, self.single_action_space = space, Discrete(2)
        self.observation_space, self.action_space = batch_space(space, 3), batch_space(Discrete(2), 3)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return self._wrong.get("first", np.zeros((3, 4))), {}

    def step(self, actions: Any) -> Any:
        flags = np.zeros(3, np.bool_)
        right = {"observation": np.zeros((3, 4)), "rewards": np.zeros(3), "terminated": flags, "truncated": flags}
        return *({**right, **self._wrong}[name] for name in right), {}


@pytest.mark.parametrize("mode", [AutoresetMode.DISABLED, AutoresetMode.NEXT_STEP], ids=str)
@pytest.mark.parametrize(
    ("wrong", "shape"),
    [
        ({"first": np.zeros((1, 4))}, "observation' of shape [1, 4]; expected [3, 4]"),
        ({"observation": np.zeros(4)}, "observation' of shape [4]; expected [3, 4]"),
        ({"rewards": 1.0}, "rewards of shape []; expected [3]"),
        ({"terminated": np.array([True])}, "terminated of shape [1]; expected [3]"),
        ({"truncated": False}, "truncated of shape []; expected [3]"),
        ({"rewards": np.array([None, 1, 1])}, "rewards [None, 1, 1]; expected numbers"),
        ({"terminated": np.full(3, 0.5)}, "terminated [0.5, 0.5, 0.5]; expected True or False"),
        ({"truncated": ["no"] * 3}, "truncated ['no', 'no', 'no']; expected True or False"),
    ],
    ids=["first", "observation", "rewards", "terminated", "truncated", "no number", "between", "text"],
)
def test_a_vector_environment_returns_values_of_all(mode: AutoresetMode, wrong: dict[str, Any], shape: str) -> None:
    with pytest.raises(EnvironmentInvalid) as caught:
        rollout_of(Together(mode, **wrong)).collect(version=0)
    assert shape in str(caught.value)


@pytest.mark.parametrize("mode", [AutoresetMode.DISABLED, AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP], ids=str)
@pytest.mark.parametrize("when", ["first", "observation"])
@pytest.mark.parametrize("space", [IMAGE, Dict(camera=IMAGE)], ids=["plain", "dict"])
def test_a_vector_environment_returns_numbers_that_its_space_holds(
    mode: AutoresetMode, when: str, space: Space[Any]
) -> None:
    zeros, scaled = np.zeros((3, 4, 4, 3)), np.full((3, 4, 4, 3), 0.5, np.float32)
    values = {"first": zeros, "observation": zeros, when: scaled}
    env = Together(
        mode, space, **{name: value if space is IMAGE else {"camera": value} for name, value in values.items()}
    )
    with pytest.raises(EnvironmentInvalid, match=r"of dtype float32, such as 0\.5; .* has uint8"):
        rollout_of(env).collect(version=0)
