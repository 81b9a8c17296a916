"""What every `NatsPort` does, in memory and on a real server: the operator's tests rest on the first."""

import pytest
from tests.control.pure.nats_in_memory import NatsInMemory
from tests.control.wire.job_nats import Site

from rollfleet_api.job import CollectorJob
from rollfleet_api.state.processes import Heartbeats
from rollfleet_operator.nats_port import JobKey, NatsPort

KEY = JobKey("lab", "cartpole")


def a_job() -> CollectorJob:
    return Site.job(KEY.name, namespace=KEY.namespace)


@pytest.fixture(params=["memory", "nats"])
def nats(request: pytest.FixtureRequest) -> NatsPort:
    if request.param == "memory":
        return NatsInMemory()
    site: Site = request.getfixturevalue("site")
    site.server(a_job())
    return site.nats


async def test_job_without_messages_has_no_heartbeats(nats: NatsPort) -> None:
    for _ in range(2):
        assert await nats.heartbeats(a_job()) == Heartbeats()


async def test_a_job_is_left_and_removed_as_often_as_anyone_likes_and_comes_back(nats: NatsPort) -> None:
    for leave in (nats.disconnect, nats.remove):
        for _ in range(2):
            await leave(KEY)
        await nats.heartbeats(a_job())
        for _ in range(2):
            await leave(KEY)
        assert await nats.heartbeats(a_job()) == Heartbeats()
