"""What the chart makes of its values for the pods of NATS."""

import base64
import re
from typing import Any

import pytest
from tests.control.chart.helm import Helm, Rendered


def test_the_server_gets_no_seed(rendered: Rendered) -> None:
    pod = rendered.pod("rollfleet-nats")
    (config,) = [each for each in pod["volumes"] if each["name"] == "config"]
    secrets = [source["secret"] for source in config["projected"]["sources"] if "secret" in source]
    assert [item["key"] for secret in secrets for item in secret["items"]] == ["trust.conf"]
    assert "data" not in rendered.of("Secret")["rollfleet-nats-keys"], "keys are never Helm's to write"


@pytest.fixture(scope="module")
def cluster(helm: Helm) -> Rendered:
    return helm.render(nats__replicas=3, nats__routesPassword="secretOfTheServers")


def test_servers_of_a_cluster_find_each_other_and_nobody_else_joins(cluster: Rendered) -> None:
    server = cluster.of("StatefulSet")["rollfleet-nats"]["spec"]
    assert (server["replicas"], server["podManagementPolicy"]) == (3, "Parallel")
    data = cluster.of("Secret")["rollfleet-nats-routes"]["data"]
    routes = base64.b64decode(data["routes.conf"]).decode()
    hosts = [f"rollfleet-nats-{index}.rollfleet-nats-pods.site.svc" for index in range(3)]
    assert re.findall(r'"nats://routes:secretOfTheServers@(\S+):6222"', routes) == hosts
    assert "authorization {user: routes, password: secretOfTheServers," in routes
    assert "ca_file" in routes, "each server checks the other's certificate"
    names = cluster.of("Secret")["rollfleet-nats-tls"]["metadata"]["annotations"]["rollfleet.dev/names"]
    assert "*.rollfleet-nats-pods.site.svc" in names.split(",")
    (pods,) = (each["spec"] for name, each in cluster.of("Service").items() if name == "rollfleet-nats-pods")
    assert {port["port"] for port in pods["ports"]} == {4222, 6222}
    assert 6222 not in {port["port"] for port in cluster.of("Service")["rollfleet-nats"]["spec"]["ports"]}
    (among,) = (
        rule
        for rule in cluster.of("NetworkPolicy")["rollfleet-nats"]["spec"]["ingress"]
        if rule["ports"] == [{"port": "cluster"}]
    )
    (peer,) = among["from"]
    assert peer["podSelector"]["matchLabels"] == server["selector"]["matchLabels"]


def test_servers_of_a_cluster_are_on_different_nodes_unless_the_values_say_where(
    helm: Helm, rendered: Rendered, cluster: Rendered
) -> None:
    chosen = helm.render(nats__replicas=3, nats__affinity={"nodeAffinity": {}})
    found: Any = [shown.pod("rollfleet-nats").get("affinity") for shown in (rendered, cluster, chosen)]
    alone, apart, there = found
    (term,) = apart["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert term["topologyKey"] == "kubernetes.io/hostname"
    assert (alone, there) == (None, {"nodeAffinity": {}})


def test_a_server_of_a_cluster_leaves_in_lame_duck_mode(cluster: Rendered) -> None:
    pod = cluster.pod("rollfleet-nats")
    (container,) = pod["containers"]
    assert container["lifecycle"]["preStop"]["exec"]["command"] == ["nats-server", "--signal", "ldm=1"]
    config = cluster.of("ConfigMap")["rollfleet-nats"]["data"]["nats.conf"]
    (duration,) = re.findall(r"lame_duck_duration: (\d+)s", config)
    assert pod["terminationGracePeriodSeconds"] > int(duration)
    (budget,) = (each["spec"] for name, each in cluster.of("PodDisruptionBudget").items() if name == "rollfleet-nats")
    assert budget["maxUnavailable"] == 1


def test_nats_is_not_restarted_because_of_one_job(rendered: Rendered) -> None:
    (container,) = rendered.pod("rollfleet-nats")["containers"]
    assert container["livenessProbe"]["httpGet"]["path"] == "/healthz?js-enabled-only=true"


@pytest.mark.parametrize("limit", ["1500M", "1.5Gi", 2147483648])
def test_the_server_collects_garbage_below_its_limit_of_memory(helm: Helm, limit: object) -> None:
    shown = helm.render(nats__resources={"limits": {"memory": limit}, "requests": {"cpu": "1", "memory": "1Gi"}})
    (container,) = shown.pod("rollfleet-nats")["containers"]
    whole, bound = container["env"]
    assert whole["valueFrom"] == {"resourceFieldRef": {"resource": "limits.memory", "divisor": "1Mi"}}
    assert bound == {"name": "GOMEMLIMIT", "value": f"$({whole['name']})000000"}  # bytes: 95 % of 2**20 for each MiB


@pytest.mark.parametrize(("payload", "pending"), [(1 << 20, 32 << 20), (64 << 20, 64 << 20)])
def test_the_server_starts_with_any_size_of_messages(helm: Helm, payload: int, pending: int) -> None:
    config = helm.render(nats__maxPayloadBytes=payload).of("ConfigMap")["rollfleet-nats"]["data"]["nats.conf"]
    assert f"max_payload: {payload}\n" in config
    assert f"max_pending: {pending}\n" in config  # NATS refuses one below `max_payload`
