"""What the chart makes of its values for the pods of NATS."""

import pytest
from tests.control.chart.helm import Helm, Rendered


def test_the_server_gets_no_seed(rendered: Rendered) -> None:
    pod = rendered.pod("rollfleet-nats")
    (config,) = [each for each in pod["volumes"] if each["name"] == "config"]
    secrets = [source["secret"] for source in config["projected"]["sources"] if "secret" in source]
    assert [item["key"] for secret in secrets for item in secret["items"]] == ["trust.conf"]
    assert "data" not in rendered.of("Secret")["rollfleet-nats-keys"], "keys are never Helm's to write"


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
