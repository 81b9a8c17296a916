"""What the credentials of a job open on real nats-servers that the operator has configured, and what they do not."""

import asyncio
from dataclasses import replace

import pytest
from tests.control.wire.job_nats import Site

import rollfleet
from rollfleet.errors import ConnectionFailed, RollfleetError
from rollfleet.nats.link import Link
from rollfleet_api.nats_server import OWNER
from rollfleet_api.nats_server import USERS as USERS_OF_A_SERVER
from rollfleet_api.permissions import Role
from rollfleet_api.publication import subjects_of
from rollfleet_operator import names

USERS = pytest.mark.parametrize("role", [Role.WORKER, Role.LEARNER])


@USERS
async def test_a_name_of_another_job_ends_a_connection_at_once(
    site: Site, role: Role, caplog: pytest.LogCaptureFixture
) -> None:
    job = await site.start("acro", namespace="team-a")
    own = site.address(job, role)

    def connect() -> None:
        for other in ("default/acro", "team-a/other"):
            with pytest.raises(ConnectionFailed, match=f"not those of {other}"):
                Link(replace(own, job=other), role=role, timeout_s=60)
        Link(own, role=role).close()

    async with asyncio.timeout(30):
        await asyncio.to_thread(connect)
    assert "violation" not in caplog.text


async def test_a_pods_learner_may_leave_the_namespace_of_its_job_out(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = await site.start("acro", namespace="team-a")
    for name, value in site.address(job, Role.LEARNER).variables().items():
        monkeypatch.setenv(name, value)

    def connect() -> None:
        for name in ("acro", "team-a/acro", None):
            with rollfleet.connect(name, timeout_s=5) as collector:
                assert collector.job.key == "team-a/acro"
        with pytest.raises(ConnectionFailed, match="not those of default/acro"):
            rollfleet.connect("default/acro")

    await asyncio.to_thread(connect)


async def test_further_refusals_are_reported_once(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    job = await site.start()
    address = site.address(job, Role.WORKER)

    def publish() -> None:
        link = Link(address, role=Role.WORKER)
        for _ in range(5):
            link.call(link.publish(link.subjects.control, b""))
        link.call(link.flush())
        link.close()

    await asyncio.to_thread(publish)
    (report,) = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert 'permissions violation for publish to "rollfleet.default.a._.control"' in report


@pytest.mark.parametrize(("name", "namespace"), [("a-2", "default"), ("a", "default-2")])
@pytest.mark.parametrize("user", USERS_OF_A_SERVER)
async def test_a_password_of_one_job_opens_no_other_jobs_server(
    site: Site, user: str, name: str, namespace: str
) -> None:
    ours, theirs = await site.start(), await site.start(name, namespace=namespace, uid="uid-2")
    stolen = site.access.key.password(ours, user)
    assert "Authorization" in await site.refusal(theirs, user, stolen)
    async with site.guest(ours, user, password=stolen) as us:
        await us.flush()


@USERS
async def test_a_role_does_not_act_as_the_other(site: Site, role: Role) -> None:
    job = await site.start()
    subjects = subjects_of(job)
    others = {Role.WORKER: subjects.control, Role.LEARNER: subjects.chunk(0)}
    async with site.guest(job, role) as guest:
        for subject in (others[role], subjects.spec, "$JS.API.INFO"):
            await guest.client.publish(subject, b"")
            assert "permissions violation" in await asyncio.wait_for(guest.refused.get(), 5)
        await guest.client.subscribe(">")
        assert "permissions violation" in await asyncio.wait_for(guest.refused.get(), 5)


async def test_passwords_of_before_a_rotation_and_of_a_deleted_job_are_refused(site: Site) -> None:
    first = await site.start(uid="uid-1")
    kept = {user: site.access.key.password(first, user) for user in USERS_OF_A_SERVER}
    rotated = first.metadata.model_copy(update={"annotations": {names.ROTATE: "2027-01-31"}})
    for later in (site.job(uid="uid-2"), first.model_copy(update={"metadata": rotated})):
        site.without_server(first)
        site.server(later)
        await site.nats.heartbeats(later)
        for user, password in kept.items():
            assert "Authorization" in await site.refusal(later, user, password)


async def test_a_program_that_runs_connects_with_renewed_credentials(site: Site) -> None:
    job = await site.start()
    address, subject = site.address(job, Role.LEARNER), subjects_of(job).learner(0, 1)
    link = await asyncio.to_thread(lambda: Link(address, role=Role.LEARNER))
    try:
        metadata = job.metadata.model_copy(update={"annotations": {names.ROTATE: "2027-01-31"}})
        renewed = job.model_copy(update={"metadata": metadata})
        port = site.server(job).url
        site.without_server(job)
        site.server(renewed, url=port)
        await site.nats.heartbeats(renewed)
        site.address(renewed, Role.LEARNER)  # as the kubelet brings it
        async with site.guest(renewed, OWNER) as owner:
            heard = await owner.client.subscribe(subject)
            await owner.flush()
            async with asyncio.timeout(30):
                while not heard.pending_msgs:
                    await asyncio.to_thread(lambda: link.call(link.publish(subject, b"after"), timeout_s=30))
                    await owner.flush()
    finally:
        await asyncio.to_thread(link.close)


async def test_no_client_connects_without_credentials(site: Site) -> None:
    job = await site.start()
    url = site.server(job).url
    with pytest.raises(RollfleetError, match="refused us"):
        await asyncio.to_thread(lambda: rollfleet.connect("default/a", address=url, timeout_s=5))


async def test_no_secret_is_shown_where_objects_are_printed(site: Site) -> None:
    job = site.job()
    site.server(job)
    shown = repr(site.access) + repr(site.access.login(job, OWNER)) + repr(site.nats)
    assert site.access.key.password(job, OWNER) not in shown
    assert repr(site.access.key.secret) not in shown
