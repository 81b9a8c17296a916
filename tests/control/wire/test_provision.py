"""What a job's processes hear of the operator on a real nats-server, and it of them."""

import asyncio
import re
from contextlib import closing
from dataclasses import replace

import pytest
from nats import connect
from nats.aio.subscription import Subscription
from tests.control.wire.job_nats import Guest, OrganisationNats, Site

from rollfleet_api.job import CollectorJob, CollectorJobStatus
from rollfleet_api.messages import LearnerPhase, LearnerStatus, WorkerStatus, pack
from rollfleet_api.permissions import Role
from rollfleet_api.publication import DELETED, subjects_of
from rollfleet_api.subjects import Ask
from rollfleet_operator.errors import NatsUnavailable
from rollfleet_operator.nats.connection import Connection
from rollfleet_operator.nats.job_on_nats import ANSWERS
from rollfleet_operator.nats.server_port import NatsOnServers
from rollfleet_operator.nats_access import Login
from rollfleet_operator.nats_port import JobKey

WORKER = WorkerStatus(worker=1, incarnation=0)
LEARNER = LearnerStatus(session=6, version=9, applied_version=8, frames=640, batches=10, time_s=1.0)


async def listening(guest: Guest, job: CollectorJob) -> Subscription:
    heard = await guest.client.subscribe(subjects_of(job).spec)
    await guest.flush()
    return heard


async def test_each_look_sends_the_job_and_a_process_that_asks_gets_it_at_once(site: Site) -> None:
    before = await site.start(workers=1)
    async with site.guest(before, Role.WORKER) as worker:
        heard = await listening(worker, before)
        await worker.client.publish(subjects_of(before).ask(Ask.JOB))
        assert CollectorJob.model_validate_json((await heard.next_msg(5)).data) == before
        after = await site.start(generation=2, workers=40)
        assert CollectorJob.model_validate_json((await heard.next_msg(5)).data) == after


async def test_a_flood_of_questions_gets_few_answers_between_two_looks(site: Site) -> None:
    job = await site.start()
    async with site.guest(job, Role.WORKER) as worker:
        heard = await listening(worker, job)
        for _ in range(1000):
            await worker.client.publish(subjects_of(job).ask(Ask.JOB))
        await heard.next_msg(5)
        await site.nats.heartbeats(job)
        await worker.flush()
        assert heard.pending_msgs <= ANSWERS


async def test_a_process_hears_how_far_its_job_has_come(site: Site) -> None:
    job = site.job().model_copy(update={"status": CollectorJobStatus(frames=640, published_version=9, restarts=3)})
    site.server(job)
    async with site.guest(job, Role.LEARNER) as learner:
        heard = await listening(learner, job)
        await site.nats.heartbeats(job)
        status = CollectorJob.model_validate_json((await heard.next_msg(5)).data).status
    assert status == CollectorJobStatus(frames=640, published_version=9)


async def test_the_newest_learner_is_heard(site: Site) -> None:
    job = await site.start()
    subjects = subjects_of(job)
    await site.speak(
        job, Role.LEARNER, {subjects.learner(0, 1): LEARNER, subjects.learner(1, 2): replace(LEARNER, session=9)}
    )
    assert (await site.heard(job, lambda found: found.learner is not None)).learner == LEARNER
    complete = replace(LEARNER, session=7, phase=LearnerPhase.COMPLETE)
    await site.speak(job, Role.LEARNER, {subjects.learner(0, 2): complete})
    await site.heard(job, lambda found: found.learner == complete)


async def test_a_learners_last_word_between_two_looks_is_heard(site: Site) -> None:
    job = await site.start()
    complete = replace(LEARNER, phase=LearnerPhase.COMPLETE)
    async with site.guest(job, Role.LEARNER) as learner:
        await learner.client.publish(subjects_of(job).learner(0, 1), pack(complete))
        await learner.flush()
    assert (await site.nats.heartbeats(job)).learner == complete


async def test_processes_of_a_deleted_job_hear_it_on_an_organisations_nats(nats_server: OrganisationNats) -> None:
    nats, job = NatsOnServers(nats_server.access), Site.job()
    await nats.heartbeats(job)
    client = await connect(nats_server.url, user="collecting", password="a-password")
    heard = await client.subscribe(subjects_of(job).spec)
    for _ in range(2):  # the first PING may overtake the subscription
        await client.flush()
    await nats.remove(JobKey("default", "a"))
    assert (await heard.next_msg(5)).data == DELETED
    await nats.remove(JobKey("default", "a"))
    await nats.close()
    await client.close()


async def test_an_end_that_could_not_be_sent_is_sent_at_the_next_attempt(nats_server: OrganisationNats) -> None:
    nats = NatsOnServers(nats_server.access)
    await nats.heartbeats(Site.job())
    nats_server.kill()
    for _ in range(2):
        with pytest.raises(NatsUnavailable):
            await nats.remove(JobKey("default", "a"))
    nats_server.start_again()
    await nats.remove(JobKey("default", "a"))
    await nats.close()


async def test_heartbeats_outlast_a_server_and_a_restarted_operator_waits_for_all(site: Site) -> None:
    job = await site.start(workers=2100)
    subjects, third = subjects_of(job), range(0, 2100, 3)
    answers = {subjects.worker(index): WorkerStatus(worker=index, incarnation=0) for index in third}
    await site.speak(job, Role.WORKER, answers)
    known = CollectorJobStatus.model_validate({"workers": {"desired": 2100, "ready": 700}})
    found = await site.another_operator().heartbeats(job.model_copy(update={"status": known}))
    assert set(found.workers) == set(third)
    await site.heard(job, lambda found: len(found.workers) == 700)
    await site.nats.disconnect(JobKey("default", "a"))
    assert len((await site.nats.heartbeats(job)).workers) == 700


async def test_nats_that_is_away_is_reported_within_ten_seconds(site: Site) -> None:
    job = site.job()
    server = site.server(job)
    server.kill()
    with pytest.raises(NatsUnavailable, match=re.escape(server.url)):
        await site.nats.heartbeats(job)
    server.start_again()
    async with asyncio.timeout(10):
        await site.nats.heartbeats(job)


async def test_a_cancelled_attempt_to_connect_leaves_no_socket() -> None:
    """A server that says nothing: the operator gives up, and its side of the connection is closed."""
    ended: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer):
            writer.write(b'INFO {"max_payload":1048576}\r\n')
            await reader.readline()  # CONNECT, which is never answered
            connecting.cancel()
            await reader.readline()
            ended.set_result(await reader.read())

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    connecting = asyncio.ensure_future(Connection(Login(url=url, credentials=b"admin:x"), "a").client())
    async with asyncio.timeout(30):
        with pytest.raises(asyncio.CancelledError):
            await connecting
        assert await ended == b""
    server.close()
