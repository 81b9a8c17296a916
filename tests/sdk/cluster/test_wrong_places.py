"""A constructor whose cluster cannot run the job: one line, with what to write, and nothing is left on the cluster."""

import sys
from pathlib import Path

import pytest
from tests.api.job_data import job_data

import rollfleet
from rollfleet import Cluster, Jobs
from rollfleet.cluster.api import ClusterApi
from rollfleet.errors import ClusterError, ConnectionFailed
from rollfleet_api.job import KIND
from rollfleet_api.kinds import KINDS, Kind

pytestmark = pytest.mark.usefixtures("outside")


def error_of(place: Cluster) -> str:
    with pytest.raises(ClusterError) as refused:
        rollfleet.Collector("CartPole-v1", frames_per_batch=8, workers=1, cluster=place)
    return str(refused.value)


def test_no_kubeconfig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    assert "is missing, and this is no pod; set KUBECONFIG, or name the file" in error_of(Cluster())


def test_no_client_of_clusters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kubernetes.client", None)
    assert error_of(Cluster()).endswith("; pip install 'rollfleet[cluster]'")
    with pytest.raises(
        ConnectionFailed, match=r"rollfleet\[cluster\]'; `rollfleet run job\.yaml --learner learner\.py`"
    ):
        rollfleet.connect("lab/cartpole")


def test_a_context_that_is_not_there() -> None:
    assert error_of(Cluster(context="y")).endswith("cannot be used: it has no context 'y'; write one of x")


def test_a_namespace_that_is_not_there() -> None:
    written = "the cluster has no namespace nowhere: write another, or `kubectl create namespace nowhere`"
    assert error_of(Cluster(namespace="nowhere", progress=False)) == written
    with pytest.raises(ClusterError) as refused:
        Jobs().submit(job_data({"namespace": "nowhere"}))
    assert str(refused.value) == written


def test_a_cluster_without_rollfleet(api: ClusterApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KINDS, KIND, Kind(api_version="nobody.example/v1", plural="collectorjobs"))
    message = error_of(Cluster(namespace=api.namespace, progress=False))
    assert message.startswith("Rollfleet is not installed on this cluster; install it with `helm install rollfleet ")
