"""The job that a collector with `cluster=` submits, and arguments that no job can hold."""

from functools import partial
from operator import attrgetter
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from pydantic.alias_generators import to_snake
from tests.sdk.given_keywords import keywords_of
from torch import Tensor, nn

import rollfleet
from rollfleet import Cluster
from rollfleet.errors import JobInvalid
from rollfleet.learner.construction import construct
from rollfleet.learner.keywords import PLACES
from rollfleet.learner.worker_entrypoints import env_of_worker, named, policy_of_worker
from rollfleet.schemes import Trained
from rollfleet.transports.hooks import HOOKS
from rollfleet_api.job import CollectorJob
from rollfleet_api.permissions import Role

HERE, OURS = __name__, "rollfleet.learner.worker_entrypoints"
PLACE = Cluster(name="mine", namespace="team-a")


def make_env(limit: int = 5) -> gymnasium.Env[Any, Any]:
    return gymnasium.wrappers.TimeLimit(gymnasium.make("CartPole-v1"), limit)


def always_0(observation: Tensor) -> Tensor:
    return torch.zeros(len(observation), dtype=torch.int64)


class Kept(nn.Module):
    def __init__(self, observation_space: Any, action_space: Any, *, width: Any, scale: float = 1.0) -> None:
        super().__init__()
        self.width, self.scale = width, scale

    forward = staticmethod(always_0)


class Forgotten(nn.Module):
    """Keeps an argument in another form."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = nn.Linear(4, width)

    forward = staticmethod(always_0)


class Halved:
    """A scheme with settings of its own."""

    def __init__(self, share: float) -> None:
        self.share = share

    def select(self, policy: Any) -> Any: ...

    def layout(self, models: Any) -> Any: ...


def make_policy() -> Kept:
    return Kept(None, None, width=3)


def print_it(batch: object = None) -> None:
    print(batch)


def the_job(env: Any = "CartPole-v1", policy: Any = None, place: Cluster = PLACE, **keywords: Any) -> CollectorJob:
    keywords = {"workers": 2, "frames_per_batch": 64} | keywords
    return construct(env, policy, keywords_of(cluster=place, **keywords)).workload.job


def test_the_keywords_are_the_fields_of_the_job_and_the_place_has_the_resources() -> None:
    parts: dict[str, Any] = {"template": {"spec": {}}, "nats": {"service": "LoadBalancer"}}
    place = Cluster(name="mine", image="me:1", gpu=2, cpu=0.5, memory="1Gi", labels={"a": "b"}, **parts)
    more: dict[str, Any] = {"max_restarts_per_worker": 2, "env_device": "cuda", "weight_scheme": Trained()}
    job = the_job(place=place, seed=3, mode="async", num_envs=4, max_lag=7, **more)
    spec: Any = job.dump()["spec"]
    assert (job.metadata.name, job.metadata.labels) == ("mine", {"a": "b"})
    assert spec == {
        "workers": 2,  # mode: Async is the default
        "env": {"id": "CartPole-v1", "numEnvs": 4, "device": "cuda"},
        "policy": {"random": {}},
        "collect": {"framesPerBatch": 64, "seed": 3},
        "weights": {"maxLag": 7, "scheme": "rollfleet.schemes:Trained"},
        "resources": {"gpu": {"count": 2}, "requests": {"cpu": "0.5", "memory": "1Gi"}, "limits": {"memory": "1Gi"}},
        "image": "me:1",
        **parts,
        "failure": {"maxRestartsPerWorker": 2, "learnerTimeoutSeconds": 600},
        "ttlSecondsAfterFinished": 300,
    }


OPTIONS: list[dict[str, Any]] = [
    {"total_frames": 64, "init_random_frames": 32, "max_frames_per_traj": 7, "seed": 5, "exploration": "mode"},
    {"traj_format": "cat", "trajs_per_batch": 3, "step_count": True, "is_init": True, "info_keys": ("limit",)},
    {"num_envs": 4, "vectorization": "async", "env_processes": 2, "reset_at_each_iter": True, "set_truncated": True},
    {"non_finite": "error", "env_failures": {"maxShare": 0.3}, "settings_method": "set_level"},
    {"episode_metrics": ["success"], "episode_label": "task"},
    {"reset_when_done": False, "cat_results": "stack", "stragglers_threshold": 0.9, "suspect_after_s": 20},
    {"mode": "async", "max_lag": 3, "max_batches_ahead": 2, "weights_interval": 0},
    {"workers": 3, "frames_per_batch": 48},
    {"policy": nn.Linear(4, 2), "policy_factory": make_policy, "evaluation": {"every": 2}},
]
ELSEWHERE = {"backend", "servers", *HOOKS}
"""`backend` has one value on this machine, `servers` none; hooks have a test of their own."""


def test_each_option_has_a_value() -> None:
    assert PLACES.keys() - ELSEWHERE == {name for given in OPTIONS for name in given if name in PLACES}


@pytest.mark.parametrize("given", OPTIONS)
def test_an_option_sets_the_same_field_of_a_job_on_a_cluster_as_in_processes(given: dict[str, Any]) -> None:
    keywords = {"workers": 2, "frames_per_batch": 64} | given
    here = construct("CartPole-v1", keywords.pop("policy", None), keywords_of(**keywords)).workload.job.spec
    there = the_job(**given).spec
    for field in (to_snake(PLACES[name]) for name in given if name in PLACES):
        assert attrgetter(field)(there) == attrgetter(field)(here), field


def test_servers_are_about_pods() -> None:
    served: dict[str, Any] = {"num_envs": 4, "vectorization": "async", "servers": {"replicas": 2}}
    assert the_job(**served).spec.size(Role.ENV_SERVER) == 2 * the_job(**served).spec.workers
    with pytest.raises(JobInvalid, match="`servers` is about pods; pass `cluster`, or remove it"):
        rollfleet.Collector("CartPole-v1", workers=2, frames_per_batch=64, **served)


@pytest.mark.parametrize("name", HOOKS)
def test_a_hook_is_named(name: str) -> None:
    hook: dict[str, Any] = {name: print_it}
    spec = the_job(**hook).spec
    assert getattr(spec.collect, name) == f"{HERE}:print_it"
    text: dict[str, Any] = {name: f"{HERE}:print_it"}
    assert the_job(**text).spec.source == spec.source is not None


def test_a_kept_job_is_not_deleted_after_its_end() -> None:
    assert the_job(place=Cluster(keep=True, learner_timeout_s=0)).spec.ttl_seconds_after_finished is None


@pytest.mark.parametrize(
    ("env", "name"), [("ALE/Pong-v5", "ale-pong-v5-"), (make_env, "make-env-"), (partial(make_env), "collector-")]
)
def test_a_job_without_a_name_is_named_after_its_environment(env: Any, name: str) -> None:
    assert the_job(env, place=Cluster()).metadata.name.startswith(name)


@pytest.mark.parametrize(
    ("keywords", "policy"),
    [
        ({"policy": Kept(None, None, width=3)}, {"entrypoint": f"{HERE}:Kept", "kwargs": {"width": 3, "scale": 1.0}}),
        (
            {"policy": nn.DataParallel(Kept(None, None, width=3))},
            {"entrypoint": f"{HERE}:Kept", "kwargs": {"width": 3, "scale": 1.0}},
        ),
        ({"policy": nn.Linear(4, 2), "policy_factory": make_policy}, {"entrypoint": f"{HERE}:make_policy"}),
        ({"policy_factory": partial(Kept, width=np.int64(2))}, {"entrypoint": f"{HERE}:Kept", "kwargs": {"width": 2}}),
        ({"policy_factory": "my_module:make"}, {"entrypoint": "my_module:make"}),
        ({"policy": always_0}, {"entrypoint": f"{OURS}:named", "kwargs": {"name": f"{HERE}:always_0"}}),
        ({"policy": rollfleet.RandomPolicy(gymnasium.spaces.Discrete(2))}, {"random": {}}),
        (
            {"policy_factory": [make_policy, "my_module:make"]},
            {
                "entrypoint": f"{OURS}:policy_of_worker",
                "kwargs": {"entries": [{"entrypoint": f"{HERE}:make_policy"}, {"entrypoint": "my_module:make"}]},
            },
        ),
    ],
)
def test_a_policy_is_named(keywords: dict[str, Any], policy: dict[str, Any]) -> None:
    assert the_job(**keywords).spec.policy.model_dump(by_alias=True, exclude_defaults=True, exclude_none=True) == policy


def test_the_built_in_policy_is_named_with_its_layers() -> None:
    env = gymnasium.make("CartPole-v1")
    policy = rollfleet.ActorCritic(env.observation_space, env.action_space, hidden=(8,), activation="Relu")
    assert the_job(policy=policy).spec.policy.kwargs == {"hidden": [8], "activation": "Relu"}


def test_lists_have_an_entry_for_each_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    job = the_job([make_env, "CartPole-v1"], env_kwargs=[{"limit": 3}, {}])
    entries: Any = job.spec.env.kwargs["entries"]
    assert entries == [{"entrypoint": f"{HERE}:make_env", "kwargs": {"limit": 3}}, {"id": "CartPole-v1"}]
    monkeypatch.setenv("ROLLFLEET_WORKER", "0")
    assert env_of_worker(entries=entries).spec.max_episode_steps == 3  # type: ignore[attr-defined]
    monkeypatch.setenv("ROLLFLEET_WORKER", "3")
    assert env_of_worker(entries=entries).spec.id == "CartPole-v1"  # type: ignore[attr-defined]
    made = policy_of_worker(None, None, entries=[{"entrypoint": f"{HERE}:make_policy"}])  # type: ignore[arg-type]
    assert isinstance(made, Kept)
    assert named(name=f"{HERE}:always_0") is always_0


def test_sources_are_mounted_in_their_folders_beside_the_users_own_volumes() -> None:
    scratch = {"name": "scratch", "emptyDir": {}}
    job = the_job(make_env, place=Cluster(name="mine", template={"spec": {"volumes": [scratch]}}))
    assert job.spec.source is not None
    assert job.spec.source.config_map == "mine-source"
    volumes: Any = job.spec.template["spec"]
    assert [each["name"] for each in volumes["volumes"]] == ["source", "scratch"]


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"env": "Own-v0"}, "'Own-v0' is registered by a module of yours, .* `env='my_module:Own-v0'`"),
        ({"env_kwargs": {"a": object()}}, "`env_kwargs`: a job holds numbers, texts, lists and mappings, not"),
        ({"policy": Forgotten(2)}, r"Forgotten keeps no `width` .*:\n    def make_policy\(.*\n.*`policy_factory="),
        ({"policy": nn.Sequential()}, "Sequential keeps no `args`"),
        ({"policy_device": ["cpu", "cuda"], "policy": make_policy()}, "`policy_device`: all pods of a job are alike"),
        ({"weight_scheme": Halved(0.5)}, "make Halved a dataclass with the one field `precision`"),
        ({"workers": 0}, "`cluster` needs worker processes; write `workers=1` or more"),
        ({"start_method": "fork"}, "`start_method` is about processes of this machine; remove it"),
        ({"place": Cluster(nats={"nothing": 1})}, r"^nats\.nothing: unknown field `nothing`; the fields here are"),
        ({"quiet": False}, "`quiet` is about processes of this machine"),
        ({"place": "team-a"}, r"`cluster` is a rollfleet.Cluster\(namespace=...\), not 'team-a'"),
    ],
)
def test_what_no_job_can_hold_is_refused_before_anything_is_submitted(keywords: dict[str, Any], message: str) -> None:
    if "Own-v0" not in gymnasium.registry:
        gymnasium.register("Own-v0", entry_point=make_env)  # type: ignore[arg-type]
    with pytest.raises(JobInvalid, match=message):
        the_job(**keywords)
