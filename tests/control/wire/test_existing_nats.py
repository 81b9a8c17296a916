"""A NATS that was there before, with an operator and accounts of its own: we are given a signing key, and no more."""

import json
import time
from pathlib import Path

import pytest
from tests.control.wire.jwt_nats import NatsInJwtMode, Site

from rollfleet_api.address import URL
from rollfleet_api.permissions import Role
from rollfleet_api.streams import subjects_of
from rollfleet_operator.nats.account_registry import AccountRegistry
from rollfleet_operator.nats.connection import Connection, own_user
from rollfleet_operator.nats.keys import Keys
from rollfleet_operator.nats.server_port import NatsOnServer
from rollfleet_operator.nats.settings import KEYS, NatsSettings
from rollfleet_operator.nats.tokens import Claims, Kind, Signer, Token, credentials_file
from rollfleet_operator.nats.trust import SEED_FILE, SYSTEM_CREDENTIALS_FILE
from rollfleet_operator.nats.users import administrator
from rollfleet_operator.nats_port import JobKey

OURS = Signer.of(Kind.OPERATOR, b"o" * 32)
SOMEBODY = Signer.of(Kind.ACCOUNT, b"s" * 32)


@pytest.fixture
def settings(nats_server: NatsInJwtMode, tmp_path: Path) -> NatsSettings:
    """As the chart mounts them: a signing key of their operator, a user of their system account."""
    theirs, system = nats_server.keys.operator, nats_server.keys.system_account()
    claims: Claims = {"type": "operator", "system_account": system.public, "signing_keys": [OURS.public]}
    operator = Token(name="theirs", subject=theirs.public, issued_s=int(time.time()), nats=claims).signed(theirs)
    trust = nats_server.folder / "trust.conf"
    lines = [line for line in trust.read_text().splitlines() if not line.startswith("operator:")]
    nats_server.kill()
    trust.write_text("\n".join([f"operator: {json.dumps(operator)}", *lines]))
    nats_server.start_again()
    folder = tmp_path / "given"
    folder.mkdir()
    (folder / SEED_FILE).write_text(OURS.seed)
    given = administrator(system, now_s=int(time.time()), entropy=b"u" * 32)
    (folder / SYSTEM_CREDENTIALS_FILE).write_bytes(credentials_file(*given))
    return NatsSettings.read({URL: nats_server.url, KEYS: str(folder)})


async def test_jobs_run_and_objects_of_others_are_left_alone(settings: NatsSettings, site: Site) -> None:
    theirs = site.server.keys
    system = Connection(settings.endpoint, own_user(theirs.system_account()), "theirs")
    registry = AccountRegistry(system, theirs)
    claims: Claims = {"type": "account", "limits": {"conn": -1, "subs": -1, "data": -1, "payload": -1}}
    await registry.ensure(Token(name="somebody", subject=SOMEBODY.public, issued_s=int(time.time()), nats=claims))
    nats, job = NatsOnServer(settings), site.job()
    assert await nats.provisioned() == set()
    await nats.provision(job)
    assert await nats.provisioned() == {JobKey("default", "a")}
    for role in (Role.WORKER, Role.LEARNER):  # an evaluation worker stores nothing
        credentials = nats.credentials(job, role)
        async with site.guest(job, role, credentials) as guest:
            subject = subjects_of(job).worker(0) if role is Role.WORKER else subjects_of(job).learner
            await guest.client.jetstream().publish(subject, b"here")
    assert not (await nats.heartbeats(job)).workers  # it was no heartbeat, but it was there to be read
    await nats.deprovision(JobKey("default", "a"))
    assert await nats.provisioned() == set()
    assert await registry.held(SOMEBODY.public) is not None
    assert await registry.held(Keys(OURS).account(subjects_of(job)).public) is None
    await nats.close()
    await system.close()


async def test_another_account_of_the_same_nats_reads_and_writes_nothing_of_a_job(
    settings: NatsSettings, site: Site
) -> None:
    nats, job = NatsOnServer(settings), site.job()
    await nats.provision(job)
    subjects = subjects_of(job)
    home = nats._keys.account(subjects).public
    theirs = site.server.keys
    system = Connection(settings.endpoint, own_user(theirs.system_account()), "theirs")
    claims: Claims = {
        "type": "account",
        "limits": {"conn": -1, "subs": -1, "data": -1, "payload": -1, "imports": -1},
        "imports": [
            {"name": subject, "subject": subject, "local_subject": subject, "account": home, "type": kind}
            for subject, kind in ((subjects.all_weights[0], "stream"), (subjects.batch_subjects[0], "service"))
        ],
    }
    somebody = Token(name="somebody", subject=SOMEBODY.public, issued_s=int(time.time()), nats=claims)
    await AccountRegistry(system, theirs).ensure(somebody)
    stranger = Connection(settings.endpoint, own_user(SOMEBODY), "stranger")
    client = await stranger.client()
    heard = await client.subscribe(subjects.all_weights[0])
    credentials, of_worker = (nats.credentials(job, role) for role in (Role.LEARNER, Role.WORKER))
    async with site.guest(job, Role.LEARNER, credentials) as learner, site.guest(job, Role.WORKER, of_worker) as worker:
        await learner.client.jetstream().publish(subjects.weights_of(None).chunk(1, 0), b"weights")
        batches = await learner.client.subscribe(subjects.batch_subjects[0])
        await learner.flush()
        await client.publish(subjects.batch_chunk(0, 0), b"forged")
        await client.flush()
        await worker.client.publish(subjects.batch_chunk(0, 0), b"a worker's")
        assert (await batches.next_msg(5)).data == b"a worker's"
    await client.flush()
    assert heard.pending_msgs == 0
    for connection in (stranger, system, nats):
        await connection.close()
