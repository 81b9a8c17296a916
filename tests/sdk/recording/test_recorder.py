"""A recorder receives every batch, live, and writes it to disk; learner and workers do not notice it."""

import logging
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count, islice
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from tests.api.job_data import job_data
from tests.job_server import Connect, Server, actor_critic
from tests.sdk.nats.numbered_batches import META, fragment, of, publish, values
from tests.sdk.wire.joined_chunks import split
from tests.waiting import wait_until

import rollfleet
from rollfleet import Recording
from rollfleet.errors import ConnectionFailed, JobInvalid
from rollfleet.nats import polling, presence
from rollfleet.nats.streams import deprovision
from rollfleet.nats.worker_transport import NatsWorkerTransport
from rollfleet.recording.recorder import MEMORY_BYTES, Recorder
from rollfleet.recording.segments import SegmentWriter, segments_in
from rollfleet.system.background import in_background
from rollfleet.wire.fragment_message import pack_fragment
from rollfleet_api.job import CollectorJob
from rollfleet_api.messages import Control, LearnerPhase, pack
from rollfleet_api.permissions import Role
from rollfleet_api.validation import parse_job

StartRecorder = Callable[..., Recorder]

ASYNC: dict[str, Any] = {
    "mode": "Async",
    "workers": 2,
    "env": {"id": "CartPole-v1", "numEnvs": 4},
    "collect": {"framesPerBatch": 32, "stepCount": True},
}
SYNC = ASYNC | {"mode": "Sync"}
RANDOM = ASYNC | {"policy": {"random": {}}, "delivery": {"maxBatchesAhead": 16}}
WITHIN_S = 30.0


@pytest.fixture
def record(server: Server) -> Iterator[StartRecorder]:
    with ExitStack() as stack:

        def record(folder: Path, **more: Any) -> Recorder:
            url = server.url(Role.LEARNER)
            recorder = rollfleet.record(server.subjects.key, folder, address=url, timeout_s=10, **more)
            return stack.enter_context(recorder)

        yield record


def wait_for(batches: int, *recorders: Recorder) -> None:
    wait_until(lambda: all(recorder.counts().batches >= batches for recorder in recorders))


def recorded(folder: Path) -> list[float]:
    """The numbers of the batches in a recording."""
    return [float(batch["observation"].mean()) for batch in Recording(folder)]


def assert_same(recorded: TensorDict, learned: TensorDict) -> None:
    assert recorded.shape == learned.shape
    assert recorded.names == learned.names
    mine, theirs = dict(recorded.items(True, True)), dict(learned.items(True, True))
    assert mine.keys() == theirs.keys()
    for key, value in theirs.items():
        assert mine[key].dtype == value.dtype
        assert torch.equal(mine[key], value), key


@pytest.mark.parametrize("spec", [SYNC, ASYNC], ids=["sync", "async"])
def test_a_recording_equals_the_learners_batches(
    spec: dict[str, Any], tmp_path: Path, server: Server, connect: Connect, record: StartRecorder
) -> None:
    job = server.provision(**spec | {"weights": {"maxLag": 1000}} if spec is ASYNC else spec)
    recorder = record(tmp_path / "recording", segment_bytes=20_000)
    workers = [server.start_worker(job, index) for index in range(2)]
    with connect(actor_critic()) as collector:
        learned = [batch.clone() for batch in islice(collector, 12)]
    for worker in workers:
        worker.join()
    assert recorder.wait(WITHIN_S)
    recorder.close()
    recording = Recording(tmp_path / "recording")
    assert recording.job == job
    recorded = list(recording)
    assert len(recording) == len(recorded) >= 12
    # Batches of one worker are in its order. In mode Async, a batch is observed while it still waits for space.
    by_content = {batch["observation"].numpy().tobytes(): batch for batch in recorded}
    assert len(by_content) == len(recorded)
    for batch in learned:
        assert_same(by_content[batch["observation"].numpy().tobytes()], batch)
    counts = recorder.counts()
    assert (counts.missed, counts.corrupt) == (0, 0)
    assert counts.batches == len(list(recording.arrivals()))
    assert counts.frames == sum(batch.numel() for batch in recorded)
    assert len(segments_in(tmp_path / "recording")) > 1


def test_several_recorders_receive_the_learners_batches(
    tmp_path: Path, server: Server, connect: Connect, record: StartRecorder
) -> None:
    server.provision(**RANDOM)
    first, second = record(tmp_path / "first"), record(tmp_path / "second")
    link = server.link(Role.WORKER)
    for sequence in range(4):
        publish(link, float(sequence), of(sequence % 2, sequence // 2), chunk_bytes=256)  # in several chunks
    collector = connect()
    assert values(collector, 4) == [0.0, 1.0, 2.0, 3.0]
    assert collector.stats().missed == 0
    late = record(tmp_path / "late")
    publish(link, 4.0, of(0, 2))
    wait_for(5, first, second)
    wait_for(1, late)
    for recorder in (first, second, late):
        recorder.close()
        assert recorder.counts().missed == 0
    assert recorded(tmp_path / "first") == recorded(tmp_path / "second") == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert recorded(tmp_path / "late") == [4.0]  # from its connection on


def test_a_batch_sent_twice_is_recorded_once_and_a_gap_is_counted(
    tmp_path: Path, server: Server, record: StartRecorder
) -> None:
    server.provision(**RANDOM)
    recorder, link = record(tmp_path), server.link(Role.WORKER)
    for sequence in (0, 1, 1, 0, 4):
        publish(link, float(sequence), of(0, sequence))
    wait_for(3, recorder)
    recorder.close()
    assert recorded(tmp_path) == [0.0, 1.0, 4.0]
    assert recorder.counts().missed == 2


def test_the_bound_of_a_batch_follows_an_edit(
    tmp_path: Path, server: Server, connect: Connect, record: StartRecorder
) -> None:
    server.provision(**RANDOM | {"delivery": {"maxBytes": "1Mi"}})
    collector, recorder = connect(), record(tmp_path)
    edited = server.provision(**RANDOM | {"delivery": {"maxBytes": "16Mi"}})
    wait_until(lambda: collector.job.spec.delivery == edited.spec.delivery)
    publish(server.link(Role.WORKER), 1.0, of(0, 0), size=40_000)  # 1.3 MB
    wait_for(1, recorder)
    assert values(collector, 1) == [1.0]


def test_a_batch_that_waits_for_space_is_recorded_once(
    tmp_path: Path, server: Server, connect: Connect, record: StartRecorder
) -> None:
    server.provision(**RANDOM | {"delivery": {"maxBatchesAhead": 1}})
    recorder = record(tmp_path)
    transport = NatsWorkerTransport(server.link(Role.WORKER), 0)
    refused = server.link(Role.LEARNER)
    tries: list[str] = []

    async def count() -> None:
        async def on_chunk(message: Any) -> None:
            tries.append(message.subject)

        await refused.client.subscribe(server.subjects.batch_chunk(0, 0), cb=on_chunk)
        await refused.flush()

    refused.call(count())
    sent = [transport.send(fragment(float(number)), META) for number in range(3)]
    wait_until(lambda: len(tries) >= 4)  # the second one was refused at least twice
    assert values(connect(), 3) == [0.0, 1.0, 2.0]
    sent[-1].stored.result(10)
    wait_for(3, recorder)
    recorder.close()
    assert recorded(tmp_path) == [0.0, 1.0, 2.0]
    assert recorder.counts().missed == 0


class SlowWriter(SegmentWriter):
    """A writer that does something else before each batch."""

    def __init__(self, folder: Path, job: CollectorJob, before: Callable[[], object]) -> None:
        super().__init__(folder, job, segment_bytes=1 << 20)
        self._before = before

    def write(self, *batch: Any) -> None:
        self._before()
        super().write(*batch)


def test_a_recorder_slower_than_the_workers_counts_lost_batches(
    tmp_path: Path, server: Server, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    job, writes, may_write = server.provision(**RANDOM), threading.Event(), threading.Event()
    link, worker = server.link(Role.LEARNER), server.link(Role.WORKER)

    def wait() -> None:
        writes.set()
        assert may_write.wait(WITHIN_S)

    writer = SlowWriter(tmp_path, job, wait)
    with Recorder(link, job, writer, memory_bytes=1) as recorder:
        publish(worker, 0.0, of(0, 0))
        assert writes.wait(WITHIN_S)
        for sequence in range(1, 6):  # 1.3 MB each: the first chunk of two fits
            publish(worker, float(sequence), of(0, sequence), chunk_bytes=1 << 20, size=40_000)
        link.call(link.flush())  # all have come
        may_write.set()
        publish(worker, 6.0, of(0, 6))
        wait_for(2, recorder)
    assert recorded(tmp_path) == [0.0, 6.0]
    assert recorder.counts().missed == 5
    assert values(connect(), 7) == [float(number) for number in range(7)]
    (warning,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert "SlowConsumerError" in warning.message


def test_a_recorder_slower_than_the_workers_can_be_closed(tmp_path: Path, server: Server) -> None:
    job, sequences = server.provision(**RANDOM), count()
    link, worker = server.link(Role.LEARNER), server.link(Role.WORKER)

    def another_comes() -> None:
        (chunk,) = split(pack_fragment(fragment(), META), of(0, next(sequences)), max_chunk_bytes=1 << 16)
        worker.call(worker.publish(worker.subjects.batch_chunk(0, 0), chunk))
        worker.call(worker.flush())
        link.call(link.flush())

    recorder = Recorder(link, job, SlowWriter(tmp_path, job, another_comes), memory_bytes=MEMORY_BYTES)
    another_comes()
    wait_for(2, recorder)
    in_background(recorder.close, "close").result(WITHIN_S)
    assert recorder.wait(0)


def test_a_recorder_that_does_not_read_its_connection_delays_no_one(server: Server, connect: Connect) -> None:
    server.provision(**RANDOM)
    host, transport = server.host_port.split(":")
    with socket.create_connection((host, int(transport))) as deaf:
        user, password = server.url(Role.LEARNER).removeprefix("nats://").split("@")[0].split(":")
        subject = server.subjects.batch_subjects[0]
        deaf.sendall(f'CONNECT {{"user":"{user}","pass":"{password}"}}\r\nSUB {subject} 1\r\nPING\r\n'.encode())
        answer = b""
        while b"PONG" not in answer:
            answer += deaf.recv(4096)
        worker = NatsWorkerTransport(server.link(Role.WORKER), 0)
        collector = connect()
        for number in range(30):  # twice what NATS buffers for a slow reader
            sending = worker.send(fragment(float(number), envs=2, steps=8, size=70_000), META)
        assert values(collector, 30) == [float(number) for number in range(30)]
        sending.stored.result(10)
        assert collector.stats().missed == 0


def test_nats_can_be_killed_and_restarted(tmp_path: Path, server: Server) -> None:
    job = server.provision(**RANDOM)
    link = server.link(Role.LEARNER)
    transport = NatsWorkerTransport(server.link(Role.WORKER), 0)
    writer = SegmentWriter(tmp_path, job, segment_bytes=1)
    with Recorder(link, job, writer, memory_bytes=MEMORY_BYTES) as recorder:
        transport.send(fragment(0.0), META).stored.result(10)
        wait_for(1, recorder)
        server.kill()
        server.start_again()
        wait_until(lambda: link.client.is_connected)
        transport.send(fragment(1.0), META).stored.result(10)
        wait_for(2, recorder)
    assert recorded(tmp_path) == [0.0, 1.0]


def test_a_recorder_ends_after_the_last_batch_of_a_complete_job(
    tmp_path: Path, server: Server, record: StartRecorder
) -> None:
    server.provision(**RANDOM)
    recorder = record(tmp_path)
    link, learner = server.link(Role.WORKER), server.link(Role.LEARNER)
    for sequence in range(3):
        publish(link, float(sequence), of(0, sequence))
    complete = Control(session=1, phase=LearnerPhase.COMPLETE, round=0, version=0)
    learner.call(learner.store(learner.subjects.control, pack(complete)))
    assert recorder.wait(WITHIN_S)
    assert recorded(tmp_path) == [0.0, 1.0, 2.0]
    assert record(tmp_path / "late").wait(WITHIN_S)


def test_a_recorder_ends_when_the_job_is_deleted(
    tmp_path: Path, server: Server, record: StartRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(polling, "POLL_EVERY_S", 0.1)
    monkeypatch.setattr(presence, "DELETED_AFTER_S", 0.3)
    server.provision(**RANDOM)
    recorder = record(tmp_path)
    admin = server.link()
    admin.call(deprovision(admin))
    assert recorder.wait(WITHIN_S)


def test_a_restarted_recorder_adds_new_batches(
    tmp_path: Path, server: Server, connect: Connect, record: StartRecorder
) -> None:
    job = server.provision(**ASYNC | {"workers": 1, "delivery": {"maxBatchesAhead": 1}, "policy": {"random": {}}})
    first = record(tmp_path)
    worker = server.start_worker(job, 0)
    collector = connect()
    next(collector)
    while first.counts().batches < 3:  # one is received, one is in the queue, one waits for space
        assert not first.wait(0.01)
    first.close()
    second = record(tmp_path)
    while not second.counts().batches:  # the worker has sent its batch again
        assert not second.wait(0.01)
    list(islice(collector, 5))
    collector.shutdown()
    worker.join()
    second.close()
    numbers = [arrival.sequence for arrival in Recording(tmp_path).arrivals()]
    assert numbers == list(range(len(numbers)))
    assert len(numbers) >= 6


def test_a_folder_has_one_recorder_and_one_job(tmp_path: Path, server: Server, record: StartRecorder) -> None:
    server.provision(**ASYNC)
    recorder = record(tmp_path / "a")
    with pytest.raises(JobInvalid, match=r"another recorder writes into .*a; name another folder"):
        record(tmp_path / "a")
    recorder.close()
    other = SegmentWriter(tmp_path / "b", parse_job(job_data({"name": "other"})), segment_bytes=1)
    other.write(of(0, 0), META, {("observation",): torch.zeros(1)})
    other.close()
    with pytest.raises(JobInvalid, match=r"holds batches of default/other, not of default/test; name another folder"):
        record(tmp_path / "b")


def test_corrupt_batches_are_counted_and_later_ones_recorded(
    tmp_path: Path, server: Server, record: StartRecorder
) -> None:
    server.provision(**ASYNC | {"delivery": {"maxBatchesAhead": 8}})
    recorder, link = record(tmp_path), server.link(Role.WORKER)
    good = next(split(pack_fragment(fragment(), META), of(0, 0), max_chunk_bytes=1 << 16))
    flipped = bytearray(good)
    flipped[-1] ^= 1
    for rubbish in (b"", b"rubbish", good[:-1], bytes(flipped)):
        link.call(link.js.publish(link.subjects.batch_chunk(0, 0), rubbish), timeout_s=5)
    publish(link, 7.0, of(0, 1))
    wait_until(lambda: recorder.counts().batches)
    recorder.close()
    assert recorder.counts().corrupt == 4
    assert recorded(tmp_path) == [7.0]


def test_a_workers_credentials_are_refused(server: Server) -> None:
    server.provision(**ASYNC)
    with pytest.raises(ConnectionFailed, match="may not read the batches of default/test: use its learner's"):
        rollfleet.record(server.subjects.key, address=server.url(Role.WORKER), timeout_s=10)


def test_invalid_arguments_are_named() -> None:
    for name in ("memory_bytes", "segment_bytes"):
        zero: Any = {name: 0}
        with pytest.raises(JobInvalid, match=f"{name}: must be at least 1, got 0"):
            rollfleet.record("test", "x", address="nats://127.0.0.1:1", **zero)
