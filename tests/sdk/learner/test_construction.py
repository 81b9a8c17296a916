"""Arguments that `rollfleet.Collector` refuses, and its messages."""

import re
from operator import attrgetter
from typing import Any

import gymnasium
import pytest
from gymnasium.vector import SyncVectorEnv
from pydantic.alias_generators import to_snake
from tests.sdk.counting import always_0
from tests.sdk.given_keywords import grouped, keywords_of
from torch import nn

import rollfleet
import rollfleet.schemes
from rollfleet import Collector
from rollfleet.errors import JobInvalid, PolicyInvalid
from rollfleet.learner.construction import construct
from rollfleet.learner.keywords import PLACES
from rollfleet.testing import CountingEnv


def make_env() -> gymnasium.Env[Any, Any]:
    return gymnasium.make("CartPole-v1")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"job": 5}, r"job: expected a name, 'namespace/name', or a CollectorJob, got 5"),
        ({"address": 5}, r"address: expected a URL such as 'nats://host:4222', got 5"),
        ({"credentials": "/nope"}, r"credentials: there is no file '/nope'"),
        ({"credentials": 5}, r"credentials: there is no file 5"),
        ({"timeout_s": "a"}, r"timeout_s: expected a number of seconds, got 'a'"),
        ({"timeout_s": -1}, r"timeout_s: must be between 0 and 1e\+09 seconds, got -1"),
        ({"rank": "1", "ranks": 2}, r"`rank` is a whole number, not '1': write `rank=int\(\.\.\.\)`"),
        (
            {"rank": 2, "ranks": 2},
            r"`rank` is one of 0 to 1 when `ranks` is 2, not 2: .* write `rank=dist\.get_rank\(\)",
        ),
        ({"rank": -1, "ranks": 2}, r"`rank` is one of 0 to 1 when `ranks` is 2, not -1"),
        ({"rank": 1}, r"`rank` is 0 when `ranks` is 1, not 1"),
        ({"ranks": 2.0}, r"`ranks` is a whole number, not 2\.0"),
        ({"ranks": 0}, r"`ranks` is the learner's number of processes: 1 or more, not 0"),
        ({"job": "My.Job"}, r"My\.Job"),
        ({"device": "cuda:99"}, r"`device`: this machine has no device 'cuda:99'"),
        ({"no_cuda_sync": True}, r"name a device, or remove it"),
        ({"no_cuda_sync": "no"}, r"no_cuda_sync: expected True or False, got 'no'"),
        ({"acknowledge": 5}, r"`acknowledge` is one of 'auto', 'manual', not 5"),
        ({"acknowledge": "manual", "replay_buffer": []}, r"`replay_buffer` stores each batch before"),
    ],
)
def test_connect_refuses_a_wrong_value_before_it_connects(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(JobInvalid, match=message):
        rollfleet.connect(**{"job": "job", "address": "nats://localhost:1"} | arguments)


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        (
            {"frames_per_batch": 10, "num_envs": 3},
            r"10 is not a multiple of 3, the environments of a batch \(`num_envs`, .*`workers`\); write 9 or 12",
        ),
        (
            {"frames_per_batch": 500, "num_envs": 4, "workers": 2},
            r"^frames_per_batch: 500 is not a multiple of 8, .*; write 496 or 504",
        ),
        ({"frames_per_batch": "10"}, r"frames_per_batch: expected a whole number, got '10'; write 10 without quotes$"),
        ({"frames_per_batch": None}, r"frames_per_batch: expected a whole number, got None; write a value"),
        ({"frames_per_batch": 8.0}, r"frames_per_batch: expected a whole number, got 8\.0; write 8$"),
        ({"total_frames": -2}, r"total_frames: must be at least 0, got -2"),
        ({"num_envs": None, "frames_per_batch": None, "trajs_per_batch": 2}, r"num_envs: expected a whole number"),
        ({"total_frames": True}, r"total_frames: expected a whole number, got True"),
        ({"seed": None}, r"seed: expected a whole number, got None; remove it for the default"),
        ({"step_count": 1}, r"step_count: expected true or false, got 1"),
        ({"exploration": "greedy"}, r"exploration: expected 'random' or 'mode' or .*, got 'greedy'"),
        ({"cat_results": "sideways"}, r"cat_results: expected 'envs' or 'time' or 'stack', got 'sideways'"),
        ({"weights_interval": -2}, r"weights_interval: must be at least 0"),
        ({"workers": -1}, r"workers: must be at least 0, got -1"),
        ({"workers": 1.5}, r"workers: expected an int, got 1\.5"),
        ({"workers": 1, "stragglers_threshold": 0.0}, r"stragglers_threshold: must be more than 0"),
        ({"workers": 1, "max_restarts_per_worker": -1}, r"max_restarts_per_worker: must be at least 0, got -1"),
        ({"workers": 1, "quiet": "no"}, r"quiet: expected True or False, got 'no'"),
        ({"weight_scheme": 5}, r"`weight_scheme` needs the methods of rollfleet.schemes.WeightScheme; 5 lacks them"),
        ({"device": "gpu"}, r"`device`: 'gpu' is not a torch device"),
        ({"device": "cuda:99"}, r"`device`: this machine has no device 'cuda:99'"),
        ({"policy_device": object()}, r"`policy_device`: <object .*> is not a torch device; write a name"),
        ({"backend": "unity"}, r"backend: "),
        ({"env_device": "gpu"}, r"`env_device`: 'gpu' is not a torch device"),
        ({"env_device": ["cpu", "cpu"]}, r"`env_device` has 2 entries for 1 workers"),
        ({"no_cuda_sync": True}, r"`no_cuda_sync` needs `device` or `env_device`"),
        ({"backend": "envpool"}, r"backend: EnvPool makes its own environments, .*; write an `env` of EnvPool"),
        ({"policy_device": "gpu"}, r"`policy_device`: .*gpu"),
        ({"policy_device": "meta", "policy": always_0}, r"policy_device. requires an nn.Module"),
        ({"env_kwargs": 3}, r"`env_kwargs` must map names to values, not be a int"),
        ({"replay_buffer": 3}, r"`replay_buffer` needs a method extend\(frames\); 3 has none"),
        ({"postproc": 3}, r"`postproc` must be callable; 3 is not"),
        (
            {"policy_factory": 3},
            r"policy_factory is called as factory\(observation_space, action_space\) or factory\(\)",
        ),
        ({"policy_factory": lambda space: space}, r"policy_factory is called as .*; <function .*> cannot be"),
        ({"policy_factory": nn.Linear(4, 2)}, r"policy_factory makes a policy, and this nn\.Module is one"),
        ({"policy_factory": print}, r"policy_factory returned None; a policy is an nn\.Module or another callable"),
        ({"policy_factory": lambda: always_0, "policy": always_0}, r"the policy <function always_0 .*> has no weights"),
        ({"env_kwargs": {"no name": 1}}, r"`env_kwargs` must map names .*; 'no name' is no name"),
        ({"policy_factory": "nowhere:make"}, r"policy_factory: module 'nowhere'"),
        ({"env_kwargs": {"nonsense": 1}}, r"could not be built with kwargs \{'nonsense': 1\}"),
        ({"workers": 1, "start_method": "thread"}, r"start_method is one of 'spawn', 'fork', not 'thread'"),
        ({"processes": 2}, r"`processes` is a rollfleet.Processes\(\.\.\.\), not 2"),
        (
            {"num_envs": 4, "env_processes": 2},
            "^env_processes: only `vectorization='async'` uses processes; write that, or remove `env_processes`$",
        ),
        (
            {"reset_at_each_iter": True, "reset_when_done": False},
            "^reset_when_done: with `reset_when_done=False` an environment ends at most one episode in a batch: "
            "`trajs_per_batch` may never be reached, and `reset_at_each_iter` would also reset unfinished episodes; "
            "remove one of them$",
        ),
    ],
)
def test_an_invalid_value_is_refused_by_its_keyword(keywords: dict[str, Any], message: str) -> None:
    env: Any = make_env if "backend" in keywords else "CartPole-v1"
    with pytest.raises(JobInvalid, match=message) as raised:
        Collector(env, **grouped({"frames_per_batch": 8} | keywords))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("places", [{}, {"workers": 2}], ids=["here", "processes"])
@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (nn.Identity, r"^policy is the class Identity; pass an object of it, or `policy_factory=`$"),
        (5, r"a policy is an nn.Module or another callable, not a int"),
    ],
    ids=["class", "number"],
)
def test_what_is_no_policy_is_refused_before_workers_start(policy: Any, message: str, places: dict[str, Any]) -> None:
    with pytest.raises(PolicyInvalid, match=message):
        Collector("CartPole-v1", policy, frames_per_batch=8, **places)


@pytest.mark.parametrize("none", [0, -1, None])
@pytest.mark.parametrize(
    "keyword", ["total_frames", "init_random_frames", "max_frames_per_traj", "trajs_per_batch", "weights_interval"]
)
def test_minus_1_and_none_mean_no_limit(keyword: str, none: int | None) -> None:
    job = construct("CartPole-v1", None, keywords_of(frames_per_batch=8, **{keyword: none})).workload.job
    assert attrgetter(to_snake(PLACES[keyword]))(job.spec) == 0


def make_always_0() -> Any:
    return always_0


@pytest.mark.parametrize("factory", [make_always_0, f"{__name__}:make_always_0"])
def test_a_policy_factory_may_take_no_spaces(factory: Any) -> None:
    with Collector("CartPole-v1", policy_factory=factory, num_envs=2, frames_per_batch=8) as collector:
        assert not next(collector)["action"].any()


@pytest.mark.parametrize("env", [3, "no id!", None, [], ["CartPole-v1", "CartPole-v1"], {"id": "CartPole-v1"}])
def test_an_invalid_environment_argument_is_refused(env: Any) -> None:
    with pytest.raises(JobInvalid, match="env"):
        Collector(env, frames_per_batch=8)


@pytest.mark.parametrize(
    ("keywords", "names"),
    [
        ({"backend": "envpool", "env_processes": 1}, ("backend", "env_processes")),
        ({"trajs_per_batch": 2, "set_truncated": True}, ("trajs_per_batch", "set_truncated")),
        ({"trajs_per_batch": 2, "reset_when_done": False}, ("trajs_per_batch", "reset_when_done")),
        ({"env_processes": 4, "num_envs": 2, "vectorization": "async"}, ("env_processes", "num_envs")),
        ({"backend": "envpool", "vectorization": "async"}, ("backend", "vectorization")),
        ({"mode": "async"}, ("mode", "workers")),
        ({"quiet": False}, ("quiet", "workers")),
        ({"start_method": "fork"}, ("start_method", "workers")),
        ({"max_restarts_per_worker": 1}, ("max_restarts_per_worker", "workers")),
        ({"max_batches_ahead": 2}, ("max_batches_ahead", "workers")),
        ({"stragglers_threshold": 0.5}, ("stragglers_threshold", "workers")),
        ({"stragglers_threshold": 0.5, "mode": "async", "workers": 2}, ("stragglers_threshold", "mode")),
        ({"max_lag": 3}, ("max_lag", "mode")),
        ({"cat_results": "time", "mode": "async", "workers": 2}, ("cat_results", "mode")),
        ({"max_batches_ahead": 2, "workers": 2}, ("max_batches_ahead", "mode")),
        ({"env_kwargs": [{}, {}]}, ("env_kwargs", "workers")),
        ({"policy_device": ["cpu"] * 3, "workers": 2}, ("policy_device", "workers")),
        ({"policy_device": "meta"}, ("policy_device", "policy")),
    ],
)
def test_keywords_that_do_not_go_together_are_both_named(keywords: dict[str, Any], names: tuple[str, str]) -> None:
    with pytest.raises(JobInvalid) as raised:
        Collector("CartPole-v1", **grouped({"frames_per_batch": 8} | keywords))
    for name in names:
        assert name in str(raised.value)
    assert "Each" not in str(raised.value)  # the message has the user's keywords, not the job's fields
    assert "env.num" not in str(raised.value)
    assert not re.search(r"[a-z][A-Z]", str(raised.value).replace("VectorEnv", "").replace("EnvPool", ""))


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"num_envs": 3}, "num_envs is 3, but the VectorEnv has 2"),
        ({"vectorization": "async"}, "a VectorEnv steps itself; remove `vectorization`"),
        ({"env_kwargs": {"a": 1}}, "a VectorEnv .*remove `env_kwargs`"),
        ({"workers": 2}, "cannot be moved into worker processes; pass a function that makes it"),
    ],
)
def test_keywords_about_a_vector_env_object_are_refused(keywords: dict[str, Any], message: str) -> None:
    vector = SyncVectorEnv([make_env, make_env])
    try:
        with pytest.raises(JobInvalid, match=message):
            Collector(vector, frames_per_batch=12, **keywords)
    finally:
        vector.close()


def test_environments_whose_policy_cannot_be_made_are_closed_again() -> None:
    closed = []

    class Closing(CountingEnv):
        def close(self) -> None:
            closed.append(1)

    def broken(*_: Any) -> Any:
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        Collector(Closing, policy_factory=broken, num_envs=2, frames_per_batch=8)
    assert closed == [1, 1]
