"""The program before the operator, on a real API server: keys are created once, and an installation has an id."""

import asyncio
import base64
import uuid
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.control.kubernetes import OTHER, OTHER_TOKEN, ApiServer

from rollfleet_operator.api import Api
from rollfleet_operator.errors import ApiError
from rollfleet_operator.manifest import Manifest
from rollfleet_operator.nats.bootstrap import ensure_keys, installation_id
from rollfleet_operator.nats.trust import new_keys

NOW_S = 1_800_000_000
NAME = "rollfleet-nats-keys"


class Secret:
    """The Secret that the chart makes: without content."""

    def __init__(self, server: ApiServer, folder: Path) -> None:
        self._server, self.folder = server, folder
        self.namespace = f"keys-{uuid.uuid4().hex[:8]}"
        server.call(server.api._request("POST", "/api/v1/namespaces", body={"metadata": {"name": self.namespace}}))

    def make(self) -> None:
        metadata = {"name": NAME, "namespace": self.namespace}
        self._server.call(self._server.api.create({"apiVersion": "v1", "kind": "Secret", "metadata": metadata}))

    def read(self) -> Manifest:
        found = self._server.call(self._server.api.get("Secret", self.namespace, NAME))
        assert found is not None
        return found

    def patch(self, patch: Manifest) -> None:
        self._server.call(self._server.api.patch("Secret", self.namespace, NAME, patch))

    def ensure(self, *entropies: bytes) -> list[bool]:
        """Make sure of the keys, by several operators at once; what each did."""

        async def all_at_once() -> list[bool]:
            return await asyncio.gather(
                *(
                    ensure_keys(self._server.api, self.namespace, NAME, self.folder, now_s=NOW_S, entropy=entropy)
                    for entropy in entropies
                )
            )

        return self._server.call(all_at_once())

    @property
    def seed(self) -> str:
        return base64.b64decode(self.read()["data"]["operator.seed"]).decode()


@pytest.fixture
def secret(api_server: ApiServer, tmp_path: Path) -> Secret:
    return Secret(api_server, tmp_path)


def test_keys_are_created_once(secret: Secret) -> None:
    secret.make()
    assert secret.ensure(b"a" * 32) == [True]
    assert secret.ensure(b"b" * 32) == [False]
    assert secret.seed == new_keys(b"a" * 32).operator.seed
    assert set(secret.read()["data"]) == {"operator.seed", "trust.conf"}


def test_concurrent_starts_all_take_the_keys_of_one(secret: Secret) -> None:
    secret.make()
    did = secret.ensure(*(bytes([number]) * 32 for number in range(8)))
    assert sum(did) == 1
    assert (secret.folder / "operator.seed").read_text() == secret.seed
    assert (secret.folder / "operator.seed").stat().st_mode & 0o077 == 0


def test_created_keys_cannot_be_overwritten(secret: Secret) -> None:
    secret.make()
    secret.ensure(b"a" * 32)
    with pytest.raises(ApiError, match="immutable"):
        secret.patch({"data": None})


def test_missing_secret_is_named(secret: Secret) -> None:
    with pytest.raises(ApiError, match=f"Secret {secret.namespace}/{NAME} does not exist"):
        secret.ensure(b"a" * 32)


# --- the id of an installation ---

RBAC = "/apis/rbac.authorization.k8s.io/v1/namespaces"


@pytest.fixture
def namespace(api_server: ApiServer) -> str:
    name = f"installation-{uuid.uuid4().hex[:8]}"
    post(api_server, "/api/v1/namespaces", {"metadata": {"name": name}})
    return name


def post(server: ApiServer, path: str, body: Mapping[str, object]) -> None:
    server.call(server.api._request("POST", path, body=dict(body)))


def as_operator(server: ApiServer, namespace: str) -> str:
    async def ask() -> str:
        async with Api(lambda: server.login(OTHER_TOKEN)) as api:
            return await installation_id(api, namespace, "rollfleet")

    return server.call(ask())


def test_id_is_of_the_namespace_and_needs_a_right_for_it_alone(api_server: ApiServer, namespace: str) -> None:
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
    api_server: ApiServer, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert as_operator(api_server, namespace) == ""
    assert "set the chart's `operator.installation`" in caplog.text
