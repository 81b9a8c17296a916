"""Each keyword of `rollfleet.Collector` does on a cluster what it does in processes.

The job is made, checked and stored as for pods, on a real API server. Its workers read it from NATS as pods do, but are
threads of this process, because a pod takes seconds to start.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import fields
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium
import pytest
import torch
from tests.job_server import WorkerThread
from tests.sdk.collector.counting import Parts
from tests.sdk.collector.given_keywords import DEFAULTS, grouped, keywords_of
from torch import Tensor

import rollfleet
from rollfleet import ActorCritic, Cluster, Collector
from rollfleet.cluster.submission import Submission
from rollfleet.learner.construction import construct
from rollfleet.nats.streams import provision
from rollfleet.nats.transport import NatsTransport
from rollfleet.schemes import Trained
from rollfleet_api.job import KIND
from rollfleet_api.permissions import Role
from rollfleet_api.validation import parse_job

if TYPE_CHECKING:
    from tests.job_server import Server

    from rollfleet.cluster.api import ClusterApi

pytestmark = pytest.mark.slow

LENGTH = "LENGTH_OF_EPISODES"
OF_PROCESSES = {"start_method", "quiet"}
"""Keywords that no job can hold: `test_on_cluster.py` has their errors."""
ELSEWHERE = {"cluster", "evaluation"}
"""Keywords with modules of tests of their own."""


class Limited(gymnasium.wrappers.TimeLimit):
    """Reports the greatest length of its episodes."""

    def step(self, action: Any) -> Any:
        *result, info = super().step(action)
        return *result, info | {"limit": self._max_episode_steps}


def make_env(limit: int = 20) -> gymnasium.Env[Any, Any]:
    return Limited(gymnasium.make("CartPole-v1"), int(os.environ.get(LENGTH, limit)))


def make_policy() -> ActorCritic:
    torch.manual_seed(0)
    env = make_env()
    return ActorCritic(env.observation_space, env.action_space, hidden=(8,))


def leaning(observation: Tensor) -> Tensor:
    return (observation[:, 2] > 0).long()


def shorten() -> None:
    os.environ[LENGTH] = "4"


def count(batch: Any = None) -> None:
    """Be called, as a hook."""


ASYNC: dict[str, Any] = {"mode": "async", "weights_interval": 0}
VALUES: dict[str, dict[str, Any]] = {
    "frames_per_batch": {"frames_per_batch": 48},
    "total_frames": {"total_frames": 64},
    "init_random_frames": {"init_random_frames": 32},
    "max_frames_per_traj": {"max_frames_per_traj": 7},
    "trajs_per_batch": {"trajs_per_batch": 3},
    "traj_format": {"traj_format": "cat", "trajs_per_batch": 3},
    "num_envs": {"num_envs": 4},
    "env_kwargs": {"env_kwargs": {"limit": 5}},
    "vectorization": {"vectorization": "async"},
    "env_processes": {"env_processes": 2, "vectorization": "async", "num_envs": 4},
    "backend": {"backend": "gymnasium"},
    "seed": {"seed": 5},
    "reset_at_each_iter": {"reset_at_each_iter": True},
    "reset_when_done": {"reset_when_done": False},
    "init_fn": {"init_fn": shorten},
    "pre_collect_hook": {"pre_collect_hook": count},
    "post_collect_hook": {"post_collect_hook": count},
    "policy_factory": {"policy_factory": [make_policy]},
    "exploration": {"exploration": "mode"},
    "weights_interval": {"weights_interval": 2},
    "max_lag": ASYNC | {"max_lag": 3},
    "precision": {"precision": "bfloat16"},
    "weight_scheme": {"weight_scheme": Trained()},
    "set_truncated": {"set_truncated": True},
    "step_count": {"step_count": True},
    "is_init": {"is_init": True},
    "info_keys": {"info_keys": ("limit",)},
    "cat_results": {"cat_results": "stack"},
    "postproc": {"postproc": lambda batch: batch["next", "reward"]},
    "replay_buffer": {"replay_buffer": Parts},
    "acknowledge": {"acknowledge": "manual"},
    "device": {"device": "cpu"},
    "policy_device": {"policy_device": "cpu"},
    "env_device": {"env_device": "cpu"},
    "no_cuda_sync": {"no_cuda_sync": True, "device": "cpu"},
    "workers": {"workers": 2, "policy": leaning},
    "mode": ASYNC,
    "stragglers_threshold": {"stragglers_threshold": 0.9},
    "max_batches_ahead": ASYNC | {"max_batches_ahead": 2},
    "max_restarts_per_worker": {"max_restarts_per_worker": 1},
    "suspect_after_s": {"suspect_after_s": 20},
}


def test_each_keyword_is_tried() -> None:
    assert set(VALUES) == set(DEFAULTS) - OF_PROCESSES - ELSEWHERE


class Pods:
    """Makes collectors as `rollfleet.Collector(..., cluster=)` does, with threads for pods."""

    def __init__(self, stack: ExitStack, server: "Server", api: "ClusterApi") -> None:
        self._stack, self._server, self._api = stack, server, api

    def __call__(self, env: Any, policy: Any, **keywords: Any) -> Collector:
        place = Cluster(namespace=self._api.namespace, name="mine", progress=False)
        construction = construct(env, policy, keywords_of(cluster=place, **keywords))
        assert construction.sources is not None
        submission = Submission(construction.workload.job, construction.sources, place)
        self._stack.callback(submission.end)
        stored: Any = self._api.get(KIND, self._api.namespace, "mine")
        subjects = self._server.subjects
        spec = stored["spec"] | {"delivery": stored["spec"]["delivery"] | {"maxBytes": "64Mi"}}
        stored |= {"spec": spec, "metadata": {"name": subjects.job, "namespace": subjects.namespace}}
        job = parse_job(stored)
        admin = self._server.link()
        admin.call(provision(admin, job), timeout_s=10)
        for index in range(job.spec.workers):
            self._stack.callback(WorkerThread(self._server, job, index).join)
        options: Any = {each.name: getattr(construction.options, each.name) for each in fields(construction.options)}
        transport = NatsTransport(
            self._server.link(Role.LEARNER),
            job,
            device=torch.device(keywords["device"]) if "device" in keywords else None,
            no_cuda_sync=keywords.get("no_cuda_sync", False),
        )
        return Collector.over(transport, job, policy, **options)


@pytest.fixture
def pods(
    server: "Server", api: "ClusterApi", kubeconfig: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Collector]]:
    """Makes collectors on a cluster; see `Pods`."""
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    monkeypatch.setenv("ROLLFLEET_WORKER", "0")
    monkeypatch.setenv(LENGTH, "20")
    monkeypatch.delenv(LENGTH)  # also after the test, which may set it
    with ExitStack() as stack:
        yield Pods(stack, server, api)


def flattened(result: Any) -> dict[Any, Tensor]:
    return {"": result} if isinstance(result, Tensor) else dict(result.items(True, True))


def collected(make: Callable[..., Collector], keywords: dict[str, Any]) -> list[dict[Any, Tensor]]:
    """Three batches, with weights that change after each; of a buffer what is in it."""
    given = {"policy": make_policy(), "frames_per_batch": 32, "num_envs": 2, "workers": 1} | keywords
    policy, buffer = given.pop("policy"), given.get("replay_buffer")
    if buffer:
        given["replay_buffer"] = stored = Parts()
    results = []
    with make(make_env, policy, **given) as collector:
        for batch in islice(collector, 3):
            results.append(batch)
            if given.get("acknowledge") == "manual":
                collector.ack()
            if isinstance(policy, torch.nn.Module):
                with torch.no_grad():
                    for parameter in policy.parameters():
                        parameter.mul_(1.1)
    return [flattened(each) for each in (stored if buffer else results)]


@pytest.mark.parametrize("keyword", VALUES)
def test_batches_are_those_of_processes_bit_for_bit(keyword: str, pods: Callable[..., Collector]) -> None:
    def processes(*arguments: Any, **keywords: Any) -> Collector:
        return rollfleet.Collector(*arguments, **grouped({"start_method": "fork"} | keywords))

    expected, found = (collected(make, VALUES[keyword]) for make in (processes, pods))
    assert len(expected) == len(found) == (2 if keyword == "total_frames" else 3)
    for one, other in zip(expected, found, strict=True):
        assert set(one) == set(other)
        for key, value in one.items():
            assert torch.equal(value, other[key]), key
