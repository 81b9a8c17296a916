"""The pages of jobs on a real NATS: bounded, found by the next operator, and stored again after a loss."""

from typing import TYPE_CHECKING

import pytest

from rollfleet_operator.errors import NatsUnavailable
from rollfleet_operator.nats import page_store
from rollfleet_operator.nats_port import PAGE_BYTES, JobKey

if TYPE_CHECKING:
    from tests.control.wire.jwt_nats import NatsInJwtMode, Site

KEY = JobKey("team-a", "cartpole")


async def test_the_next_operator_finds_the_pages(site: "Site") -> None:
    await site.nats.save_page(KEY, b"page")
    await site.nats.close()
    later = site.nats_with()
    assert await later.pages() == {KEY: b"page"}
    await later.close()


async def test_installations_with_one_signing_key_have_their_own_pages(site: "Site") -> None:
    await site.nats.save_page(KEY, b"page")
    other = site.nats_with(installation="other")
    assert await other.pages() == {}
    await other.close()


async def test_many_pages_push_out_the_oldest(site: "Site", monkeypatch: pytest.MonkeyPatch) -> None:
    few = page_store._CONFIGURATION.evolve(max_bytes=4 * PAGE_BYTES)
    monkeypatch.setattr(page_store, "_CONFIGURATION", few)
    keys = [JobKey("team-a", f"job-{number}") for number in range(8)]
    for key in keys:
        await site.nats.save_page(key, bytes(PAGE_BYTES - 1024))
    kept = await site.nats.pages()
    assert list(kept) == keys[-len(kept) :]
    assert 0 < len(kept) <= 4


async def test_a_page_that_is_too_large_is_refused_and_the_last_one_stays(site: "Site") -> None:
    await site.nats.save_page(KEY, b"page")
    with pytest.raises(NatsUnavailable, match="did not store the page of team-a/cartpole"):
        await site.nats.save_page(KEY, bytes(PAGE_BYTES + 1))
    assert await site.nats.pages() == {KEY: b"page"}


async def test_pages_are_stored_again_when_nats_has_lost_its_data(site: "Site", nats_server: "NatsInJwtMode") -> None:
    await site.nats.save_page(KEY, b"page")
    nats_server.kill()
    with pytest.raises(NatsUnavailable):
        await site.nats.save_page(KEY, b"page")
    nats_server.start_again(empty=True)
    await site.nats.save_page(KEY, b"page")
    assert await site.nats.pages() == {KEY: b"page"}
