"""New credentials reach a running program without an interruption."""

import asyncio
import time
from typing import TYPE_CHECKING

import pytest

from rollfleet.nats import credentials as rotation
from rollfleet.nats.link import Link
from rollfleet_api.address import Address
from rollfleet_api.permissions import Role
from rollfleet_api.streams import subjects_of

if TYPE_CHECKING:
    from tests.control.wire.jwt_nats import Play, Site

LIFE_S = 4


def test_worker_continues_after_its_first_credentials_expired(play: "Play", monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rotation, "CHECK_EVERY_S", 0.2)

    async def scene(site: "Site") -> None:
        job = site.job()
        await site.nats.provision(job)
        file = site.file(site.credentials(job, Role.WORKER, life_s=LIFE_S))

        def work() -> None:
            link = Link(Address(url=site.server.url, job=job.key, credentials=file), role=Role.WORKER)
            try:
                until = time.monotonic() + LIFE_S + 2
                site.file(site.credentials(job, Role.WORKER))
                while time.monotonic() < until:
                    link.call(link.store(subjects_of(job).worker(0), b"here"), timeout_s=3)
            finally:
                link.close()

        await asyncio.to_thread(work)

    play(scene)
