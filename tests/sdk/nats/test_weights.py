"""Versions of the weights on a real NATS: a worker uses only whole ones, whatever it missed and whoever died."""

import logging
import threading
from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.job_server import Server
from tests.sdk.allocations import allocates_at_most
from tests.waiting import wait_until

from rollfleet.errors import MessageCorrupt, WeightMismatch
from rollfleet.nats.link import Link
from rollfleet.nats.weights import (
    NatsWeightsInbox,
    is_of,
    key_of,
    pack_version,
    unpack_version,
)
from rollfleet.weights.layout import Snapshot, WeightLayout
from rollfleet.wire.chunks import PREFIX_BYTES, cut_message
from rollfleet.wire.codec import Key, encode
from rollfleet_api.messages import Flags
from rollfleet_api.permissions import Role
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
    """The weights of a job, to be written as a learner does, and followed as workers do."""

    def __init__(self, server: Server) -> None:
        server.provision(env={"id": "CartPole-v1"}, workers=2)
        self._server, self._learner = server, server.link(Role.LEARNER)

    def store(self, version: int, of: Iterable[int] = range(CHUNKS), *, value: float | None = None) -> None:
        """Store these chunks of a version, in this order."""
        cut = chunks(version, value=value)
        self.send(version, {index: cut[index] for index in of})

    def send(self, version: int, cut: Mapping[int, bytes]) -> None:
        link = self._learner
        for index, chunk in cut.items():
            link.call(link.store(link.subjects.weights_of(None, version, index), chunk), timeout_s=10)

    def inbox(self) -> tuple[Link, NatsWeightsInbox]:
        link = self._server.link(Role.WORKER)
        inbox = NatsWeightsInbox(link, 0, layout(), threading.Condition())
        link.call(inbox.start(), timeout_s=10)
        return link, inbox


@pytest.fixture
def versions(server: Server) -> Versions:
    return Versions(server)


def newest(inbox: NatsWeightsInbox) -> tuple[int, float]:
    """Return the newest version, and the value of its weights."""
    weights = inbox.newest()
    if weights is None:
        return 0, 0.0
    (value,) = set(weights.data.view(np.float32).tolist())
    return weights.version, value


@pytest.mark.parametrize("torn", [[], [0], [0, 1, 2, 3], [1, 2, 3, 4]])
def test_a_version_whose_learner_died_leaves_the_one_before_it(torn: list[int], versions: Versions) -> None:
    for number in (4, 5):
        versions.store(number)
    versions.store(6, torn)
    assert newest(versions.inbox()[1]) == (5, 5.0)
    versions.store(successor := version_of(2, 6), value=7.0)
    assert newest(versions.inbox()[1]) == (successor, 7.0)


def test_no_version_is_read_where_none_is_whole(versions: Versions) -> None:
    versions.store(1, [0, 1])
    assert newest(versions.inbox()[1]) == (0, 0.0)


def test_a_worker_that_joins_while_a_version_is_sent_gets_it(versions: Versions) -> None:
    versions.store(1)
    versions.store(2, [0, 1, 2])
    _, inbox = versions.inbox()
    assert newest(inbox) == (1, 1.0)
    versions.store(2, [4, 3])
    wait_until(lambda: newest(inbox) == (2, 2.0))


def test_chunks_of_a_replaced_learner_displace_no_version(versions: Versions) -> None:
    _, inbox = versions.inbox()
    versions.store(version_of(2, 1), [0, 1, 2], value=1.0)
    for number in range(50, 56):
        versions.store(number, [0, 1])
    versions.store(version_of(2, 1), [3, 4], value=1.0)
    wait_until(lambda: newest(inbox) == (version_of(2, 1), 1.0))
    versions.store(60)
    versions.store(version_of(2, 2), value=2.0)
    wait_until(lambda: newest(inbox) == (version_of(2, 2), 2.0))


def test_memory_is_reused_but_not_while_its_version_is_being_loaded(versions: Versions) -> None:
    _, inbox = versions.inbox()
    versions.store(1)
    wait_until(lambda: newest(inbox)[0] == 1)
    loading, addresses = inbox.newest(), set()
    for number in range(2, 10):
        versions.store(number)
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
    _, inbox = versions.inbox()
    cut = chunks(1, layout(numbers), piece=piece)[:5]
    with allocates_at_most(10 << 20):
        versions.send(1, dict(enumerate(cut)))
        with pytest.raises(WeightMismatch, match=rf"weight: the learner has .*\[{numbers}\]"):
            wait_until(lambda: inbox.newest() is not None)


def test_another_parameter_is_named(versions: Versions) -> None:
    _, inbox = versions.inbox()
    versions.send(1, dict(enumerate(chunks(1, layout(name="bias")))))
    with pytest.raises(WeightMismatch, match="bias: the learner has it, the policy here does not"):
        wait_until(lambda: inbox.newest() is not None)


def test_a_damaged_version_is_skipped_and_read_again(versions: Versions, caplog: pytest.LogCaptureFixture) -> None:
    link, inbox = versions.inbox()
    with caplog.at_level(logging.WARNING):
        versions.store(1, range(4))
        versions.store(1, [4], value=2.0)
        wait_until(lambda: "checksum is wrong" in caplog.text)
    assert newest(inbox) == (0, 0.0)
    versions.store(1, [4])
    link.call(inbox.catch_up(), timeout_s=10)
    assert newest(inbox) == (1, 1.0)


def test_chunks_of_another_rollfleet_ask_for_one_version(versions: Versions, caplog: pytest.LogCaptureFixture) -> None:
    versions.store(1)
    versions.send(2, {0: b"RLF2" + chunks(2)[0][4:]})
    assert newest(versions.inbox()[1]) == (1, 1.0)
    assert "install one version on both sides" in caplog.text


@pytest.mark.parametrize("sent", [version_of(1, 3), 1 << 100])
def test_a_version_under_another_number_is_skipped(
    sent: int, versions: Versions, caplog: pytest.LogCaptureFixture
) -> None:
    _, inbox = versions.inbox()
    message = [memoryview(b"".join(chunk[PREFIX_BYTES:] for chunk in chunks(2)))]
    cut = cut_message(key_of(sent), message, message[0].nbytes, PREFIX_BYTES + PIECE_BYTES)
    versions.send(1, {index: b"".join(pieces) for index, pieces in enumerate(cut)})
    wait_until(lambda: "version 2 of 4000 bytes comes as" in caplog.text)
    assert newest(inbox) == (0, 0.0)


@pytest.mark.parametrize("tensors", [{}, {("weights",): torch.zeros(3)}, {("weights",): torch.zeros(3, 3).byte()}])
@pytest.mark.parametrize("meta", [b"{}", b'{"version": 1, "parameters": []}'])
def test_another_message_of_the_codec_is_no_version(meta: bytes, tensors: dict[Key, torch.Tensor]) -> None:
    with pytest.raises(MessageCorrupt, match="no version of the weights"):
        unpack_version(bytearray(b"".join(encode(meta, tensors).parts)))


def test_weights_continue_whatever_their_flags_and_number_are() -> None:
    def snapshot(value: float, flags: Flags = ()) -> Snapshot:
        return replace(layout().snapshot({"policy": {"weight": torch.full((NUMBERS,), value)}}), flags=flags)

    first = chunks(7, value=1.0)[0]
    assert is_of(first, snapshot(1.0))
    assert is_of(first, snapshot(1.0, (("", True),)))
    assert not is_of(first, snapshot(2.0))
