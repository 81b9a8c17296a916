"""`rollfleet.Collector(..., cluster=)`: on a real API server, operator and NATS, with workers as processes."""

from typing import Any

import gymnasium
import pytest
import torch
from tests.sdk.batches import assert_same
from tests.sdk.cluster.kubelet import Kubelet

import rollfleet
from rollfleet import Cluster
from rollfleet.cluster.api import ClusterApi
from rollfleet.errors import JobInvalid
from rollfleet_api.job import KIND

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def make_env(limit: int = 20) -> gymnasium.Env[Any, Any]:
    return gymnasium.wrappers.TimeLimit(gymnasium.make("CartPole-v1").unwrapped, limit)


def actor_critic() -> rollfleet.ActorCritic:
    torch.manual_seed(0)
    env = gymnasium.make("CartPole-v1")
    return rollfleet.ActorCritic(env.observation_space, env.action_space)


def test_a_cluster_yields_the_batches_of_processes_bit_for_bit(kubelet: Kubelet, api: ClusterApi) -> None:
    """An environment of this module, weights that change, more workers in mid-run; nothing stays."""

    def run(**place: Any) -> list[Any]:
        policy, batches = actor_critic(), []
        keywords: dict[str, Any] = {"num_envs": 2, "frames_per_batch": 64, "total_frames": 256, "seed": 3}
        keywords |= {"workers": 2, "env_kwargs": {"limit": 9}}
        with rollfleet.Collector(make_env, policy, **keywords, **place) as collector:
            for batch in collector:
                batches.append(batch)
                with torch.no_grad():
                    for parameter in policy.parameters():
                        parameter.mul_(1.1)
        return batches

    expected = run()
    found = run(cluster=Cluster(namespace=api.namespace, timeout_s=120))
    assert len(expected) == len(found) == 4
    for one, other in zip(expected, found, strict=True):
        assert_same(other, one)
    assert api.get(KIND, api.namespace, "make-env") is None
    assert not api.list(KIND, api.namespace).items


def test_workers_are_added_and_the_highest_removed_and_an_error_leaves_nothing(
    kubelet: Kubelet, api: ClusterApi, capsys: pytest.CaptureFixture[str]
) -> None:
    place = Cluster(namespace=api.namespace, name="mine", timeout_s=120)
    keywords: dict[str, Any] = {"num_envs": 2, "frames_per_batch": 24, "workers": 1, "cluster": place}

    def scale(collector: rollfleet.Collector) -> None:
        assert next(collector).shape == (2, 12)
        assert collector.add_workers(1) == [1]
        assert next(each for each in collector if each.shape == (4, 6)) is not None
        with pytest.raises(JobInvalid, match=r"loses its highest indices; write `remove_workers\(\[1\]\)`"):
            collector.remove_workers(0)
        collector.remove_workers([1])
        assert next(each for each in collector if each.shape == (2, 12)) is not None
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), rollfleet.Collector("CartPole-v1", actor_critic(), **keywords) as collector:
        scale(collector)
    assert "1 of 1 workers are ready" in capsys.readouterr().err
    assert not api.list(KIND, api.namespace).items
