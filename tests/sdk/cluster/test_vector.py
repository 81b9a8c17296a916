"""`rollfleet.make_vec` over pods: on a real API server and operator, with environment servers as processes."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from tests.sdk.cluster.kubelet import Kubelet
from tests.sdk.cluster.namespace import Namespace, condition
from tests.waiting import wait_until

import rollfleet
from rollfleet import Cluster
from rollfleet.cluster.api import ClusterApi
from rollfleet.envs import places
from rollfleet.errors import ClusterError, JobEnded, JobInvalid, JobNotFound
from rollfleet_api.job import API_VERSION, KIND

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

JOB: Any = {
    "apiVersion": API_VERSION,
    "kind": KIND,
    "metadata": {"name": "poles"},
    "spec": {
        "workers": 0,
        "env": {"id": "CartPole-v1", "numEnvs": 4, "vectorization": "Async", "servers": {"replicas": 2}},
        "policy": {"random": {}},
        "collect": {"framesPerBatch": 4},
    },
}


def make_env(limit: int = 20) -> gymnasium.Env[Any, Any]:
    return gymnasium.wrappers.TimeLimit(gymnasium.make("CartPole-v1").unwrapped, limit)


def played(envs: gymnasium.vector.VectorEnv[Any, Any, Any]) -> list[Any]:
    found = [envs.reset(seed=3)[0]]
    for step in range(50):
        observations, rewards, *_ = envs.step(np.arange(4) % 2 ^ step % 2)
        found += [observations.copy(), rewards.copy()]
    envs.close()
    return found


def test_a_vector_over_pods_has_the_numbers_of_one_of_this_process_and_leaves_nothing(
    kubelet: Kubelet, api: ClusterApi, capsys: pytest.CaptureFixture[str]
) -> None:
    """An environment of this module travels to the pods."""
    place = Cluster(namespace=api.namespace, timeout_s=120)
    envs = rollfleet.make_vec(make_env, num_envs=4, workers=2, env_kwargs={"limit": 9}, cluster=place)
    (job,) = api.list(KIND, api.namespace).items
    assert sum(kubelet.log(index).count(": 2 environments") for index in range(2)) == 2
    assert "2 of 2 environment servers are ready" in capsys.readouterr().err
    np.testing.assert_equal(played(envs), played(gymnasium.vector.SyncVectorEnv([lambda: make_env(9)] * 4)))
    assert not api.list(KIND, api.namespace).items
    assert job["status"]["workers"] == {"desired": 0, "ready": 0}
    assert {each["type"]: each["reason"] for each in job["status"]["conditions"]}["Ready"] == "AllServersReady"


def test_a_vector_joins_a_job_that_starts_and_servers_without_a_vector_end(kubelet: Kubelet, api: ClusterApi) -> None:
    spec = JOB["spec"] | {"failure": {"learnerTimeoutSeconds": 15}}
    rollfleet.Jobs(namespace=api.namespace).submit(JOB | {"spec": spec})
    envs = rollfleet.make_vec("CartPole-v1", num_envs=4, servers=f"{api.namespace}/poles")
    np.testing.assert_equal(played(envs), played(gymnasium.make_vec("CartPole-v1", 4, vectorization_mode="sync")))
    assert api.get(KIND, api.namespace, "poles"), "it is the job of another"
    wait_until(lambda: all(process.poll() == 0 for process in kubelet.workers.values()), timeout_s=60)
    with pytest.raises(JobNotFound, match="has no job"):
        rollfleet.make_vec("CartPole-v1", num_envs=4, servers=f"{api.namespace}/pole")


def test_a_vector_of_a_job_that_is_suspended_or_over_says_so(
    kubelet: Kubelet, api: ClusterApi, namespace: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(places, "CONNECT_S", 5)
    rollfleet.Jobs(namespace=api.namespace).submit(JOB | {"spec": JOB["spec"] | {"suspend": True}})
    with pytest.raises(ClusterError, match=r"0 of 0 environment servers of .* are ready after 5 s: it is Suspended"):
        rollfleet.make_vec("CartPole-v1", num_envs=4, servers=f"{api.namespace}/poles")
    namespace.report("poles", conditions=[condition("Complete", "ServersUnused")])
    with pytest.raises(JobEnded, match=r"poles has no more environment servers: it is \w+ \(ServersUnused\)"):
        rollfleet.make_vec("CartPole-v1", num_envs=4, servers=f"{api.namespace}/poles")


def test_a_job_without_servers_cannot_be_joined(kubelet: Kubelet, api: ClusterApi) -> None:
    env = {"id": "CartPole-v1", "numEnvs": 4}
    rollfleet.Jobs(namespace=api.namespace).submit(JOB | {"spec": JOB["spec"] | {"workers": 1, "env": env}})
    with pytest.raises(JobInvalid, match=r"poles has no environment servers; add `env.servers` to its spec"):
        rollfleet.make_vec("CartPole-v1", num_envs=4, servers=f"{api.namespace}/poles")
