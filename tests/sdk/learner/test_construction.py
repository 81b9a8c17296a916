"""What `rollfleet.Collector` refuses, and in which words."""

from typing import Any

import gymnasium
import pytest
import torch
from gymnasium.vector import SyncVectorEnv
from torch import Tensor, nn

import rollfleet
from rollfleet import Collector, ReplayBuffer
from rollfleet.errors import EnvironmentInvalid, JobInvalid, PolicyInvalid
from rollfleet.learner.construction import construct
from rollfleet.learner.options import SPEC_PATHS, Options
from rollfleet_api.job import CollectorJob


def always_0(observation: Tensor) -> Tensor:
    return torch.zeros(len(observation), dtype=torch.int64)


def make_env() -> gymnasium.Env[Any, Any]:
    return gymnasium.make("CartPole-v1")


class Closing(gymnasium.Env[Any, Any]):
    observation_space = gymnasium.spaces.Box(-1, 1, (1,))
    action_space = gymnasium.spaces.Discrete(2)
    closed = 0

    def close(self) -> None:
        type(self).closed += 1


# --- names -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "near"),
    [("num_env", "num_envs"), ("frames_per_batches", "frames_per_batch"), ("init_random_frame", "init_random_frames")],
)
def test_a_keyword_that_there_is_not_is_told_with_the_nearest_that_there_is(name: str, near: str) -> None:
    with pytest.raises(TypeError, match=f"rollfleet.Collector has no keyword `{name}`; did you mean `{near}`"):
        Collector("CartPole-v1", frames_per_batch=8, **{name: 1})  # type: ignore[arg-type]


def test_where_nothing_is_near_all_are_named() -> None:
    with pytest.raises(TypeError, match=r"there are: .*replay_buffer, .*frames_per_batch, "):
        Collector("CartPole-v1", zzz=1)  # type: ignore[call-arg]


def test_connect_takes_the_learners_keywords_and_refuses_others_before_it_connects() -> None:
    with pytest.raises(TypeError, match=r"rollfleet.connect has no keyword `split_traj`; did you mean `split_trajs`"):
        rollfleet.connect("job", split_traj=True)  # type: ignore[call-arg]
    with pytest.raises(
        JobInvalid, match=r"`replay_buffer` is filled by its method extend\(frames\), and a int has none"
    ):
        rollfleet.connect("job", replay_buffer=3)  # type: ignore[arg-type]


def test_every_keyword_that_a_job_has_goes_where_the_job_has_it() -> None:
    assert set(SPEC_PATHS) < set(Options.__annotations__)
    spec: Any = CollectorJob.model_json_schema(by_alias=True)["$defs"]
    parts = {
        "collect": "CollectSpec",
        "env": "EnvSpec",
        "weights": "WeightsSpec",
        "stragglers": "StragglersSpec",
        "delivery": "DeliverySpec",
        "failure": "FailureSpec",
    }
    for keyword, path in SPEC_PATHS.items():
        part = spec["CollectorJobSpec"] if len(path) == 1 else spec[parts[path[0]]]
        assert path[-1] in part["properties"], keyword


# --- what one keyword says -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({}, r"frames_per_batch: missing; write"),
        ({"frames_per_batch": 10, "num_envs": 3}, r"10 is no multiple of the 3 environments of a worker.*9 or 12"),
        ({"frames_per_batch": "10"}, r"frames_per_batch: expected a whole number"),
        ({"total_frames": -1}, r"total_frames: must be at least 0, got -1"),
        ({"exploration": "greedy"}, r"exploration: "),
        ({"cat_results": "sideways"}, r"cat_results: expected"),
        ({"precision": "float16"}, r"precision: got `float16`; write `bfloat16`"),
        ({"weights_interval": -1}, r"weights_interval: must be at least 0"),
        ({"workers": -1}, r"workers: must be at least 1, got -1"),
        ({"workers": 1, "stragglers_threshold": 0.0}, r"stragglers_threshold: must be more than 0"),
        ({"device": "gpu"}, r"`device`: .*gpu"),
        ({"policy_device": "gpu"}, r"`policy_device`: .*gpu"),
        ({"env_kwargs": 3}, r"`env_kwargs` are names and values, not a int"),
        ({"replay_buffer": 3}, r"`replay_buffer` is filled by its method extend"),
        ({"postproc": 3}, r"`postproc` is called with each batch; a int cannot be"),
        ({"policy_factory": 3}, r"policy_factory is called as factory\(observation_space, action_space\)"),
        ({"policy_factory": "nowhere:make"}, r"policy_factory: module 'nowhere'"),
        ({"env_kwargs": {"nonsense": 1}}, r"could not be built with kwargs \{'nonsense': 1\}"),
        ({"workers": 1, "start_method": "thread"}, r"start_method is one of 'spawn', 'fork', not 'thread'"),
    ],
)
def test_a_value_that_cannot_be_is_told_by_its_keyword(keywords: dict[str, Any], message: str) -> None:
    with pytest.raises(JobInvalid, match=message):
        Collector("CartPole-v1", **({"frames_per_batch": 8} if keywords else {}) | keywords)


@pytest.mark.parametrize("env", [3, None, [], ["CartPole-v1", "CartPole-v1"], {"id": "CartPole-v1"}])
def test_an_environment_that_is_none_is_refused(env: Any) -> None:
    with pytest.raises(JobInvalid, match="env"):
        Collector(env, frames_per_batch=8)


def test_an_id_that_nobody_registered_is_told_with_the_nearest() -> None:
    with pytest.raises(EnvironmentInvalid, match=r"CartPole-v1"):
        Collector("CartPol-v1", frames_per_batch=8)


def test_a_policy_that_cannot_be_called_is_refused() -> None:
    with pytest.raises(PolicyInvalid, match=r"a policy is an nn.Module or another callable, not a dict"):
        Collector("CartPole-v1", {"weights": 1}, frames_per_batch=8)


# --- what does not go together ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keywords", "names"),
    [
        ({"trajs_per_batch": 2, "set_truncated": True}, ("trajs_per_batch", "set_truncated")),
        ({"reset_at_each_iter": True, "reset_when_done": False}, ("reset_at_each_iter", "reset_when_done")),
        ({"trajs_per_batch": 2, "reset_when_done": False}, ("trajs_per_batch", "reset_when_done")),
        ({"env_processes": 2, "num_envs": 4}, ("env_processes", "vectorization")),
        ({"env_processes": 4, "num_envs": 2, "vectorization": "async"}, ("env_processes", "num_envs")),
        ({"backend": "envpool", "vectorization": "async"}, ("backend", "vectorization")),
        ({"mode": "async"}, ("mode", "workers")),
        ({"quiet": True}, ("quiet", "workers")),
        ({"start_method": "fork"}, ("start_method", "workers")),
        ({"max_restarts_per_worker": 1}, ("max_restarts_per_worker", "workers")),
        ({"max_batches_ahead": 1}, ("max_batches_ahead", "workers")),
        ({"stragglers_threshold": 0.5}, ("stragglers_threshold", "workers")),
        ({"stragglers_threshold": 0.5, "mode": "async", "workers": 2}, ("stragglers_threshold", "mode")),
        ({"max_lag": 3}, ("max_lag", "mode")),
        ({"cat_results": "time", "mode": "async", "workers": 2}, ("cat_results", "mode")),
        ({"max_batches_ahead": 2, "workers": 2}, ("max_batches_ahead", "mode")),
        ({"precision": "bfloat16", "weight_scheme": object()}, ("precision", "weight_scheme")),
        ({"env_kwargs": [{}, {}]}, ("env_kwargs", "workers")),
        ({"policy_device": ["cpu"] * 3, "workers": 2}, ("policy_device", "workers")),
        ({"policy_device": "meta"}, ("policy_device", "policy")),
        ({"device": "meta", "workers": 2, "replay_buffer": ReplayBuffer(8, shared=True)}, ("device", "replay_buffer")),
    ],
)
def test_keywords_that_do_not_go_together_are_both_named(keywords: dict[str, Any], names: tuple[str, str]) -> None:
    with pytest.raises(JobInvalid) as raised:
        Collector("CartPole-v1", **{"frames_per_batch": 8} | keywords)
    for name in names:
        assert name in str(raised.value)
    assert "Each" not in str(raised.value)  # a job's own words are not what the user wrote
    assert "env.num" not in str(raised.value)


def test_a_policy_and_a_factory_of_one_are_too_much() -> None:
    with pytest.raises(PolicyInvalid, match="policy and policy_factory are both given"):
        Collector("CartPole-v1", always_0, policy_factory=lambda *_: always_0, frames_per_batch=8)


def test_policy_device_needs_a_policy_that_can_be_moved() -> None:
    with pytest.raises(JobInvalid, match=r"policy_device. moves an nn.Module"):
        Collector("CartPole-v1", always_0, policy_device="meta", frames_per_batch=8)


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"num_envs": 3}, "num_envs is 3, but the VectorEnv given has 2"),
        ({"vectorization": "async"}, "a VectorEnv steps itself; remove `vectorization`"),
        ({"env_kwargs": {"a": 1}}, "a VectorEnv .*remove `env_kwargs`"),
        ({"workers": 2}, "cannot be moved into worker processes; give a function that makes it"),
    ],
)
def test_a_vector_that_is_there_leaves_nothing_to_say_about_it(keywords: dict[str, Any], message: str) -> None:
    vector = SyncVectorEnv([make_env, make_env])
    try:
        with pytest.raises(JobInvalid, match=message):
            Collector(vector, frames_per_batch=12, **keywords)
    finally:
        vector.close()


# --- what is made ----------------------------------------------------------------------------------------------------


def test_a_collector_says_the_job_that_its_arguments_amount_to() -> None:
    with Collector("CartPole-v1", num_envs=2, frames_per_batch=8, seed=3, exploration="mode", step_count=True) as made:
        spec = made.job.spec
    assert (spec.env.id, spec.env.num_envs, spec.workers, spec.mode) == ("CartPole-v1", 2, 1, "Sync")
    assert (spec.collect.frames_per_batch, spec.collect.seed, spec.collect.exploration) == (8, 3, "Mode")
    assert spec.collect.step_count


def test_an_environment_whose_policy_cannot_be_made_is_closed_again() -> None:
    def broken(*_: Any) -> Any:
        raise RuntimeError("no")

    before = Closing.closed
    with pytest.raises(RuntimeError, match="no"):
        Collector(Closing, policy_factory=broken, num_envs=2, frames_per_batch=8)
    assert Closing.closed == before + 2


def test_in_this_process_the_learners_own_module_acts_unless_it_is_to_be_elsewhere() -> None:
    policy = nn.Linear(4, 2)
    assert construct("CartPole-v1", policy, {"frames_per_batch": 8}).acts_with_the_learners_policy
    elsewhere = construct("CartPole-v1", policy, {"frames_per_batch": 8, "policy_device": "meta"})
    assert not elsewhere.acts_with_the_learners_policy
    assert not construct("CartPole-v1", policy, {"frames_per_batch": 8, "workers": 1}).acts_with_the_learners_policy
