"""On a real API server: an installation's key is created once, and a job has one installation."""

import asyncio
import base64
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from tests.control.api_server.lab import Lab, RunningOperator
from tests.control.kubernetes import ApiServer
from tests.waiting import wait_until

from rollfleet_api.job import KIND
from rollfleet_api.permissions import Role
from rollfleet_api.validation import parse_job
from rollfleet_operator import names
from rollfleet_operator.errors import ApiError
from rollfleet_operator.installation_key import KEY_BYTES, InstallationKey
from rollfleet_operator.installation_secret import FILE, installation_key
from rollfleet_operator.nats_access import NatsAccess

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


def test_of_two_installations_one_runs_a_job_and_the_other_one_says_so_and_keeps_off(
    own_lab: Lab, start_operator: Callable[..., RunningOperator], caplog: pytest.LogCaptureFixture
) -> None:
    access = {f"{name}/key": NatsAccess(key=InstallationKey(name.encode() * KEY_BYTES)) for name in "ab"}
    for key, own in access.items():
        start_operator(own_lab.namespace, own_lab.nats, access=own, key_secret=key, resync_s=0.5)

    def owner() -> Any:
        account = own_lab.get("ServiceAccount", names.account("cartpole"))
        return account and account["metadata"]["annotations"][names.INSTALLATION]

    def is_run_by(key: str) -> bool:
        secret = own_lab.get("Secret", names.secret("cartpole", Role.WORKER))
        password = access[key].key.password(parse_job(own_lab.get(KIND, "cartpole") or {}), Role.WORKER)
        return secret is not None and base64.b64decode(secret["data"]["user.creds"]) == f"worker:{password}".encode()

    def is_settled(key: str) -> bool:
        reported = f"the installation with Secret {key} runs this job, and this one keeps off" in caplog.text
        return reported and is_run_by(key) and own_lab.get("Deployment", "cartpole-nats") is not None

    for _ in range(2):  # the ServiceAccount of an installation that is gone is deleted, and the next one takes the job
        own_lab.apply()
        first = wait_until(owner)
        wait_until(partial(is_settled, first))
        before = wait_until(lambda: own_lab.unchanged(0.5))
        assert (own_lab.unchanged(2.0), owner(), is_run_by(first)) == (before, first, True)
        caplog.clear()
        own_lab.delete("ServiceAccount", names.account("cartpole"))
