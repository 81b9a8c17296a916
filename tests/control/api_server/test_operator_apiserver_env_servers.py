"""On a real API server: the environment servers of a job, from its creation to the end of their use."""

import base64
from typing import Any

import pytest
from tests.control.api_server.lab import Lab
from tests.waiting import wait_until

from rollfleet_api.env_servers import CERTIFICATE_FILE, SERVERS
from rollfleet_api.permissions import Role
from rollfleet_operator import names

pytestmark = pytest.mark.cluster

ENV: dict[str, Any] = {"id": "CartPole-v1", "vectorization": "Async", "numEnvs": 8, "servers": {"replicas": 2}}
ROLE = "env-server"


def hosts(lab: Lab) -> str:
    """How the workers of the job find its servers."""
    (container,) = lab.run()["spec"]["template"]["spec"]["containers"]
    return str(next(each["value"] for each in container["env"] if each["name"] == SERVERS))


def test_servers_start_scale_stop_and_go_with_their_workers(lab: Lab) -> None:
    lab.apply(workers=3, env=ENV)
    run = lab.run(ROLE)
    name = run["metadata"]["name"]
    assert (run["spec"]["completions"], run["spec"]["template"]["spec"]["subdomain"]) == (6, "cartpole-servers")
    assert hosts(lab) == f"{name}-{{}}.cartpole-servers.{lab.namespace}.svc:7700"
    service: Any = lab.get("Service", "cartpole-servers")
    assert (service["spec"]["clusterIP"], service["spec"]["publishNotReadyAddresses"]) == ("None", True)
    secret: Any = lab.get("Secret", names.secret("cartpole", Role.WORKER))
    assert base64.b64decode(secret["data"][CERTIFICATE_FILE.name]).count(b"BEGIN CERTIFICATE") == 2
    assert lab.get("NetworkPolicy", names.network_policy("cartpole", Role.ENV_SERVER))

    lab.patch("Job", name, {"status": {"active": 6, "ready": 5}}, "status")
    wait_until(lambda: lab.status().get("servers") == {"desired": 6, "ready": 5})
    lab.pod(5, role=ROLE, phase="Running", containerStatuses=[crashed()])
    assert "environment server 5 ended" in lab.wait_condition("Degraded", "EnvServerCrashed")["message"]

    lab.apply(workers=2, env=ENV)
    wait_until(lambda: lab.run(ROLE)["spec"]["parallelism"] == 4)
    lab.apply(workers=2, env=ENV, suspend=True)
    wait_until(lambda: not lab.runs() and not lab.runs(ROLE))
    lab.apply(workers=2, env=ENV | {"servers": {"replicas": 4}})
    wait_until(lambda: lab.runs() and lab.runs(ROLE))
    assert hosts(lab).startswith(lab.run(ROLE)["metadata"]["name"] + "-{}.")
    assert lab.run(ROLE)["spec"]["completions"] == 8
    lab.apply(workers=2, env=ENV | {"servers": None})
    wait_until(lambda: not lab.runs(ROLE) and lab.get("Service", "cartpole-servers") is None)
    wait_until(lambda: "servers" not in lab.status())
    lab.wait_condition("Degraded", "AsExpected", "False")


def crashed() -> dict[str, Any]:
    """The status of a container that starts again."""
    ended = {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}
    found: dict[str, Any] = {"name": ROLE, "ready": False, "restartCount": 1, "image": "worker:1", "imageID": ""}
    return found | {"state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": ended}
