"""What every `NatsPort` does, in memory and on a real server: the operator's tests rest on the first."""

import pytest
from tests.control.pure.nats_in_memory import NatsInMemory
from tests.control.wire.jwt_nats import Site

from rollfleet_api.job import CollectorJob
from rollfleet_api.permissions import Role
from rollfleet_operator.nats_port import Heartbeats, JobKey, NatsPort

KEY = JobKey("lab", "cartpole")


def a_job(uid: str = "uid-1") -> CollectorJob:
    return Site.job(KEY.name, namespace=KEY.namespace, uid=uid)


@pytest.fixture(params=["memory", "nats"])
def nats(request: pytest.FixtureRequest) -> NatsPort:
    if request.param == "memory":
        return NatsInMemory()
    site: Site = request.getfixturevalue("site")
    return site.nats


async def test_credentials_stay_the_same(nats: NatsPort) -> None:
    assert nats.credentials(a_job(), Role.WORKER) == nats.credentials(a_job(), Role.WORKER)


async def test_each_role_has_its_own_credentials(nats: NatsPort) -> None:
    created = {nats.credentials(a_job(), role) for role in Role}
    assert len(created) == len(Role)


async def test_credentials_of_an_earlier_job_of_the_name_are_not_kept(nats: NatsPort) -> None:
    created = nats.credentials(a_job("uid-1"), Role.WORKER)
    assert nats.credentials(a_job("uid-2"), Role.WORKER) != created


async def test_provisioned_jobs_are_known_until_they_are_removed(nats: NatsPort) -> None:
    assert KEY not in await nats.provisioned()
    for _ in range(2):
        await nats.provision(a_job())
        assert KEY in await nats.provisioned()
    for _ in range(2):
        await nats.deprovision(KEY)
        assert KEY not in await nats.provisioned()


async def test_job_without_messages_has_no_heartbeats(nats: NatsPort) -> None:
    await nats.provision(a_job())
    assert await nats.heartbeats(a_job()) == Heartbeats()
