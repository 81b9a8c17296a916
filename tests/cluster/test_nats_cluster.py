"""NATS on three nodes: its servers are drained, killed and updated under a job with `delivery.replicas: 3`.

All three run on one node where the cluster has no more.
"""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from tests.cluster.lab import Lab, Release, run
from tests.waiting import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(400)]

MOST_PAUSE_S = 30.0  # NATS elects a leader within 10 s; the rest is for a busy machine
BESIDE_OTHERS = {
    "topologyKey": "kubernetes.io/hostname",
    "labelSelector": {"matchLabels": {"app.kubernetes.io/component": "nats"}},
}
PREFERRED = [{"weight": 1, "podAffinityTerm": BESIDE_OTHERS}]
ANY_NODE = {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": PREFERRED}}
VALUES = (
    "--set=nats.replicas=3",
    "--set=nats.resources.requests.cpu=50m",
    f"--set-json=nats.affinity={json.dumps(ANY_NODE)}",
)
SERVERS = [f"rollfleet-nats-{index}" for index in range(3)]
OF_NATS = "--selector=app.kubernetes.io/component=nats"


@pytest.fixture(scope="module")
def release(release: Release) -> Iterator[Release]:
    """The chart with three NATS servers, for the tests of this module."""
    release.uninstall()
    try:
        release.helm("upgrade", *VALUES)
        yield release
    finally:  # the chart does not make one server of three
        release.uninstall()
        release.install()


@pytest.fixture
def before(lab: Lab, counting: dict[str, Any]) -> set[str]:
    counting["spec"]["delivery"]["replicas"] = 3
    lab.apply(counting)
    lab.wait_for_workers("counting", 2)
    lab.wait_for_frames("counting", more_than=10_000)
    return lab.uids("worker", "learner")


def uid(release: Release, pod: str) -> str:
    """The UID of a pod; empty: there is none now."""
    return release.kubectl("get", "pod", pod, "--ignore-not-found", "--output=jsonpath={.metadata.uid}")


def goes_on(lab: Lab) -> None:
    lab.wait_for_frames("counting", more_than=lab.status("counting")["frames"] + 20 * 512)


def is_back(release: Release) -> None:
    release.kubectl("rollout", "status", "statefulset/rollfleet-nats", "--timeout=300s")


def is_replaced(release: Release, pod: str, before: str) -> None:
    wait_until(lambda: uid(release, pod) != before, 120.0)  # `kubectl wait --for=delete` may wait for the next one
    is_back(release)


def check(lab: Lab, before: set[str]) -> None:
    """Check that nothing was restarted or lost, and that the learner never waited for long."""
    goes_on(lab)
    assert lab.uids("worker", "learner") == before
    assert lab.missed() == 0
    assert lab.longest_pause_s() < MOST_PAUSE_S


def evicts(release: Release, pod: str) -> bool:
    """Ask for an eviction, as `kubectl drain` does; return whether it is granted."""
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": release.namespace}}
    path = f"/api/v1/namespaces/{release.namespace}/pods/{pod}/eviction"
    return "Success" in run("kubectl", "create", "--raw", path, "--filename=-", stdin=json.dumps(body), check=False)


def test_a_job_goes_on_while_one_server_after_the_other_is_drained(
    lab: Lab, release: Release, before: set[str]
) -> None:
    for server, other in zip(SERVERS, SERVERS[1:] + SERVERS[:1], strict=True):
        evicted = uid(release, server)
        assert evicts(release, server)
        assert not evicts(release, other), "two servers stay"
        goes_on(lab)
        is_replaced(release, server, evicted)
    check(lab, before)


def test_a_job_goes_on_while_all_servers_are_updated(lab: Lab, release: Release, before: set[str]) -> None:
    servers = release.kubectl("get", "pods", OF_NATS, "--output=jsonpath={.items[*].metadata.uid}").split()
    release.helm("upgrade", *VALUES, "--set=nats.maxPendingBytes=40000000", "--timeout=900s")
    updated = release.kubectl("get", "pods", OF_NATS, "--output=jsonpath={.items[*].metadata.uid}").split()
    assert not set(servers) & set(updated)
    assert len(updated) == len(SERVERS)
    check(lab, before)


def test_a_job_goes_on_while_a_server_is_killed(lab: Lab, release: Release, before: set[str]) -> None:
    """The last test here: nats-server 2.15 may need its startup probe, after five minutes, to come back."""
    release.kubectl("delete", "pod", SERVERS[0], "--grace-period=0", "--force")
    check(lab, before)
