"""Someone who looks at an operator's page with a token of a real API server."""

import json
import urllib.error
import urllib.request
from typing import Any

from tests.control.api_server.lab import Lab, RunningOperator
from tests.control.kubernetes import ApiServer


def account_token(server: ApiServer, namespace: str, name: str, *, audience: str = "") -> str:
    """The token of a new ServiceAccount without rights, as `kubectl create token` gives it. Default: for the server."""
    accounts = f"/api/v1/namespaces/{namespace}/serviceaccounts"
    server.request("POST", accounts, {"metadata": {"name": name}})
    spec = {"audiences": [audience]} if audience else {}
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
    answer = server.request("POST", f"{accounts}/{name}/token", body)
    return str(answer["status"]["token"])


class Viewer:
    """A viewer with a token; empty: without one.

    Attributes:
        port: The port of the page.
    """

    def __init__(self, port: int, token: str) -> None:
        self.port, self.token = port, token

    def get(self, path: str) -> tuple[int, Any]:
        try:
            with self._open(path) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.loads(error.read())

    def keys(self) -> set[str]:
        status, rows = self.get("/api/v1/jobs")
        assert status == 200, rows
        return {row["key"] for row in rows}

    def _open(self, path: str) -> Any:
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", headers=headers)
        return urllib.request.urlopen(request, timeout=30)


def viewer_of(operator: RunningOperator, token: str) -> Viewer:
    assert operator.operator.settings.ui_port is not None
    return Viewer(operator.operator.settings.ui_port, token)


def user_of(lab: Lab, name: str) -> str:
    return f"system:serviceaccount:{lab.namespace}:{name}"
