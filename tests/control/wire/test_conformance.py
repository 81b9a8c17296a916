"""What every `NatsPort` does, in memory and on a real server: the operator's tests rest on the first."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import pytest

from rollfleet_api.job import API_VERSION, KIND, CollectorJob
from rollfleet_api.permissions import Role
from rollfleet_api.validation import parse_job
from rollfleet_operator.nats_in_memory import NatsInMemory
from rollfleet_operator.nats_port import Heartbeats, JobKey, NatsPort

if TYPE_CHECKING:
    from tests.control.wire.jwt_nats import Play, Site

KEY = JobKey("lab", "cartpole")
Scene = Callable[[NatsPort], Awaitable[None]]
Act = Callable[[Scene], None]


def a_job(uid: str = "uid-1") -> CollectorJob:
    return parse_job(
        {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "metadata": {"namespace": KEY.namespace, "name": KEY.name, "uid": uid},
            "spec": {
                "env": {"id": "CartPole-v1"},
                "policy": {"random": {}},
                "collect": {"framesPerBatch": 8},
                "delivery": {"maxBytes": "4Mi"},
            },
        }
    )


@pytest.fixture(params=["memory", "nats"])
def act(request: pytest.FixtureRequest) -> Act:
    """Plays a scene with each `NatsPort`."""
    if request.param == "memory":
        return lambda scene: asyncio.run(scene(NatsInMemory()))  # type: ignore[arg-type]
    play: Play = request.getfixturevalue("play")

    def on_nats(scene: Scene) -> None:
        async def with_site(site: "Site") -> None:
            await scene(site.nats)

        play(with_site)

    return on_nats


def test_mounted_credentials_are_kept(act: Act) -> None:
    async def scene(nats: NatsPort) -> None:
        created = await nats.credentials(a_job(), Role.WORKER, None)
        assert await nats.credentials(a_job(), Role.WORKER, created) == created

    act(scene)


def test_each_role_has_its_own_credentials(act: Act) -> None:
    async def scene(nats: NatsPort) -> None:
        created = {await nats.credentials(a_job(), role, None) for role in Role}
        assert len(created) == len(Role)

    act(scene)


def test_credentials_of_an_earlier_job_of_the_name_are_not_kept(act: Act) -> None:
    async def scene(nats: NatsPort) -> None:
        created = await nats.credentials(a_job("uid-1"), Role.WORKER, None)
        assert await nats.credentials(a_job("uid-2"), Role.WORKER, created) != created

    act(scene)


def test_provisioned_jobs_are_known_until_they_are_removed(act: Act) -> None:
    async def scene(nats: NatsPort) -> None:
        assert KEY not in await nats.provisioned()
        for _ in range(2):
            await nats.provision(a_job())
            assert KEY in await nats.provisioned()
        for _ in range(2):
            await nats.deprovision(KEY)
            assert KEY not in await nats.provisioned()

    act(scene)


def test_job_without_messages_has_no_heartbeats(act: Act) -> None:
    async def scene(nats: NatsPort) -> None:
        await nats.provision(a_job())
        assert await nats.heartbeats(a_job()) == Heartbeats()

    act(scene)
