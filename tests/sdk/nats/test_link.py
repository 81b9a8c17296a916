"""The connection on its own thread: blocking calls that survive restarts of NATS."""

import asyncio
import threading
import time
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest
from nats.aio.subscription import Subscription
from tests.held import held
from tests.job_server import Server
from tests.sdk.nats.encrypted import encrypt
from tests.waiting import wait_until

from rollfleet.errors import ConnectionFailed, Timeout
from rollfleet.nats.job_source import read_job
from rollfleet.nats.link import Link
from rollfleet_api.address import Address
from rollfleet_api.messages import pack
from rollfleet_api.permissions import Role
from rollfleet_api.transfers import Want


async def loop_thread() -> str:
    return threading.current_thread().name


def test_calls_work_inside_a_running_event_loop(server: Server) -> None:
    server.own()

    async def notebook() -> None:
        link = server.link(Role.LEARNER)
        assert link.call(read_job(link, timeout_s=5)).key == "default/test"
        assert link.call(loop_thread()) == "rollfleet-link"
        link.close()

    asyncio.run(notebook())


def test_a_link_trusts_the_authority_that_its_file_has_after_a_restart(server: Server, tmp_path: Path) -> None:
    file = tmp_path / "ca.crt"

    encrypt(server).cert_pem.write_to_path(file)
    link, back = Link(replace(server.address(Role.WORKER), ca=file), role=Role.WORKER, timeout_s=60), threading.Event()
    link.on_reconnect(partial(asyncio.to_thread, back.set))
    encrypt(server).cert_pem.write_to_path(file)
    assert back.wait(20)
    link.close()


def test_call_that_takes_too_long_reports_the_connections_last_error(server: Server) -> None:
    server.own()
    link = server.link(Role.WORKER)
    server.kill()
    with pytest.raises(Timeout, match=r"NATS did not answer within 1 s \(last error of the connection: .+\)"):
        link.call(asyncio.sleep(60), timeout_s=1)


def test_request_without_an_answer_raises_rollfleets_timeout(server: Server) -> None:
    async def give_up() -> None:
        raise TimeoutError

    with pytest.raises(Timeout, match="NATS did not answer in time"):
        server.link().call(give_up())


@pytest.mark.parametrize("servers", [1, 2])
def test_missing_servers_are_named_without_passwords(server: Server, servers: int) -> None:
    server.kill()
    url = ",".join(f"nats://user{index}:secret{index}@{server.host_port}" for index in range(servers))
    with pytest.raises(ConnectionFailed, match=f"NATS at {server.host_port}") as error:
        Link(Address(url=url, job="default/test"), role=None, timeout_s=0.5)
    assert "secret" not in str(error.value)


def test_an_invalid_url_is_told_at_once_as_itself() -> None:
    with pytest.raises(ConnectionFailed, match=r"NATS at 127\.0\.0\.1:x cannot be connected to: .*invalid connect url"):
        Link(Address(url="nats://127.0.0.1:x", job="default/test"), role=None, timeout_s=60)


@pytest.mark.parametrize("name", ["credentials", "ca"])
def test_a_missing_file_is_named(name: str, tmp_path: Path) -> None:
    missing: dict[str, Any] = {name: tmp_path / "missing"}
    address = Address(url="nats://127.0.0.1:1", job="default/test", **missing)
    message = f"{tmp_path}/missing cannot be read: No such file.*; write its absolute path into ROLLFLEET_NATS_CRED"
    with pytest.raises(ConnectionFailed, match=message):
        Link(address, role=None)


def test_a_pem_file_without_a_jwt_is_refused(server: Server, tmp_path: Path) -> None:
    """It was taken for one: nats-py looks for the JWT in it without an end."""
    file = tmp_path / "user.creds"
    file.write_text("-----BEGIN USER NKEY SEED-----\nnone\n------END USER NKEY SEED------\n")
    with pytest.raises(ConnectionFailed, match="refused us"):
        Link(replace(server.address(Role.WORKER), credentials=file), role=Role.WORKER, timeout_s=60)


@pytest.mark.parametrize("alive", [True, False], ids=["a server", "a dead server"])
def test_a_link_closes_twice_and_then_takes_no_call(server: Server, alive: bool) -> None:
    link = server.link()
    if not alive:
        server.kill()
    link.close()
    link.close()
    with pytest.raises(ConnectionFailed, match="default/test was closed"):
        link.call(loop_thread())
    link.soon(lambda: pytest.fail("it was called"))


def test_messages_published_before_closing_arrive(server: Server) -> None:
    sender, reader = server.link(), server.link()

    async def listen() -> Subscription:
        subscription = await reader.client.subscribe(server.subjects.learner(0, 1))
        await reader.flush()
        return subscription

    async def arrived(subscription: Subscription) -> list[bytes]:
        return [(await subscription.next_msg(5)).data for _ in range(200)]

    subscription = reader.call(listen())
    for number in range(200):
        sender.call(sender.client.publish(server.subjects.learner(0, 1), b"%d" % number))
    sender.close()
    assert reader.call(arrived(subscription)) == [b"%d" % number for number in range(200)]


@pytest.mark.usefixtures("hasty_threads")
def test_what_threads_begin_while_it_is_closed_ends(server: Server) -> None:
    for _ in range(100):
        link, begun = server.link(), list[Future[None]]()

        def begin(link: Link = link, begun: list[Future[None]] = begun) -> None:
            with suppress(ConnectionFailed):
                while True:
                    begun.append(link.spawn(asyncio.sleep(60)))
                    time.sleep(0)

        threads = [threading.Thread(target=begin) for _ in range(3)]
        for thread in threads:
            thread.start()
        wait_until(partial(bool, begun))
        link.close()
        for thread in threads:
            thread.join()
        assert all(each.done() for each in begun)


def test_invalid_messages_are_logged_and_skipped(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    link, heard, want = server.link(), SimpleQueue[Want](), Want(version=1)
    link.call(link.listen(link.subjects.wants("*"), Want, heard.put))
    link.call(link.flush())
    for data in (b"rubbish", pack(want)):
        link.call(link.publish(link.subjects.wants("0"), data))
    assert heard.get(timeout=10) == want
    assert "skipped an invalid message on rollfleet.default.test._.wants.0" in caplog.text


def test_a_connection_that_does_not_close_in_time_leaves_no_socket_and_no_thread(server: Server) -> None:
    before = held()
    link = Link(server.address(), role=None)
    link.close(flush_timeout_s=0)  # no answer comes in no time: the orderly close is cut short
    assert held() <= before
