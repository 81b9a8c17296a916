"""The id of an installation, on a real API server with the rights that the chart gives."""

import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING

import pytest
from tests.control.kubernetes import OTHER, OTHER_TOKEN

from rollfleet_operator.api import Api
from rollfleet_operator.nats.bootstrap import installation_id

if TYPE_CHECKING:
    from tests.control.kubernetes import ApiServer

RBAC = "/apis/rbac.authorization.k8s.io/v1/namespaces"


@pytest.fixture
def namespace(api_server: "ApiServer") -> str:
    name = f"installation-{uuid.uuid4().hex[:8]}"
    post(api_server, "/api/v1/namespaces", {"metadata": {"name": name}})
    return name


def post(server: "ApiServer", path: str, body: Mapping[str, object]) -> None:
    server.call(server.api._request("POST", path, body=dict(body)))


def as_operator(server: "ApiServer", namespace: str) -> str:
    async def ask() -> str:
        async with Api(lambda: server.login(OTHER_TOKEN)) as api:
            return await installation_id(api, namespace, "rollfleet")

    return server.call(ask())


def test_id_is_of_the_namespace_and_needs_a_right_for_it_alone(api_server: "ApiServer", namespace: str) -> None:
    rule = {"apiGroups": [""], "resources": ["namespaces"], "resourceNames": [namespace], "verbs": ["get"]}
    post(api_server, f"{RBAC}/{namespace}/roles", {"metadata": {"name": "installation"}, "rules": [rule]})
    group = "rbac.authorization.k8s.io"
    binding = {
        "metadata": {"name": "installation"},
        "roleRef": {"apiGroup": group, "kind": "Role", "name": "installation"},
        "subjects": [{"apiGroup": group, "kind": "User", "name": OTHER}],
    }
    post(api_server, f"{RBAC}/{namespace}/rolebindings", binding)
    found = api_server.call(api_server.api.get("Namespace", None, namespace))
    assert found
    assert as_operator(api_server, namespace) == f"rollfleet.{found['metadata']['uid']}"


def test_without_the_right_there_is_no_id(
    api_server: "ApiServer", namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert as_operator(api_server, namespace) == ""
    assert "set the chart's `operator.installation`" in caplog.text
