"""The program before the operator, on a real API server: keys are created once, and an installation has an id."""

import asyncio
import base64
from pathlib import Path

import pytest
from tests.control.api_server.lab import Lab
from tests.control.kubernetes import OTHER, OTHER_TOKEN, ApiServer, wait_for

from rollfleet_operator.api import Api
from rollfleet_operator.errors import ApiError
from rollfleet_operator.manifest import Manifest
from rollfleet_operator.nats.bootstrap import ensure_keys, installation_id
from rollfleet_operator.nats.trust import new_keys

NOW_S = 1_800_000_000
NAME = "rollfleet-nats-keys"


class Keys:
    """The Secret that the chart makes: without content."""

    def __init__(self, lab: Lab, server: ApiServer, folder: Path) -> None:
        self.lab, self._server, self.folder = lab, server, folder
        lab.create({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": NAME}})

    def ensure(self, *entropies: bytes) -> list[bool]:
        """Make sure of the keys, by several operators at once; what each did."""

        async def all_at_once() -> list[bool]:
            where = (self.lab.api, self.lab.namespace, NAME, self.folder)
            return await asyncio.gather(*(ensure_keys(*where, now_s=NOW_S, entropy=each) for each in entropies))

        return self._server.call(all_at_once())

    def stored(self) -> dict[str, str]:
        secret = self.lab.get("Secret", NAME)
        assert secret is not None
        return {name: base64.b64decode(data).decode() for name, data in secret["data"].items()}


@pytest.fixture
def keys(own_lab: Lab, api_server: ApiServer, tmp_path: Path) -> Keys:
    return Keys(own_lab, api_server, tmp_path)


def test_keys_are_created_once(keys: Keys) -> None:
    assert keys.ensure(b"a" * 32) == [True]
    assert keys.ensure(b"b" * 32) == [False]
    assert keys.stored()["operator.seed"] == new_keys(b"a" * 32).operator.seed
    assert set(keys.stored()) == {"operator.seed", "trust.conf"}
    with pytest.raises(ApiError, match="immutable"):
        keys.lab.patch("Secret", NAME, {"data": None})


def test_concurrent_starts_all_take_the_keys_of_one(keys: Keys) -> None:
    did = keys.ensure(*(bytes([number]) * 32 for number in range(8)))
    assert sum(did) == 1
    file = keys.folder / "operator.seed"
    assert file.read_text() == keys.stored()["operator.seed"]
    assert file.stat().st_mode & 0o077 == 0


def test_missing_secret_is_named(keys: Keys) -> None:
    keys.lab.delete("Secret", NAME)
    with pytest.raises(ApiError, match=f"Secret {keys.lab.namespace}/{NAME} does not exist"):
        keys.ensure(b"a" * 32)


def test_id_of_an_installation_is_of_its_namespace_and_needs_a_right_for_it_alone(
    own_lab: Lab, api_server: ApiServer, caplog: pytest.LogCaptureFixture
) -> None:
    namespace = own_lab.namespace

    async def ask() -> str:
        async with Api(lambda: api_server.login(OTHER_TOKEN)) as api:
            return await installation_id(api, namespace, "rollfleet")

    assert api_server.call(ask()) == ""
    assert "set the chart's `operator.installation`" in caplog.text
    rule: Manifest = {"apiGroups": [""], "resources": ["namespaces"], "resourceNames": [namespace], "verbs": ["get"]}
    api_server.grant(OTHER, namespace, rule)
    found = api_server.call(api_server.api.get("Namespace", None, namespace))
    assert found
    assert wait_for(lambda: api_server.call(ask())) == f"rollfleet.{found['metadata']['uid']}"
