"""`rollfleet.connect` outside of the cluster: a Secret of a real API server, and a tunnel to a real NATS."""

import base64
import threading
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from kubernetes.client import CoreV1Api
from tensordict import TensorDict
from tests.api.job_data import job_data
from tests.faults.proxy import Proxy
from tests.job_server import Server, WorkerThread
from tests.sdk.cluster.forwarding_node import ForwardingNode
from tests.sdk.cluster.namespace import Namespace
from tests.waiting import wait_until

import rollfleet
from rollfleet.cluster.api import ClusterApi
from rollfleet.cluster.job_address import JobAddress
from rollfleet.errors import ClusterError, ConnectionFailed, JobNotFound
from rollfleet_api.address import JOB, URL
from rollfleet_api.kubernetes_names import JOB_LABEL, ROLE_LABEL
from rollfleet_api.permissions import Role

SECRET = "test-learner-nats"
CUT_S = 20.0  # longer than each timeout of the client, of NATS and of the tunnel
WriteSecret = Callable[..., dict[str, Any]]


@pytest.fixture
def write_secret(api: ClusterApi) -> Iterator[WriteSecret]:
    """Writes the learner's Secret of the job `default/test`, as the operator does."""

    def write(**files: str) -> dict[str, Any]:
        data = {name.replace("_", "."): base64.b64encode(text.encode()).decode() for name, text in files.items()}
        metadata = {"name": SECRET, "namespace": "default"}
        return api.apply({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": data})

    yield write
    api.delete("Secret", "default", SECRET)


@pytest.fixture
def node(api: ClusterApi, namespace: Namespace, server: Server, write_secret: WriteSecret) -> Iterator[ForwardingNode]:
    """The node of the job's NATS, whose name in the cluster is in the learner's Secret."""
    node = ForwardingNode(namespace, int(server.host_port.rpartition(":")[2]))
    labels = {JOB_LABEL: "test", ROLE_LABEL: str(Role.NATS)}
    node.add_pod("test-nats-0", labels, namespace="default")
    user = server.url(Role.LEARNER).rpartition("@")[0].removeprefix("nats://")
    write_secret(url="nats://test-nats.default.svc:4222", user_creds=user)
    yield node
    node.stop()
    CoreV1Api(api.client).delete_namespaced_pod("test-nats-0", "default", grace_period_seconds=0)


COUNTED = {"env": {"entrypoint": "rollfleet.testing:CountingEnv"}, "policy": {"random": {}}, "weights": {"interval": 0}}
"""The observations of a job's only worker are 0, 1, 2, ..."""


def observations(batches: Iterable[TensorDict]) -> list[int]:
    return [int(each) for batch in batches for each in batch["observation"].flatten()]


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_learner_outside_of_the_cluster_loses_no_batch_when_its_tunnel_or_the_api_server_is_cut_off(
    server: Server, node: ForwardingNode, network: Proxy
) -> None:
    worker = WorkerThread(server, server.own(workers=1, **COUNTED), 0)
    with rollfleet.connect("default/test", timeout_s=30) as collector:
        seen, streams = observations(islice(collector, 3)), node.streams
        node.cut()
        seen += observations(islice(collector, 3))
        assert node.streams > streams, "the tunnel was opened again"
        network.stall()
        network.cut()
        healing = threading.Timer(CUT_S, network.heal)
        healing.start()
        seen += observations(islice(collector, 30))
        assert not healing.is_alive(), "the tunnel was cut"
        assert seen == [*range(36 * 64)]
        assert collector.stats().missed == 0
    worker.join()


def test_a_direct_connection_outlives_the_api_server(server: Server, write_secret: WriteSecret, network: Proxy) -> None:
    job = server.own(workers=1, **COUNTED)
    write_secret(url=server.url(Role.LEARNER))
    worker = WorkerThread(server, job, 0)
    with rollfleet.connect("default/test", timeout_s=30) as collector:
        before = observations(islice(collector, 3))
        network.stall()
        network.cut()
        assert before + observations(islice(collector, 30)) == [*range(33 * 64)]
    worker.join()


def test_a_public_address_is_taken_first_if_it_answers_and_shows_the_certificate_of_the_clusters(
    api: ClusterApi, server: Server, write_secret: WriteSecret
) -> None:
    inside = "test-nats.team-a.svc"
    for url, public_url, server_name in (
        (f"tls://{inside}:4222", server.url(), inside),
        (server.url(), "nats://127.0.0.1:1", None),
    ):
        write_secret(**{"url": url, "public-url": public_url})
        reach = JobAddress(api, "default", "test", timeout_s=5)
        reach.close()
        assert (reach.address.url, reach.address.server_name) == (server.url(), server_name)


def test_credentials_are_private_and_stay_current(api: ClusterApi, server: Server, write_secret: WriteSecret) -> None:
    write_secret(url=server.url(), user_creds="first", ca_crt="authority")
    reach = JobAddress(api, "default", "test", timeout_s=5, renew_s=0.05)
    credentials, ca = reach.address.credentials, reach.address.ca
    assert credentials is not None
    assert ca is not None
    assert (credentials.read_text(), ca.read_text()) == ("first", "authority")
    assert (credentials.stat().st_mode & 0o077, credentials.parent.stat().st_mode & 0o077) == (0, 0)
    write_secret(url=server.url(), user_creds="second", ca_crt="authority")
    wait_until(lambda: credentials.read_text() == "second")
    reach.close()
    reach.close()
    assert not credentials.parent.exists()


@pytest.mark.usefixtures("outside")
def test_a_job_that_does_not_exist_and_one_without_an_operator_are_named(api: ClusterApi) -> None:
    with pytest.raises(JobNotFound, match=f"the cluster has no job {api.namespace}/test"):
        rollfleet.connect(f"{api.namespace}/test")
    api.create(job_data({"name": "test", "namespace": api.namespace}))
    with pytest.raises(ClusterError, match=f"the operator has not created Secret {api.namespace}/test-learner-nats"):
        rollfleet.connect(f"{api.namespace}/test", timeout_s=0)


@pytest.mark.usefixtures("outside")
def test_the_name_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(JOB, "default/nowhere")
    with pytest.raises(JobNotFound, match="no job default/nowhere"):
        rollfleet.connect()


@pytest.mark.usefixtures("outside")
def test_a_nats_that_is_neither_here_nor_in_the_cluster_needs_an_address(write_secret: WriteSecret) -> None:
    write_secret(url="nats://nats.invalid.:4222")
    with pytest.raises(
        ConnectionFailed, match=r"does not answer from here, and it is not .* own server: pass `address=`"
    ):
        rollfleet.connect("default/test", timeout_s=5)


@pytest.mark.usefixtures("outside")
def test_a_server_without_a_pod_is_reported(write_secret: WriteSecret) -> None:
    write_secret(url="nats://test-nats.default.svc:4222")
    with pytest.raises(ClusterError, match=r"NATS of default/test has no pod: .*`rollfleet describe test`"):
        rollfleet.connect("default/test", timeout_s=0)


def test_without_a_kubeconfig_the_missing_address_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.delenv(URL, raising=False)
    asked = f"no NATS server given: pass its URL, set {URL}.*"
    for job, why in ((None, asked), ("default/test", f"{asked}; no cluster is named.*")):
        with pytest.raises(ConnectionFailed, match=f"^{why}; `rollfleet run job.yaml --learner learner.py` starts "):
            rollfleet.connect(job)
