"""The connection that carries arrays beside messages."""

import socket
import struct

import numpy as np
import pytest

from rollfleet.envs.array_pipe import SILENT_S, ArrayPipe


class Counting:
    """A socket that counts what is sent."""

    def __init__(self, stream: socket.socket) -> None:
        self._stream, self.sent = stream, 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)

    def sendall(self, data: bytes) -> None:
        self.sent += len(data)
        self._stream.sendall(data)


def ends() -> tuple[ArrayPipe, ArrayPipe, Counting]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        one = socket.create_connection(listener.getsockname())
        counting = Counting(listener.accept()[0])
    return ArrayPipe(one), ArrayPipe(counting), counting  # type: ignore[arg-type]


def test_stacks_of_pictures_travel_as_what_changed() -> None:
    ours, theirs, stream = ends()
    here, there = np.zeros((8, 4, 84, 84), np.uint8), np.zeros((8, 4, 84, 84), np.uint8)
    ours.carry(sent=[], received=[here])
    theirs.carry(sent=[there], received=[])
    background = np.random.default_rng(0).integers(0, 255, (84, 84), np.uint8)
    frames = []
    for step in range(40):
        frames.append(background.copy())
        frames[-1][step : step + 4, 2 * step : 2 * step + 2] = 255  # a ball
        if step >= 4:
            there[:] = np.stack(frames[-4:])
            before = stream.sent
            theirs.send_bytes(b"step")
            assert ours.recv_bytes() == b"step"
            np.testing.assert_array_equal(here, there)
            if step > 4:
                assert stream.sent - before < 8 * 400
    ours.close()
    theirs.close()


def test_arrays_of_each_dtype_and_size_arrive() -> None:
    ours, theirs, _ = ends()
    generator = np.random.default_rng(0)
    sent = [
        generator.integers(0, 255, (2, 3), np.uint8),
        generator.random((2, 70_000)),
        np.array([True, False]),
        np.zeros((2, 0), np.float32),
        generator.integers(0, 255, (2, 5000), np.uint8),
    ]
    received = [np.zeros_like(each) for each in sent]
    theirs.carry(sent=sent, received=[])
    ours.carry(sent=[], received=received)
    for message in (b"", b"x" * 50_000):
        theirs.send_bytes(message)
        assert ours.recv_bytes() == message
        for one, other in zip(received, sent, strict=True):
            np.testing.assert_array_equal(one, other)
        sent[1][:] += 1
    ours.close()
    theirs.close()


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (struct.pack("<IQ", 1 << 31, 0), "a message of 2,147,483,648 bytes"),
        (struct.pack("<IQ", 0, 1 << 40), "arrays of 1,099,511,627,776"),
        (struct.pack("<IQ", 0, 3) + bytes(3), "pixels"),
        (struct.pack("<IQQ", 0, 8, 1 << 60), "pixels"),
        (struct.pack("<IQQ", 0, 12, 4) + b"\xff" * 4, "pixels"),
        (struct.pack("<IQ", 2, 0) + b"a", "the other end is closed"),
        (b"", "the other end is closed"),
    ],
)
def test_what_is_no_frame_ends_the_connection(frame: bytes, message: str) -> None:
    ours, theirs, stream = ends()
    ours.carry(sent=[], received=[np.zeros((1, 5000), np.uint8), np.zeros(3)])
    stream.sendall(frame)
    theirs.close()
    with pytest.raises(ConnectionError, match=message):
        ours.recv_bytes()
    assert ours.closed
    with pytest.raises(ConnectionError, match="the connection is closed"):
        ours.send_bytes(b"")


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="Linux has it")
@pytest.mark.parametrize(("serves", "limit_ms"), [(False, SILENT_S * 1000), (True, 0)], ids=["vector", "server"])
def test_what_a_server_sends_may_wait_without_a_limit(serves: bool, limit_ms: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as stream:
        ArrayPipe(stream, serves=serves)
        assert stream.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == limit_ms
