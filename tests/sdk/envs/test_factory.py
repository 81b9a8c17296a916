"""Environments built from a job's `env`."""

import errno
import multiprocessing
import os

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from rollfleet.envs.factory import VectorEnv, make_env
from rollfleet.errors import EnvironmentInvalid
from rollfleet_api.job import EnvSpec, Vectorization, WrapperSpec

AnyEnv = gymnasium.Env[object, object]


def pole(**kwargs: float) -> AnyEnv:
    return gymnasium.make("CartPole-v1", max_episode_steps=int(kwargs.get("limit", 500)))


def three_poles(num_envs: int = 3) -> VectorEnv:
    return SyncVectorEnv([pole] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP)


def no_mode() -> VectorEnv:
    env = three_poles(1)
    del env.metadata["autoreset_mode"]
    return env


class WithSpace(gymnasium.Wrapper):
    def __init__(self, env: AnyEnv, role: str) -> None:
        super().__init__(env)
        space = gymnasium.spaces.Dict({"a": gymnasium.spaces.Text(5)})
        if role == "observation":
            self.observation_space = space
        else:
            self.action_space = space


NOT_CALLABLE = 3


def fails() -> AnyEnv:
    raise RuntimeError("no licence")


def is_daemonic() -> AnyEnv:
    raise AssertionError("daemonic processes are not allowed to have children")  # as multiprocessing does


def opens_too_much() -> AnyEnv:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def spawns() -> AnyEnv:
    multiprocessing.get_context("spawn").Process(target=type("Unknown", (), {})).start()
    return pole()


def not_an_env() -> int:
    return 3


def test_environments_built_here_do_not_reset_by_themselves() -> None:
    env = make_env(EnvSpec(id="CartPole-v1", num_envs=2))
    assert isinstance(env, SyncVectorEnv)
    assert env.metadata["autoreset_mode"] is AutoresetMode.DISABLED
    assert "PassiveEnvChecker" not in str(env.envs[0])


def test_an_id_may_name_the_module_that_registers_it() -> None:
    assert make_env(EnvSpec(id="gymnasium.envs.classic_control:CartPole-v1", num_envs=2)).num_envs == 2


@pytest.mark.parametrize("vectorization", [Vectorization.SYNC, Vectorization.ASYNC])
def test_an_entrypoint_makes_each_environment_and_kwargs_and_wrappers_reach_it(vectorization: Vectorization) -> None:
    wrappers = [WrapperSpec(entrypoint="gymnasium.wrappers:TimeAwareObservation", kwargs={"normalize_time": False})]
    spec = EnvSpec(
        entrypoint=f"{__name__}:pole", num_envs=3, kwargs={"limit": 2}, wrappers=wrappers, vectorization=vectorization
    )
    env = make_env(spec)
    observation, _ = env.reset(seed=[1, 2, 3])  # type: ignore[arg-type]
    assert observation.shape == (3, 5)
    for _ in range(2):
        *_, truncated, _ = env.step(np.zeros(3, dtype=np.int64))
    assert truncated.all()
    env.close()


def test_an_entrypoint_may_return_a_ready_vector_environment() -> None:
    env = make_env(EnvSpec(entrypoint=f"{__name__}:three_poles", num_envs=3))
    assert env.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP


def test_a_native_entrypoint_gets_the_number_of_environments() -> None:
    spec = EnvSpec(entrypoint=f"{__name__}:three_poles", num_envs=2, vectorization=Vectorization.NATIVE)
    assert make_env(spec).num_envs == 2


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"id": "CartPol-v1"}, "'CartPol-v1'.*did you mean 'CartPole-v1'"),
        ({"id": "CartPole-v1", "kwargs": {"colour": 1}}, "'CartPole-v1' could not be built with kwargs .*colour"),
        ({"id": "Pendulum-v1", "vectorization": "Native"}, "'Pendulum-v1' has no native vector form; write"),
        ({"id": "no_such_module:X-v0"}, "no_such_module"),
        ({"entrypoint": "no_such_module:make"}, "'no_such_module:make'.*was not found; install it"),
        ({"entrypoint": "gymnasium:nothing"}, "module 'gymnasium' has no 'nothing'"),
        ({"entrypoint": f"{__name__}:NOT_CALLABLE"}, "is a int; name a function or class"),
        ({"entrypoint": f"{__name__}:spawns"}, "could not be built.*If it starts a process, put the function"),
        ({"entrypoint": f"{__name__}:is_daemonic"}, "daemonic .* Make it in a process that is not daemonic"),
        ({"entrypoint": f"{__name__}:opens_too_much"}, "Too many open files. The system refuses it: compare `ulimit"),
        ({"entrypoint": f"{__name__}:fails"}, "could not be built.*RuntimeError: no licence"),
        ({"entrypoint": f"{__name__}:not_an_env"}, "returned a int; return a gymnasium.Env"),
        (
            {"entrypoint": f"{__name__}:three_poles", "num_envs": 4},
            r"of 3 environments, but 4 are asked for; ask for 3 \(`num_envs`",
        ),
        ({"entrypoint": f"{__name__}:pole", "vectorization": "Native"}, "single environment.*says.*Native"),
        ({"entrypoint": f"{__name__}:no_mode"}, "does not declare how it resets; write"),
        (
            {"id": "CartPole-v1", "wrappers": [{"entrypoint": "gymnasium.wrappers:Nothing"}]},
            "wrapper: module 'gymnasium.wrappers' has no 'Nothing'",
        ),
        (
            {
                "id": "CartPole-v1",
                "wrappers": [{"entrypoint": f"{__name__}:WithSpace", "kwargs": {"role": "observation"}}],
            },
            "'CartPole-v1': observation space Text.* at ..a.. is not supported; Box",
        ),
        (
            {"id": "CartPole-v1", "wrappers": [{"entrypoint": f"{__name__}:WithSpace", "kwargs": {"role": "action"}}]},
            "'CartPole-v1': action space Text.* at ..a.. is not supported; Box",
        ),
        (
            {
                "entrypoint": f"{__name__}:three_poles",
                "num_envs": 3,
                "wrappers": [{"entrypoint": "gymnasium.wrappers:ClipAction"}],
            },
            "apply them inside the factory",
        ),
    ],
)
def test_an_invalid_environment_is_refused(spec: dict[str, object], message: str) -> None:
    with pytest.raises(EnvironmentInvalid, match=message):
        make_env(EnvSpec.model_validate(spec))
