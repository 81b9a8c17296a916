"""A nats-server in JWT mode."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from tests.control.wire.jwt_nats import NatsInJwtMode, Play, Site


@pytest.fixture
def nats_server(tmp_path: Path) -> Iterator[NatsInJwtMode]:
    """A running nats-server; stopped after the test."""
    folder = tmp_path / "nats"
    folder.mkdir()
    server = NatsInJwtMode(folder)
    yield server
    server.stop()


@pytest.fixture
def play(nats_server: NatsInJwtMode, tmp_path: Path) -> Play:
    """Runs a coroutine function with a `Site`, and lets go of it afterwards."""

    def play(scene: Callable[[Site], Awaitable[None]]) -> None:
        async def go() -> None:
            site = Site(nats_server, tmp_path)
            try:
                await scene(site)
            finally:
                await site.nats.close()

        asyncio.run(go())

    return play
