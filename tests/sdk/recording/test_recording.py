"""Recordings: written, and read."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from tests.api.job_data import job_data
from tests.job_server import Connect, Server, actor_critic
from tests.sdk.batches import assert_same
from tests.sdk.nats.numbered_batches import ASYNC, META, SYNC, fragment, of, publish
from tests.sdk.wire.joined_chunks import joined, split
from tests.waiting import wait_until

import rollfleet
from rollfleet import CollectorJob, Recording
from rollfleet.data.batch import MASK
from rollfleet.errors import JobEnded, JobInvalid, RecordingDamaged
from rollfleet.recording.recorder import Recorder
from rollfleet.recording.segments import SegmentWriter, segments_in
from rollfleet.wire.chunks import Assembled, Identity
from rollfleet.wire.codec import Key
from rollfleet.wire.fragment_message import pack_fragment
from rollfleet_api.job import Compression
from rollfleet_api.permissions import Role
from rollfleet_api.transfers import BatchMeta
from rollfleet_api.validation import parse_job

StartRecorder = Callable[..., Recorder]

STEP_COUNT: dict[str, Any] = {"collect": {"framesPerBatch": 32, "stepCount": True}}
WITHIN_S = 30.0


@pytest.fixture
def record(server: Server) -> Iterator[StartRecorder]:
    with ExitStack() as stack:

        def record(folder: Path, **more: Any) -> Recorder:
            url = server.url(Role.LEARNER)
            recorder = rollfleet.record(server.subjects.key, folder, address=url, timeout_s=10, **more)
            return stack.enter_context(recorder)

        yield record


@pytest.mark.parametrize("spec", [SYNC | STEP_COUNT, ASYNC | STEP_COUNT], ids=["sync", "async"])
def test_a_recording_equals_the_learners_batches(
    spec: dict[str, Any], tmp_path: Path, server: Server, connect: Connect, record: StartRecorder
) -> None:
    job = server.own(**spec | ({"weights": {"maxLag": 1000}} if spec["mode"] == "Async" else {}))
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
    # Batches of one worker are in its order. In mode Async, a batch is observed while it waits for the learner.
    by_content = {batch["observation"].numpy().tobytes(): batch for batch in recorded}
    assert len(by_content) == len(recorded)
    for batch in learned:
        twin = by_content[batch["observation"].numpy().tobytes()]
        assert (twin.shape, twin.names) == (batch.shape, batch.names)
        assert_same(twin, batch)
    counts = recorder.counts()
    assert (counts.missed, counts.corrupt) == (0, 0)
    assert counts.batches == len(list(recording.arrivals()))
    assert counts.frames == sum(batch.numel() for batch in recorded)
    assert len(segments_in(tmp_path / "recording")) > 1


def test_a_restarted_recorder_goes_on(tmp_path: Path, server: Server, connect: Connect, record: StartRecorder) -> None:
    job = server.own(**ASYNC | {"workers": 1, "delivery": {"maxBatchesAhead": 1}, "policy": {"random": {}}})
    first = record(tmp_path)
    worker = server.start_worker(job, 0)
    collector = connect()
    next(collector)
    while first.counts().batches < 3:  # the learner has one, and its worker keeps two
        assert not first.wait(0.01)
    first.close()
    second = record(tmp_path)
    list(islice(collector, 5))
    collector.shutdown()
    worker.join()
    second.close()
    numbers = [arrival.sequence for arrival in Recording(tmp_path).arrivals()]
    assert numbers == list(range(len(numbers)))
    assert len(numbers) >= 6


def test_a_folder_has_one_recorder_and_one_job(tmp_path: Path, server: Server, record: StartRecorder) -> None:
    server.own(**ASYNC)
    recorder = record(tmp_path / "a")
    with pytest.raises(JobInvalid, match=r"another recorder writes into .*a; name another folder"):
        record(tmp_path / "a")
    recorder.close()
    write(tmp_path / "b", ["other"])
    with pytest.raises(JobInvalid, match=r"holds batches of default/other, not of default/test; name another folder"):
        record(tmp_path / "b")


def test_corrupt_batches_are_counted_and_others_recorded(tmp_path: Path, server: Server, record: StartRecorder) -> None:
    server.own(**ASYNC | {"delivery": {"maxBatchesAhead": 8}})
    recorder, link = record(tmp_path), server.link(Role.WORKER)
    good = next(split(pack_fragment(fragment(), META), of(0, 0), max_chunk_bytes=1 << 16))
    flipped = bytearray(good)
    flipped[-1] ^= 1
    for rubbish in (b"", b"rubbish", good[:-1], bytes(flipped)):
        link.call(link.publish(link.subjects.chunk(0), rubbish), timeout_s=5)
    publish(link, 7.0, of(0, 1))
    wait_until(lambda: recorder.counts().batches)
    recorder.close()
    assert recorder.counts().corrupt == 4
    assert values(Recording(tmp_path)) == [7.0]


def job_called(name: str, **collect: object) -> CollectorJob:
    spec: dict[str, Any] = {"policy": {"random": {}}, "collect": {"framesPerBatch": 6} | collect, "mode": "Async"}
    return parse_job(job_data({"name": name}, **spec))


def write(folder: Path, jobs: Sequence[str] = ("test",), *, segment_bytes: int = 1 << 20, rounds: Any = None) -> None:
    """One run of a recorder for each job: batch `i` of worker 0 is full of `i`."""
    rounds = rounds or [(0, 0)] * 4
    for name in jobs:
        writer = SegmentWriter(folder, job_called(name), segment_bytes=segment_bytes)
        for number, (worker, round) in enumerate(rounds):
            meta = BatchMeta(session=1, round=round, version=1, frames=6)
            message = np.frombuffer(joined(pack_fragment(fragment(float(number)), meta)), np.uint8)
            process = len(segments_in(folder))
            writer.write(Identity(worker=worker, incarnation=0, sequence=number, process=process), meta, message)
        writer.close()


class Flood:
    """An observer whose next batch always waits."""

    job, missed, corrupt, is_closed = job_called("test"), 0, 0, False

    def receive(self, timeout_s: float) -> Assembled[Identity]:
        if self.is_closed:
            raise JobEnded("the observer is closed")
        return Assembled(key=of(0, 0), buffer=np.zeros(8, np.uint8))

    def count_corrupt(self, error: Exception) -> None: ...

    def close(self) -> None:
        self.is_closed = True


def test_a_recorder_slower_than_the_workers_can_be_closed(tmp_path: Path) -> None:
    recorder = Recorder(cast("Any", Flood()), tmp_path)
    closing = threading.Thread(target=recorder.close, daemon=True)
    closing.start()
    closing.join(10)
    assert not closing.is_alive()
    assert recorder.wait(0)


def values(recording: Recording) -> list[float]:
    return [float(batch["observation"].mean()) for batch in recording]


def test_torchs_default_device_changes_no_recorded_batch(tmp_path: Path) -> None:
    write(tmp_path)
    torch.set_default_device("meta")  # a tensor there has no values to read
    try:
        assert values(Recording(tmp_path)) == [0.0, 1.0, 2.0, 3.0]
    finally:
        torch.set_default_device(None)


@pytest.mark.parametrize("content", [b"", b"rubbish", None], ids=["empty", "other", "cut"])
def test_a_file_that_cannot_be_read_is_named(content: bytes | None, tmp_path: Path) -> None:
    write(tmp_path, segment_bytes=1)
    file = segments_in(tmp_path)[1]
    file.write_bytes(file.read_bytes()[:-1] if content is None else content)
    seen = iter(Recording(tmp_path))
    next(seen)
    with pytest.raises(RecordingDamaged, match=f"{file} cannot be read: .*; move it out of the recording"):
        next(seen)
    file.unlink()
    assert values(Recording(tmp_path)) == [0.0, 2.0, 3.0]


def test_batches_are_stored_as_they_were_sent_folded_and_compressed(tmp_path: Path) -> None:
    images = torch.randint(0, 256, (1, 11, 30, 1), dtype=torch.uint8).expand(1, 11, 30, 30).contiguous()
    stacks = torch.stack([images[:, first : first + 8] for first in range(4)], 2)
    plain = fragment(envs=1, steps=8)
    odd: Key = ("next", "a/b %2F")
    steps = plain.steps | {("pixels",): stacks, odd: torch.arange(8).reshape(1, 8).to(torch.complex128)}
    sent = replace(plain, steps=steps, final=plain.final | {("pixels",): stacks[:, -1]})
    meta = BatchMeta(session=1, round=0, version=1, frames=8)
    message = np.frombuffer(joined(pack_fragment(sent, meta, compression=Compression.AUTO)), np.uint8)
    writer = SegmentWriter(tmp_path, job_called("test"), segment_bytes=1)
    writer.write(Identity(worker=0, incarnation=0, sequence=0), meta, message)
    writer.close()
    assert segments_in(tmp_path)[0].stat().st_size < stacks.nbytes / 3
    (arrival,) = Recording(tmp_path).arrivals()
    assert torch.equal(arrival.batch["pixels"], stacks)
    assert torch.equal(arrival.batch[odd], steps[odd])


def test_a_round_is_joined_as_in_the_learner(tmp_path: Path) -> None:
    # worker 1 comes first; worker 0 collects twice; one fragment of round 1 comes late; round 3 has one fragment
    rounds = [(1, 1), (0, 1), (0, 1), (1, 2), (0, 2), (2, 1), (0, 3)]
    write(tmp_path, rounds=rounds)
    recording = Recording(tmp_path)
    seen = [[float(value) for value in batch["observation"][::2, 0, 0]] for batch in recording]
    assert seen == [[1.0, 0.0], [4.0, 3.0], [6.0]]
    assert len(recording) == 3
    assert len(list(recording.arrivals())) == 7


def test_trajectories_one_after_the_other_are_frames_without_a_mask(tmp_path: Path) -> None:
    whole = fragment()
    whole.steps["observation",][..., 0] = torch.arange(6.0).reshape(2, 3)
    sent = replace(whole, steps=whole.steps | {MASK: torch.tensor([[True, True, False], [True, True, True]])})
    meta = BatchMeta(session=1, round=0, version=1, frames=5)
    writer = SegmentWriter(tmp_path, job_called("test", trajsPerBatch=2, trajFormat="Cat"), segment_bytes=1)
    writer.write(of(0, 0), meta, np.frombuffer(joined(pack_fragment(sent, meta)), np.uint8))
    writer.close()
    (batch,) = Recording(tmp_path)
    assert batch["observation"][:, 0].tolist() == [0.0, 1.0, 3.0, 4.0, 5.0]
    assert MASK not in batch.keys(True)


def test_rounds_of_a_recreated_job_start_again(tmp_path: Path) -> None:
    rounds = [(0, 1), (0, 2)]
    write(tmp_path, ["test", "test"], rounds=rounds)
    assert values(Recording(tmp_path)) == [0.0, 1.0, 0.0, 1.0]


def test_batches_that_a_worker_sends_again_to_another_recorder_come_once(tmp_path: Path) -> None:
    for sent in (range(4), range(2, 6)):  # it keeps two
        writer = SegmentWriter(tmp_path, job_called("test"), segment_bytes=1)
        for number in sent:
            meta = BatchMeta(session=1, round=0, version=1, frames=6)
            message = np.frombuffer(joined(pack_fragment(fragment(float(number)), meta)), np.uint8)
            writer.write(of(0, number), meta, message)
        writer.close()
    assert values(Recording(tmp_path)) == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]


def test_a_folder_without_a_recording_is_named(tmp_path: Path) -> None:
    with pytest.raises(JobInvalid, match="`device`: 'gpu' is not a torch device"):
        Recording(tmp_path, device="gpu")
    with pytest.raises(JobInvalid, match=r"no recording in .*nothing: create one with `rollfleet record JOB"):
        Recording(tmp_path / "nothing")
