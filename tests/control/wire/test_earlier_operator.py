"""Accounts and streams that an earlier operator has made, when this one takes over: jobs keep running."""

import json
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from nats.js.errors import APIError

from rollfleet_api.messages import Control, LearnerPhase, pack
from rollfleet_api.permissions import Role
from rollfleet_api.streams import subjects_of
from rollfleet_operator.nats.accounts import AccountLimits, job_accounts
from rollfleet_operator.nats.tokens import Token

if TYPE_CHECKING:
    from tests.control.wire.jwt_nats import Site

CONTROL = Control(session=1, phase=LearnerPhase.RUN, round=0, version=3)


async def test_streams_of_an_earlier_operator_get_bounds_and_keep_their_messages(site: "Site") -> None:
    job = site.job(workers=2)
    subjects = subjects_of(job)
    await site.nats.provision(job)
    names = (subjects.state_stream, subjects.batches_stream)
    before = {"duplicate_window": 120_000_000_000, "max_msgs": -1, "max_msg_size": -1}
    async with site.administrator(subjects) as client:
        for name in names:
            info = json.loads((await client.request(f"$JS.API.STREAM.INFO.{name}")).data)
            unbounded = {"max_bytes": -1, "discard": "old"} if name == subjects.state_stream else {}
            await client.request(
                f"$JS.API.STREAM.UPDATE.{name}", json.dumps(info["config"] | before | unbounded).encode()
            )
        for number in range(6000):  # more than there may be
            await client.publish(f"{subjects.prefix}.claims.x{number}", b"")
            await client.publish(f"{subjects.prefix}.batches.x{number}.0", b"")
        await client.jetstream().publish(subjects.control, pack(CONTROL))
    nats = site.nats_with(limits=AccountLimits(state_bytes=64 << 20))
    await nats.provision(job)
    await nats.close()
    async with site.administrator(subjects) as client:
        state, batches = [await client.jsm().stream_info(name) for name in names]
        for stream in (state, batches):
            bounds = stream.config
            assert 0 < (bounds.max_msgs or 0) < stream.state.messages
            assert (bounds.max_bytes or 0) > 0
            assert (bounds.duplicate_window or 1) < 1
            assert bounds.discard == "new"
        assert await site.stored(job, subjects.control) == pack(CONTROL)
        with pytest.raises(APIError, match="maximum messages exceeded"):
            await client.jetstream().publish(subjects.lease(0), b"")
        newer = pack(replace(CONTROL, round=1))
        await client.jetstream().publish(subjects.control, newer)  # a known subject has its place
        assert await site.stored(job, subjects.control) == newer


def without_tokens(account: Token) -> Token:
    """An account as earlier operators made it: any account of the server could import what it exports."""
    unneeded = {"token", "token_req"}
    nats: Any = account.nats
    lists: Any = {
        name: [{key: value for key, value in each.items() if key not in unneeded} for each in nats[name]]
        for name in {"imports", "exports"} & set(nats)
    }
    assert lists
    return replace(account, nats={**nats, **lists})


async def test_workers_stay_connected_when_their_imports_get_tokens(site: "Site") -> None:
    job = site.job()
    subjects = subjects_of(job)
    await site.nats.provision(job)
    for account in job_accounts(job, site.server.keys, now_s=int(time.time())):
        await site.nats._registry.ensure(without_tokens(account))
    async with site.guest(job, Role.WORKER) as worker, site.guest(job, Role.LEARNER) as learner:
        heard = await worker.client.subscribe(subjects.weights)
        await worker.flush()
        await site.nats.provision(job)
        await learner.client.jetstream().publish(subjects.weight_chunk(1, 0), b"weights")
        assert (await heard.next_msg(5)).data == b"weights"
        assert (await worker.client.jetstream().publish(subjects.batch_chunk(0, 0), b"batch")).seq == 1
        assert worker.client.is_connected
