"""On a real API server: the NATS server that each job has of its own, and when."""

import base64
import json
import os
from collections.abc import Callable
from typing import Any

import pytest
from tests.control.api_server.lab import Lab, RunningOperator
from tests.control.kubernetes import AUDIT_LOG, OTHER, OTHER_TOKEN, ApiServer
from tests.control.pure.scene import OWN
from tests.waiting import wait_until

from rollfleet_api.address import PUBLIC_URL_FILE
from rollfleet_api.permissions import Role
from rollfleet_operator import names

pytestmark = pytest.mark.cluster
SERVER = "cartpole-nats"
QUEUE = {"kueue.x-k8s.io/queue-name": "gpus"}


@pytest.fixture
def lab(own_lab: Lab, start_operator: Callable[..., RunningOperator]) -> Lab:
    """A namespace whose jobs have servers of their own."""
    start_operator(own_lab.namespace, own_lab.nats, access=OWN, nats_image="nats:test")
    return own_lab


def configuration(lab: Lab) -> Any:
    secret: Any = wait_until(lambda: lab.get("Secret", names.server_secret("cartpole")))
    return json.loads(base64.b64decode(secret["data"]["nats.json"]))


def test_workers_come_when_the_server_has_a_node_and_the_job_is_published_when_it_serves(lab: Lab) -> None:
    lab.apply()
    lab.wait_condition("Progressing", "NatsStarting")
    lab.seconds_pass(0.5)
    assert not lab.runs(), "workers would wait, and hold their GPUs, for a server that finds no room"
    pod = lab.server_pod()
    assert pod["spec"]["containers"][0]["image"] == "nats:test"
    lab.run()
    assert lab.key not in lab.nats.published
    lab.server_serves()
    wait_until(lambda: lab.key in lab.nats.published)
    lab.wait_condition("Progressing", "Starting")
    assert {user["user"] for user in configuration(lab)["authorization"]["users"]} == {"owner", "worker", "learner"}


def test_a_server_is_as_secure_as_the_cluster_asks(lab: Lab) -> None:
    lab.enforce("restricted")
    lab.apply()
    deployment: Any = wait_until(lambda: lab.get("Deployment", SERVER))
    lab.dry_run_pod(deployment["spec"]["template"])


def test_suspend_takes_the_server_away_once_the_workers_have_left_and_resume_brings_it(lab: Lab) -> None:
    lab.apply()
    lab.server_pod()
    lab.server_serves()
    wait_until(lambda: lab.key in lab.nats.published)
    worker = lab.pod(node=None, phase="Running")["metadata"]["name"]
    lab.apply(suspend=True)
    wait_until(lambda: not lab.runs())
    lab.seconds_pass(0.5)
    assert lab.get("Deployment", SERVER), "its workers still deliver"
    lab.delete("Pod", worker)
    wait_until(lambda: lab.get("Deployment", SERVER) is None)
    assert lab.get("Service", SERVER)
    lab.apply(suspend=False)
    lab.server_serves()
    lab.run()


def test_a_server_follows_its_spec_and_drift_is_repaired(lab: Lab) -> None:
    lab.apply(nats={"resources": {"limits": {"memory": "2Gi"}}, "template": {"spec": {"nodeSelector": {"a": "b"}}}})
    deployment: Any = wait_until(lambda: lab.get("Deployment", SERVER))
    spec = deployment["spec"]["template"]["spec"]
    assert (spec["nodeSelector"], spec["containers"][0]["resources"]["limits"]) == ({"a": "b"}, {"memory": "2Gi"})
    lab.patch("Deployment", SERVER, {"spec": {"replicas": 0}})
    wait_until(lambda: (lab.get("Deployment", SERVER) or {})["spec"]["replicas"] == 1)
    lab.server_pod()
    before, run = deployment["spec"]["template"]["metadata"]["annotations"][names.CONFIG], lab.run()
    lab.rotate()

    def config() -> str:
        found: Any = lab.get("Deployment", SERVER)
        return str(found["spec"]["template"]["metadata"]["annotations"][names.CONFIG])

    wait_until(lambda: config() != before)  # it starts again, with the new passwords, and no worker does
    assert lab.run()["metadata"]["uid"] == run["metadata"]["uid"]
    assert lab.condition("Degraded")["status"] == "False"


def test_object_that_the_api_server_stores_otherwise_is_applied_once(
    own_lab: Lab, start_operator: Callable[..., RunningOperator], api_server: ApiServer
) -> None:
    """As a webhook changes it; here the API server writes an amount in its own way."""
    own_lab.grant_everything(OTHER)
    start_operator(own_lab.namespace, own_lab.nats, access=OWN, token=OTHER_TOKEN)
    log = (api_server.folder / AUDIT_LOG).open()
    log.seek(0, os.SEEK_END)
    container = {"name": "nats", "resources": {"requests": {"cpu": "1000m"}}}
    own_lab.apply(nats={"template": {"spec": {"containers": [container]}}})
    stored: Any = wait_until(lambda: own_lab.get("Deployment", SERVER))
    assert stored["spec"]["template"]["spec"]["containers"][0]["resources"]["requests"]["cpu"] == "1"
    own_lab.seconds_pass(2.0)  # several looks
    made = [json.loads(line) for line in log]
    log.close()
    resources = [(each.get("objectRef") or {}).get("resource") for each in made if each["verb"] == "patch"]
    assert resources.count("deployments") <= 2
    own_lab.patch("Deployment", SERVER, {"spec": {"replicas": 0}})
    wait_until(lambda: (own_lab.get("Deployment", SERVER) or {})["spec"]["replicas"] == 1)


def test_a_template_without_the_form_of_one_is_named_and_a_server_that_runs_stays(lab: Lab) -> None:
    wrong = {"template": {"spec": {"containers": "nats"}}}
    lab.apply(nats=wrong)
    assert "containers" in lab.wait_condition("Degraded", "TemplateInvalid")["message"]
    lab.apply(nats=None)
    before: Any = wait_until(lambda: lab.get("Deployment", SERVER))
    lab.wait_condition("Degraded", "AsExpected", "False")
    lab.apply(nats=wrong)
    lab.wait_condition("Degraded", "TemplateInvalid")
    after: Any = lab.get("Deployment", SERVER)
    assert after["metadata"]["uid"] == before["metadata"]["uid"]


def test_a_load_balancers_address_is_given_to_the_learner(lab: Lab) -> None:
    lab.apply(nats={"service": "LoadBalancer"})
    service: Any = wait_until(lambda: lab.get("Service", SERVER))
    assert service["spec"]["type"] == "LoadBalancer"
    policy: Any = wait_until(lambda: lab.get("NetworkPolicy", names.network_policy("cartpole", Role.NATS)))
    assert "from" not in policy["spec"]["ingress"][0]
    lab.patch("Service", SERVER, {"status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}]}}}, "status")

    def public() -> Any:
        secret: Any = lab.get("Secret", names.secret("cartpole", Role.LEARNER))
        return secret and secret["data"].get(PUBLIC_URL_FILE)

    assert base64.b64decode(wait_until(public)) == b"tls://192.0.2.1:4222"


def test_the_service_of_a_job_whose_name_begins_with_a_digit_begins_with_a_letter(lab: Lab) -> None:
    lab.apply("2024")
    wait_until(lambda: lab.get("Service", "nats-2024"))
    wait_until(lambda: lab.get("Deployment", "nats-2024"))
    secret: Any = wait_until(lambda: lab.get("Secret", names.secret("2024", Role.WORKER)))
    assert base64.b64decode(secret["data"]["url"]) == f"tls://nats-2024.{lab.namespace}.svc:4222".encode()
