"""Versions of the weights on a real NATS: a worker uses only whole ones, whatever it missed and whoever died."""

import logging
import threading
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import pytest
import torch
from tests.job_server import Server
from tests.sdk.allocations import allocates_at_most
from tests.waiting import wait_until

from rollfleet.errors import MessageCorrupt, WeightMismatch
from rollfleet.nats.link import Link
from rollfleet.nats.sender import LearnerSender
from rollfleet.nats.weights import CREDIT_CHUNKS, WINDOW_CHUNKS, NatsWeightsInbox, key_of, pack_version, unpack_version
from rollfleet.weights.layout import WeightLayout
from rollfleet.wire.chunks import PREFIX_BYTES, cut_message
from rollfleet.wire.codec import Key, encode
from rollfleet_api.messages import Control, LearnerPhase, LearnerStatus, pack
from rollfleet_api.permissions import Role
from rollfleet_api.subjects import ALL, Ask
from rollfleet_api.transfers import Want
from rollfleet_api.versions import version_of

NUMBERS, CHUNKS, PIECE_BYTES = 1000, 5, 900


def layout(numbers: int = NUMBERS, name: str = "weight") -> WeightLayout:
    return WeightLayout({"policy": {name: torch.empty(numbers)}})


def chunks(
    version: int, sent: WeightLayout | None = None, *, value: float | None = None, piece: int = PIECE_BYTES
) -> list[bytes]:
    """Return the chunks of a version, whose weights are all `value`, or its number."""
    value, of = float(version if value is None else value), sent or layout()
    name, shape = of.parameters[0].name, of.parameters[0].shape
    encoded = pack_version(version, of.snapshot({"policy": {name: torch.full(shape, value)}}))
    return [
        b"".join(each) for each in cut_message(key_of(version), encoded.parts, encoded.nbytes, PREFIX_BYTES + piece)
    ]


class Versions:
    """The weights of a job, to be sent as a learner does, and followed as workers do.

    Attributes:
        kept: The weights of the versions that the learner still keeps, by number.
        lost: Indices of chunks of which the next broadcast loses one each.
        sent: The subjects of all chunks that the learner sent.
    """

    def __init__(self, server: Server, *, numbers: int = NUMBERS) -> None:
        server.own(env={"id": "CartPole-v1"}, workers=2)
        self._server, self._learner, self._layout = server, server.link(Role.LEARNER), layout(numbers)
        self.kept = WeakValueDictionary[int, torch.Tensor]()
        self.lost, self.sent = list[int](), list[str]()
        publish = self._learner.publish

        async def publish_or_lose(subject: str, data: Any) -> None:
            if ".weights." in subject and len(data):
                self.sent.append(subject.rpartition(".")[2])
                index = int.from_bytes(bytes(data.pieces[0])[20:24], "little")
                if index in self.lost:
                    self.lost.remove(index)
                    return
            await publish(subject, data)

        self._learner.publish = publish_or_lose  # type: ignore[method-assign]
        self.sender = LearnerSender(self._learner, present=lambda: 2, status=lambda: LearnerStatus(session=1))
        self._learner.call(self.sender.subscribe())
        self.running = self._learner.spawn(self.sender.run())

    def learn(self, version: int, *, value: float | None = None, workers: frozenset[int] | None = None) -> None:
        """Send a version, whose weights are all `value`, or its number, and control that asks for it."""
        weights = torch.full((self._layout.total_bytes // 4,), float(version if value is None else value))
        snapshot = self._layout.snapshot({"policy": {"weight": weights}})
        self.kept[version] = snapshot.data
        self.sender.weights(version, snapshot, workers)
        some = tuple((worker, version) for worker in workers or ())
        asked = Control(session=version // version_of(1, 0), phase=LearnerPhase.RUN, round=0, version=0, some=some)
        self.sender.control(asked if workers else replace(asked, version=version))
        assert self.sender.flush(timeout_s=20)

    def send(self, cut: Iterable[bytes]) -> None:
        """Broadcast these chunks, as some other learner would."""
        link = self._server.link(Role.LEARNER)
        for chunk in cut:
            link.call(link.publish(link.subjects.weights_of(ALL), chunk), timeout_s=10)
        link.call(link.flush())

    def inbox(self, worker: int = 0, link: Link | None = None) -> NatsWeightsInbox:
        link = link or self._server.link(Role.WORKER)
        inbox = NatsWeightsInbox(link, worker, self._layout, threading.Condition())
        link.call(inbox.start(None), timeout_s=10)
        link.call(link.listen(link.subjects.control, Control, inbox.follow))
        link.call(link.flush())
        return inbox

    def ask(self) -> None:
        link = self._server.link(Role.WORKER)
        link.call(link.ask(Ask.CONTROL))


@pytest.fixture
def versions(server: Server) -> Iterator[Versions]:
    made = Versions(server)
    yield made
    made.running.cancel()


@pytest.fixture
def small(server: Server) -> None:
    """Let chunks have `PIECE_BYTES`."""
    server.restart(max_payload=PREFIX_BYTES + PIECE_BYTES)


def newest(inbox: NatsWeightsInbox) -> tuple[int, float]:
    """Return the newest version, and the value of its weights."""
    weights = inbox.newest()
    if weights is None:
        return 0, 0.0
    (value,) = set(weights.data.view(np.float32).tolist())
    return weights.version, value


@pytest.mark.parametrize("lost", [[0], [1, 3], [4], [0, 1, 2, 3, 4]])
def test_lost_chunks_of_a_version_are_asked_for(lost: list[int], server: Server, small: None) -> None:
    versions = Versions(server)
    inbox = versions.inbox()
    versions.lost += lost
    versions.learn(1)
    wait_until(lambda: newest(inbox) == (1, 1.0))
    assert versions.sent.count("all") == CHUNKS
    versions.running.cancel()


def test_many_workers_that_join_together_get_one_broadcast(versions: Versions) -> None:
    versions.learn(1)
    inboxes = [versions.inbox(worker) for worker in range(8)]
    versions.ask()
    wait_until(lambda: all(newest(inbox) == (1, 1.0) for inbox in inboxes))
    assert versions.sent == 2 * ["all"]


def test_a_version_for_one_worker_reaches_it_alone_and_is_replaced_by_the_next_for_all(versions: Versions) -> None:
    one, other = (versions.inbox(worker) for worker in range(2))
    versions.learn(1)
    versions.learn(2, workers=frozenset({1}))
    wait_until(lambda: newest(other) == (2, 2.0))
    wait_until(lambda: newest(one) == (1, 1.0))
    versions.learn(3)
    wait_until(lambda: newest(one) == newest(other) == (3, 3.0))
    assert [*versions.kept] == [3]


def test_a_version_for_no_worker_is_sent_to_none(versions: Versions) -> None:
    versions.learn(1)
    versions.learn(2, workers=frozenset())
    assert versions.sent == [ALL]


def test_a_large_version_waits_for_most_workers_and_one_that_is_stuck_asks_for_the_rest(
    server: Server, small: None
) -> None:
    versions = Versions(server, numbers=(CREDIT_CHUNKS + 2 * WINDOW_CHUNKS) * PIECE_BYTES // 4)
    link = server.link(Role.WORKER)
    stuck, inbox = versions.inbox(0, link), versions.inbox(1)
    released = threading.Event()
    link.soon(released.wait)
    versions.learn(1)
    wait_until(lambda: newest(inbox)[0] == 1, 60)
    released.set()
    wait_until(lambda: newest(stuck)[0] == 1, 60)
    assert link.client.stats["reconnects"] == 0
    versions.running.cancel()


def test_receivers_that_no_job_has_get_no_version(versions: Versions, server: Server) -> None:
    versions.learn(1)
    link = server.link(Role.WORKER)
    for name in ("x", "123456", "evaluation-", "7"):
        link.call(link.publish(link.subjects.wants(name), pack(Want(version=1, send=((0, 1),)))))
    wait_until(lambda: versions.sent[-1] != ALL)
    assert versions.sent == [ALL, "7"]


def test_chunks_of_a_replaced_learner_displace_no_version(versions: Versions) -> None:
    inbox = versions.inbox()
    first, second = (chunks(version_of(2, count), value=float(count)) for count in (1, 2))
    versions.send(first[:3])
    for number in range(50, 56):
        versions.send(chunks(number)[:2])
    versions.send(first[3:])
    wait_until(lambda: newest(inbox) == (version_of(2, 1), 1.0))
    versions.send(chunks(60))
    versions.send(second)
    wait_until(lambda: newest(inbox) == (version_of(2, 2), 2.0))


def test_memory_is_reused_but_not_while_its_version_is_being_loaded(versions: Versions) -> None:
    inbox = versions.inbox()
    versions.learn(1)
    wait_until(lambda: newest(inbox)[0] == 1)
    loading, addresses = inbox.newest(), set()
    for number in range(2, 10):
        versions.learn(number)
        wait_until(lambda: newest(inbox) == (number, number))  # noqa: B023
        addresses.add(inbox.newest().data.ctypes.data)  # type: ignore[union-attr]
    assert loading is not None
    assert loading.data.view(np.float32).tolist() == NUMBERS * [1.0]
    assert len(addresses) <= 3
    assert not any(address % 64 for address in addresses)


# Versions that do not fit, or are damaged.


@pytest.mark.parametrize(("numbers", "piece"), [(1, 100), (NUMBERS + 1, 900), (10_000_000, 900_000)])
def test_weights_of_another_size_name_the_parameter_and_take_little_memory(
    numbers: int, piece: int, versions: Versions
) -> None:
    inbox = versions.inbox()
    cut = chunks(1, layout(numbers), piece=piece)[:5]
    with allocates_at_most(10 << 20):
        versions.send(cut)
        with pytest.raises(WeightMismatch, match=rf"weight: the learner has .*\[{numbers}\]"):
            wait_until(lambda: inbox.newest() is not None)


def test_a_damaged_version_is_skipped_and_the_next_one_is_used(
    versions: Versions, caplog: pytest.LogCaptureFixture
) -> None:
    inbox = versions.inbox()
    with caplog.at_level(logging.WARNING):
        versions.send([*chunks(1)[:4], chunks(1, value=2.0)[4]])
        wait_until(lambda: "checksum is wrong" in caplog.text)
    assert newest(inbox) == (0, 0.0)
    versions.send(chunks(1))
    wait_until(lambda: newest(inbox) == (1, 1.0))


def test_chunks_of_another_rollfleet_ask_for_one_version(versions: Versions, caplog: pytest.LogCaptureFixture) -> None:
    inbox = versions.inbox()
    versions.send([b"RLF2" + chunks(2)[0][4:], *chunks(1)])
    wait_until(lambda: newest(inbox) == (1, 1.0))
    assert "install one version on both sides" in caplog.text


@pytest.mark.parametrize("sent", [version_of(1, 3), 1 << 100])
def test_a_version_under_another_number_is_skipped(
    sent: int, versions: Versions, caplog: pytest.LogCaptureFixture
) -> None:
    inbox = versions.inbox()
    message = [memoryview(b"".join(chunk[PREFIX_BYTES:] for chunk in chunks(2)))]
    cut = cut_message(key_of(sent), message, message[0].nbytes, PREFIX_BYTES + PIECE_BYTES)
    versions.send(b"".join(pieces) for pieces in cut)
    wait_until(lambda: "version 2 of 4000 bytes comes as" in caplog.text)
    assert newest(inbox) == (0, 0.0)


@pytest.mark.parametrize("tensors", [{}, {("weights",): torch.zeros(3)}, {("weights",): torch.zeros(3, 3).byte()}])
@pytest.mark.parametrize("meta", [b"{}", b'{"version": 1, "parameters": []}'])
def test_another_message_of_the_codec_is_no_version(meta: bytes, tensors: dict[Key, torch.Tensor]) -> None:
    with pytest.raises(MessageCorrupt, match="no version of the weights"):
        unpack_version(bytearray(b"".join(encode(meta, tensors).parts)))
