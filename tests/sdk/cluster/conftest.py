"""A client of a real API server, and a cluster that runs jobs."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.control.api_server.lab import RunningOperator, quick
from tests.control.kubernetes import ApiServer
from tests.control.wire.job_nats import OrganisationNats
from tests.faults.proxy import Proxy
from tests.sdk.cluster.kubeconfigs import kubeconfig_with
from tests.sdk.cluster.kubelet import Kubelet
from tests.sdk.cluster.namespace import Namespace

from rollfleet.cluster.api import ClusterApi
from rollfleet_api.address import URL
from rollfleet_operator.nats.server_port import NatsOnServers


@pytest.fixture
def api(kubeconfig: Path, namespace: Namespace) -> ClusterApi:
    return ClusterApi(kubeconfig=kubeconfig, namespace=namespace.name)


@pytest.fixture
def outside(kubeconfig: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This process has the kubeconfig of the cluster, and no other address."""
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    monkeypatch.delenv(URL, raising=False)


@pytest.fixture
def network(api_server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """The network between this process and the API server. The kubeconfig leads through it."""
    proxy = Proxy([api_server.url.removeprefix("https://")])
    cluster = {"server": f"https://{proxy.host_port}"}
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig_with(api_server, tmp_path / "config", cluster=cluster)))
    monkeypatch.delenv(URL, raising=False)
    yield proxy
    proxy.close()


@pytest.fixture
def operator(api_server: ApiServer, nats_server: OrganisationNats, namespace: Namespace) -> Iterator[RunningOperator]:
    nats: Any = NatsOnServers(nats_server.access)  # most tests have one in memory
    settings = quick(namespaces=(namespace.name,))
    running = RunningOperator(api_server, nats, settings, access=nats_server.access)
    yield running
    running.stop()


@pytest.fixture
def kubelet(
    api: ClusterApi, namespace: Namespace, operator: RunningOperator, outside: None, tmp_path: Path
) -> Iterator[Kubelet]:
    """A cluster that runs the workers of the test's namespace; the kubeconfig of this process names it."""
    folder = tmp_path / "pods"
    folder.mkdir()
    kubelet = Kubelet(api.client, namespace, folder)
    yield kubelet
    kubelet.stop()
