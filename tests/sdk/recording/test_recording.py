"""Recordings: written, and read when they are complete, cut or damaged."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from tests.job_server import Connect, Server, StartWorker, actor_critic
from tests.sdk.nats.numbered_batches import fragment

import rollfleet
from rollfleet import CollectorJob, Recording
from rollfleet.errors import JobInvalid, RecordingDamaged
from rollfleet.recording.recorder import Recorder
from rollfleet.recording.segments import Description, Record, SegmentWriter, scan, segments_in
from rollfleet.wire.batch_chunks import Identity
from rollfleet.wire.codec import Encoded, empty_buffer
from rollfleet.wire.fragment_message import pack_fragment
from rollfleet_api.messages import BatchMeta
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
WITHIN_S = 30.0


@pytest.fixture
def record(server: Server) -> Iterator[StartRecorder]:
    """`rollfleet.record` of the job `default/test`; closed after the test."""
    with ExitStack() as stack:

        def record(folder: Path, **more: Any) -> Recorder:
            url = server.url(Role.LEARNER)
            recorder = rollfleet.record(server.subjects.key, folder, address=url, timeout_s=10, **more)
            return stack.enter_context(recorder)

        yield record


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
    spec: dict[str, Any],
    tmp_path: Path,
    server: Server,
    connect: Connect,
    start_worker: StartWorker,
    record: StartRecorder,
) -> None:
    job = server.provision(**spec | {"weights": {"maxLag": 1000}} if spec is ASYNC else spec)
    recorder = record(tmp_path / "recording", segment_bytes=20_000)
    workers = [start_worker(job, index) for index in range(2)]
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
    sizes = [file.stat().st_size for file in segments_in(tmp_path / "recording")]
    assert len(sizes) > 1
    assert max(sizes) <= 20_000


def test_a_restarted_recorder_adds_new_batches(
    tmp_path: Path, server: Server, connect: Connect, start_worker: StartWorker, record: StartRecorder
) -> None:
    job = server.provision(**ASYNC | {"workers": 1, "delivery": {"maxBatchesAhead": 1}, "policy": {"random": {}}})
    first = record(tmp_path)
    worker = start_worker(job, 0)
    collector = connect()
    next(collector)
    while first.counts().batches < 3:  # one is received, one is in the queue, one waits for space
        assert not first.wait(0.01)
    first.close()
    second = record(tmp_path)
    while second._before:  # the worker has sent its batch again
        assert not second.wait(0.01)
    assert second.counts().batches == 0
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
    write(tmp_path / "b", ["other"])
    with pytest.raises(JobInvalid, match=r"holds batches of default/other, not of default/test; name another folder"):
        record(tmp_path / "b")


def job_called(name: str, **spec: object) -> CollectorJob:
    smallest = {
        "env": {"id": "CartPole-v1"},
        "policy": {"random": {}},
        "collect": {"framesPerBatch": 6},
        "mode": "Async",
    }
    metadata = {"name": name, "namespace": "default"}
    return parse_job(
        {"apiVersion": "rollfleet.dev/v1alpha1", "kind": "CollectorJob", "metadata": metadata, "spec": smallest | spec}
    )


def message(value: float, round: int = 0) -> Any:
    encoded: Encoded = pack_fragment(fragment(value), BatchMeta(session=1, round=round, version=1, frames=6))
    buffer = empty_buffer(encoded.nbytes)
    buffer.data[:] = b"".join(encoded.parts)
    return buffer


def write(
    folder: Path, jobs: Sequence[str] = ("test",), batches: int = 4, *, segment_bytes: int = 1 << 20, rounds: Any = None
) -> list[Record]:
    """One run of a recorder for each job: batch `i` of worker 0 is full of `i`."""
    for name in jobs:
        description = Description(recording=os.urandom(8).hex(), job=job_called(name))
        writer = SegmentWriter(folder, description, segment_bytes=segment_bytes)
        for number in range(batches):
            worker, round = rounds[number] if rounds else (0, 0)
            writer.write(
                Identity(worker=worker, incarnation=0, sequence=number),
                session=1,
                round=round,
                message=message(float(number), round),
            )
        writer.close()
    return records(folder)


def records(folder: Path) -> list[Record]:
    def refuse(damaged: RecordingDamaged) -> None:
        raise damaged

    return [record for file in segments_in(folder) for record in scan(file, refuse)]


def values(recording: Recording) -> list[float]:
    return [float(batch["observation"].mean()) for batch in recording]


def test_torchs_default_device_changes_no_recorded_batch(tmp_path: Path) -> None:
    write(tmp_path)
    torch.set_default_device("meta")  # a tensor there has no values to read
    try:
        assert values(Recording(tmp_path)) == [0.0, 1.0, 2.0, 3.0]
    finally:
        torch.set_default_device(None)


def test_a_cut_file_loses_its_last_record_only(tmp_path: Path) -> None:
    last = write(tmp_path)[-1]
    (file,) = segments_in(tmp_path)
    whole = file.read_bytes()
    for size in (last.offset, last.offset + 1, last.offset + 55, last.offset + 56, last.end - 1):
        file.write_bytes(whole[:size])
        recording = Recording(tmp_path)
        assert values(recording) == [0.0, 1.0, 2.0]
        assert len(recording) == 3
    write(tmp_path)  # the next writer begins another file
    assert values(Recording(tmp_path)) == [0.0, 1.0, 2.0, 0.0, 1.0, 2.0, 3.0]


@pytest.mark.parametrize("at", [0, 5, 30, 52, 56, 200, -1])
def test_damage_is_reported_by_file_and_offset_and_the_rest_can_be_read(at: int, tmp_path: Path) -> None:
    record = write(tmp_path)[1]
    (file,) = segments_in(tmp_path)
    flipped = bytearray(file.read_bytes())
    flipped[record.end - 1 if at < 0 else record.offset + at] ^= 1
    file.write_bytes(flipped)
    seen = iter(Recording(tmp_path))
    assert float(next(seen)["observation"].mean()) == 0.0
    with pytest.raises(RecordingDamaged, match=f"{file} is damaged at byte {record.offset}: .*skip_damaged=True"):
        next(seen)
    recording = Recording(tmp_path, skip_damaged=True)
    assert values(recording) == [0.0, 2.0, 3.0]
    assert values(recording) == [0.0, 2.0, 3.0]
    assert [(each.file, each.offset) for each in recording.damaged] == [(file, record.offset)]


def test_a_damaged_beginning_costs_no_record(tmp_path: Path) -> None:
    write(tmp_path, segment_bytes=1)
    first, second, *_ = files = segments_in(tmp_path)
    assert len(files) == 4
    for file in (first, second):
        flipped = bytearray(file.read_bytes())
        flipped[40] ^= 1
        file.write_bytes(flipped)
    with pytest.raises(RecordingDamaged, match="its description is cut, or was changed"):
        Recording(tmp_path)
    recording = Recording(tmp_path, skip_damaged=True)
    assert values(recording) == [0.0, 1.0, 2.0, 3.0]
    assert [(each.file, each.offset) for each in recording.damaged] == [(first, 0), (second, 0)]


def test_a_round_is_joined_as_in_the_learner(tmp_path: Path) -> None:
    # worker 1 comes first; worker 0 collects twice; one fragment of round 1 comes late; round 3 has one fragment
    rounds = [(1, 1), (0, 1), (0, 1), (1, 2), (0, 2), (2, 1), (0, 3)]
    write(tmp_path, batches=len(rounds), rounds=rounds)
    recording = Recording(tmp_path)
    seen = [[float(value) for value in batch["observation"][::2, 0, 0]] for batch in recording]
    assert seen == [[1.0, 0.0], [4.0, 3.0], [6.0]]
    assert len(recording) == 3
    assert len(list(recording.arrivals())) == 7


def test_rounds_of_a_recreated_job_start_again(tmp_path: Path) -> None:
    rounds = [(0, 1), (0, 2)]
    write(tmp_path, ["test", "test"], batches=2, rounds=rounds)
    assert values(Recording(tmp_path)) == [0.0, 1.0, 0.0, 1.0]


def test_batches_are_read_when_they_are_asked_for(tmp_path: Path) -> None:
    write(tmp_path, segment_bytes=1)
    recording = Recording(tmp_path)
    assert len(recording) == 4
    seen = iter(recording)
    next(seen)
    for file in segments_in(tmp_path)[1:]:
        os.truncate(file, records(tmp_path)[0].offset + 60)
    assert list(seen) == []


def test_a_folder_without_a_recording_is_named(tmp_path: Path) -> None:
    with pytest.raises(JobInvalid, match="`device`: 'gpu' is not a torch device"):
        Recording(tmp_path, device="gpu")
    with pytest.raises(JobInvalid, match=r"no recording in .*nothing: create one with `rollfleet record JOB"):
        Recording(tmp_path / "nothing")
