"""On a real API server: an installation's key is created once."""

import asyncio
import base64

import pytest
from tests.control.api_server.lab import Lab
from tests.control.kubernetes import ApiServer

from rollfleet_operator.errors import ApiError
from rollfleet_operator.installation_secret import FILE, installation_key

NAME = "rollfleet-key"


class Keys:
    """The Secret that the chart makes: without content."""

    def __init__(self, lab: Lab, server: ApiServer) -> None:
        self.lab, self._server = lab, server
        lab.create({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": NAME}})

    def of(self, *entropies: bytes) -> list[bytes]:
        """Return the keys that several operators find at once, without those that were too late and try again."""

        async def all_at_once() -> list[bytes]:
            where = self.lab.api, f"{self.lab.namespace}/{NAME}"
            asked = (installation_key(*where, entropy=each) for each in entropies)
            found = await asyncio.gather(*asked, return_exceptions=True)
            refused = [each for each in found if isinstance(each, BaseException)]
            if refused and len(refused) == len(found):
                raise refused[0]
            return [key.secret for key in found if not isinstance(key, BaseException)]

        return self._server.call(all_at_once())


@pytest.fixture
def keys(own_lab: Lab, api_server: ApiServer) -> Keys:
    return Keys(own_lab, api_server)


def test_a_key_is_created_once(keys: Keys) -> None:
    assert keys.of(b"a" * 32) == [b"a" * 32]
    assert keys.of(b"b" * 32) == [b"a" * 32]
    secret = keys.lab.get("Secret", NAME)
    assert secret is not None
    assert base64.b64decode(secret["data"][FILE]) == b"a" * 32
    with pytest.raises(ApiError, match="immutable"):
        keys.lab.patch("Secret", NAME, {"data": None})


def test_of_concurrent_starts_only_one_creates_the_key(keys: Keys) -> None:
    (created,) = {*keys.of(*(bytes([number]) * 32 for number in range(8)))}
    assert keys.of(b"b" * 32) == [created]


def test_missing_secret_is_named(keys: Keys) -> None:
    keys.lab.delete("Secret", NAME)
    with pytest.raises(ApiError, match=f"Secret {keys.lab.namespace}/{NAME} does not exist"):
        keys.of(b"a" * 32)
