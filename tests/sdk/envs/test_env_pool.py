"""The backend EnvPool: the frames of its own loop without reset steps, and errors for invalid jobs."""

import sys
from typing import Any

import numpy as np
import pytest
import torch
from tests.sdk.plain_loops import assert_same_frames, vector_loop
from tests.sdk.rollouts import collected, rollout_of, towards_fall

from rollfleet.data.batch import to_batch
from rollfleet.envs.env_pool import EnvPoolVectorEnv
from rollfleet.envs.factory import make_env
from rollfleet.errors import EnvironmentInvalid
from rollfleet.rollout.seeding import Seeds
from rollfleet_api.job import Backend, EnvSpec

LIMIT = 45  # so that episodes end both ways


@pytest.fixture
def envpool() -> Any:
    return pytest.importorskip("envpool", reason="EnvPool has no wheel for this Python")


def spec(env_id: str = "CartPole-v1", num_envs: int = 4, **kwargs: Any) -> EnvSpec:
    return EnvSpec(id=env_id, num_envs=num_envs, kwargs=kwargs, backend=Backend.ENVPOOL)


@pytest.mark.filterwarnings("ignore:.*precision lowered by casting:UserWarning")  # from the loop's own pool
def test_frames_equal_a_plain_loop_without_its_reset_steps(envpool: Any) -> None:
    num_envs, frames = 4, 2_000
    batch = collected(rollout_of(spec(max_episode_steps=LIMIT), steps=50, policy=towards_fall), frames // 50)
    seeds = [seed - (1 << 31) for seed in Seeds.derive(0, 0, 0, num_envs).envs]
    pool = envpool.make_gymnasium("CartPole-v1", num_envs=num_envs, env_seed=seeds, max_episode_steps=LIMIT)
    loops = vector_loop(pool, pool.reset()[0], lambda seen: (seen[:, 2] > 0).astype(np.int32), frames)
    assert_same_frames(batch, loops)
    assert batch["next", "terminated"].sum() > 50
    assert batch["next", "truncated"].sum() > 50


@pytest.mark.usefixtures("envpool")
def test_seeds_differ_by_environment_and_give_the_same_bits_again() -> None:
    one, same, other = (collected(rollout_of(spec(num_envs=3), seed=seed), 2) for seed in (1, 1, 2))
    assert (one == same).all()
    starts = torch.cat([one["observation"][:, 0], other["observation"][:, 0]])
    assert len(starts.unique(dim=0)) == 6


@pytest.mark.usefixtures("envpool")
@pytest.mark.parametrize("env_id", ["Pendulum-v1", "FrozenLake-v1", "LaneKeeping-v0", "BinPack-v2", "Catch-v0"])
def test_environments_of_all_spaces_are_supported(env_id: str) -> None:
    rollout = rollout_of(spec(env_id, num_envs=2), steps=40, is_init=True)
    batch = collected(rollout, 2)
    assert batch.shape == (2, 80)
    carried = set(batch["next"].keys(True, True)) & set(batch.keys(True, True)) - {"is_init"}
    assert carried
    for key in carried:
        going_on = ~batch["next", "done"].squeeze(-1)[:, :-1]
        assert torch.equal(batch[key][:, 1:][going_on], batch["next"][key][:, :-1][going_on])


@pytest.mark.usefixtures("envpool")
def test_whole_trajectories_and_resets_before_each_fragment_work() -> None:
    rollout = rollout_of(spec(max_episode_steps=LIMIT), trajs_per_batch=7, step_count=True)
    batch = to_batch(rollout.collect(version=0))
    assert batch["next", "done"].sum() == 7
    assert not batch["step_count"][:, 0].any()
    batch = collected(rollout_of(spec(), steps=8, reset_at_each_iter=True), 3)
    assert batch["observation"][:, ::8].abs().max() < 0.05  # the range of CartPole's first observations


@pytest.mark.usefixtures("envpool")
@pytest.mark.parametrize(
    ("job", "message"),
    [
        (spec("CartPol-v1"), "'CartPol-v1' of EnvPool: no such environment; did you mean 'CartPole-v1'"),
        (spec(colour=1), r"cannot be built with kwargs \{'colour': 1\}: TypeError.*colour"),
        (spec(seed=1), "'seed' follows from the job; remove it"),
        (spec("Go9x9-v1"), "has 2 players; only environments of one player"),
    ],
)
def test_an_invalid_pool_is_refused(job: EnvSpec, message: str) -> None:
    with pytest.raises(EnvironmentInvalid, match=message):
        make_env(job)


def test_a_missing_package_is_reported_with_the_command_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "envpool", None)
    with pytest.raises(EnvironmentInvalid, match=r"cannot be imported.*pip install 'rollfleet\[envpool\]'"):
        make_env(spec())


@pytest.mark.usefixtures("envpool")
def test_a_pool_can_be_closed_twice_and_recreated_by_other_seeds() -> None:
    env = EnvPoolVectorEnv("CartPole-v1", 2, {})
    first = env.reset(seed=[1, 2])[0].copy()
    again = env.reset(seed=[1, 2])[0].copy()
    other = env.reset(seed=[3, 4])[0].copy()
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)
    env.close()
    env.close()


@pytest.mark.usefixtures("envpool")
def test_the_first_environment_is_pictured() -> None:
    env = make_env(spec("Pong-v5", num_envs=2, render_mode="rgb_array"))
    env.reset(seed=0)
    picture: Any = env.render()
    env.close()
    assert (picture.shape, picture.dtype) == ((1, 210, 160, 3), np.uint8)
