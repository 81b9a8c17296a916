"""What an identity that the operator minted opens on a real nats-server, and what it does not."""

import asyncio
import json
from contextlib import AsyncExitStack
from dataclasses import replace

import pytest
from nats.errors import Error as NatsError
from nats.errors import NoRespondersError
from nats.errors import TimeoutError as NatsTimeoutError
from nats.js.api import StreamConfig
from nats.js.errors import APIError
from tests.control.wire.jwt_nats import Site

import rollfleet
from rollfleet.errors import ConnectionFailed, RollfleetError
from rollfleet.nats.link import Link
from rollfleet_api.job import CollectorJob
from rollfleet_api.messages import Control, LearnerPhase, pack
from rollfleet_api.permissions import Role, inbox_prefix, permissions
from rollfleet_api.streams import state_stream, subjects_of

CONTROL = pack(Control(session=7, phase=LearnerPhase.RUN, round=0, version=3))
FORGED = pack(Control(session=9, phase=LearnerPhase.COMPLETE, round=0, version=0))
QUIET_S = 0.3  # how long nothing must come


async def two_jobs(site: Site, name: str, namespace: str) -> tuple[CollectorJob, CollectorJob]:
    """The job `default/a` and another one, with something in the state of the other one."""
    ours, theirs = site.job("a"), site.job(name, namespace=namespace)
    for job in (ours, theirs):
        await site.nats.provision(job)
    subjects = subjects_of(theirs)
    async with site.guest(theirs, Role.LEARNER) as learner:
        stream = learner.client.jetstream()
        await stream.publish(subjects.control, CONTROL)
        await stream.publish(subjects.weights_of(None).chunk(1, 0), b"weights of b")
    return ours, theirs


@pytest.mark.parametrize("role", list(Role))
async def test_credentials_of_another_job_end_a_connection_at_once_and_both_jobs_are_named(
    site: Site, role: Role, caplog: pytest.LogCaptureFixture
) -> None:
    job = await site.start("acro", namespace="team-a")
    own = site.address(job, role)

    def connect() -> None:
        for other in ("default/acro", "team-a/other"):
            with pytest.raises(ConnectionFailed, match=f"these credentials are for team-a/acro.* asked for {other}"):
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
        with pytest.raises(ConnectionFailed, match="are for team-a/acro, you asked for default/acro"):
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
    assert 'permissions violation for publish to "rollfleet.default.a.control"' in report


OTHERS = pytest.mark.parametrize(("name", "namespace"), [("a-2", "default"), ("a", "default-2")])


@OTHERS
@pytest.mark.parametrize("role", [Role.WORKER, Role.LEARNER])
async def test_a_role_of_one_job_reads_nothing_of_another(site: Site, role: Role, name: str, namespace: str) -> None:
    ours, theirs = await two_jobs(site, name, namespace)
    subjects = subjects_of(theirs)
    async with site.guest(ours, role) as us, site.guest(theirs, Role.LEARNER) as learner:
        inboxes = f"{inbox_prefix(subjects, Role.WORKER)}.>"
        for wildcard in (">", f"{subjects.prefix}.>", *subjects.all_weights, inboxes):
            await us.client.subscribe(wildcard)
            assert "permissions violation" in await asyncio.wait_for(us.refused.get(), 5)
        await learner.client.jetstream().publish(subjects.weights_of(None).chunk(2, 0), b"more")
        for request in (
            f"$JS.API.DIRECT.GET.{subjects.state_stream}.{subjects.weights_of(None).chunk(1, 0)}",
            subjects.state_get,
            subjects.state_info,
            f"$JS.API.CONSUMER.CREATE.{subjects.state_stream}.mine",
        ):
            with pytest.raises((NoRespondersError, NatsTimeoutError)):
                await us.client.request(request, timeout=QUIET_S)
            assert "permissions violation" in await asyncio.wait_for(us.refused.get(), 5)


@OTHERS
@pytest.mark.parametrize("role", [Role.WORKER, Role.LEARNER])
async def test_a_role_of_one_job_writes_nothing_of_another(site: Site, role: Role, name: str, namespace: str) -> None:
    ours, theirs = await two_jobs(site, name, namespace)
    subjects = subjects_of(theirs)
    targets = [subjects.batch_chunk(0, 1), subjects.control, subjects.weights_of(None).chunk(1, 0), subjects.worker(0)]
    own = subjects_of(ours).lease(0) if role is Role.WORKER else subjects_of(ours).learner
    read = f"$JS.API.DIRECT.GET.{subjects_of(ours).state_stream}.{subjects_of(ours).control}"
    async with site.guest(ours, role) as us:
        for target in targets:
            await us.client.publish(target, FORGED)
            assert "permissions violation" in await asyncio.wait_for(us.refused.get(), 5)
            # JetStream answers on any subject that a request names, whatever the sender may publish to.
            await us.client.publish(own, FORGED, reply=target)
            await us.client.publish(read, b"", reply=target)
        await us.flush()
    await untouched(site, theirs)


async def untouched(site: Site, job: CollectorJob) -> None:
    """That a job of `two_jobs` holds what it did, and nothing else."""
    subjects = subjects_of(job)
    assert await site.stored(job, subjects.control) == CONTROL
    assert await site.stored(job, subjects.weights_of(None).chunk(1, 0)) == b"weights of b"
    async with site.administrator(subjects) as client:
        state = await client.jsm().stream_info(subjects.state_stream, subjects_filter=">")
        assert set(state.state.subjects or {}) == {
            subjects.spec,
            subjects.control,
            subjects.weights_of(None).chunk(1, 0),
        }


@pytest.mark.parametrize(("role", "most_bytes"), [(Role.WORKER, 64 << 20), (Role.LEARNER, 3 << 30)])
async def test_redirected_replies_give_a_job_no_larger_stream(site: Site, role: Role, most_bytes: int) -> None:
    """JetStream replies to any subject, also to its own API: a stored message could be a request of the server."""
    job = await site.start()
    subjects = subjects_of(job)
    before = await configurations(site, job)
    larger = json.dumps(state_stream(job, most_bytes) | {"max_msgs": -1, "duplicate_window": 10**14}).encode()
    allowed = permissions(subjects, role).publish
    stored = [subjects.lease(0), subjects.worker(0)] if role is Role.WORKER else [subjects.control, subjects.learner]
    read = json.dumps({"last_by_subj": stored[0]}).encode()
    requests = [each.replace(">", subject).replace("*", "0") for each in allowed for subject in (*stored, "0.0")]
    async with site.guest(job, role) as guest:
        for subject in stored:
            await guest.client.jetstream().publish(subject, larger)
        for request in requests:
            for verb in ("CREATE", "UPDATE", "RESTORE"):
                for stream in (subjects.state_stream, "mine"):
                    body = read if request == subjects.state_get else larger
                    await guest.client.publish(request, body, reply=f"$JS.API.STREAM.{verb}.{stream}")
        await guest.flush()
        await guest.client.request(subjects.state_info, timeout=5)  # all before it is dealt with
    assert await configurations(site, job) == before


async def configurations(site: Site, job: CollectorJob) -> dict[str | None, StreamConfig]:
    async with site.administrator(subjects_of(job)) as client:
        return {stream.config.name: stream.config for stream in await client.jsm().streams_info()}


async def test_credentials_of_a_deleted_job_do_not_open_a_later_job_of_its_name(site: Site) -> None:
    first = await site.start(uid="uid-1")
    kept = {role: site.credentials(first, role) for role in Role}
    await site.nats.provision(site.job(uid="uid-2"))
    for role in Role:
        assert "Authorization" in await site.refusal(first, role, kept[role])


async def test_expired_credentials_are_refused_and_cut_off(site: Site) -> None:
    job = await site.start()
    short = site.credentials(job, Role.WORKER, life_s=2)
    async with site.guest(job, Role.WORKER, short) as worker:
        await asyncio.wait_for(worker.closed.wait(), 10)
        assert "user authentication expired" in str(worker.client.last_error)
    late = site.credentials(job, Role.WORKER, life_s=60, ago_s=120)
    assert "Authorization" in await site.refusal(job, Role.WORKER, late)


async def test_no_client_connects_without_credentials(site: Site) -> None:
    with pytest.raises(RollfleetError, match="refused us"):
        await asyncio.to_thread(lambda: rollfleet.connect("default/a", address=site.server.url, timeout_s=5))


async def test_a_job_stores_no_more_than_its_account_may(site: Site) -> None:
    job = site.job()
    await site.nats_with(state_bytes=2 << 20).provision(job)
    async with site.guest(job, Role.LEARNER) as learner:
        stream = learner.client.jetstream()

        async def publish_too_much() -> None:
            for number in range(8):
                await stream.publish(subjects_of(job).weights_of(None).chunk(1, number), bytes(900_000))

        with pytest.raises(APIError, match="maximum bytes exceeded"):
            await publish_too_much()


async def test_a_job_has_no_more_connections_than_its_workers_need(site: Site) -> None:
    job = await site.start(workers=1)
    async with AsyncExitStack() as connected:
        for _ in range(3 * 1 + 32 - 1):  # one is the operator's
            await connected.enter_async_context(site.guest(job, Role.WORKER))
        with pytest.raises(NatsError, match="maximum account active connections"):
            await connected.enter_async_context(site.guest(job, Role.WORKER))


async def test_no_secret_is_shown_where_keys_are_printed(site: Site) -> None:
    shown = repr(site.server.settings) + repr(site.nats) + str(site.server.keys)
    assert site.server.keys.operator.seed not in shown
    assert site.server.keys.operator.public in shown
