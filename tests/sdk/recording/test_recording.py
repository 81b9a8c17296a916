"""Recordings: written, and read."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from tests.api.job_data import job_data
from tests.sdk.nats.numbered_batches import fragment

from rollfleet import CollectorJob, Recording
from rollfleet.errors import JobInvalid, RecordingDamaged
from rollfleet.recording.segments import SegmentWriter, segments_in
from rollfleet.wire.chunks import Identity
from rollfleet.wire.codec import Key, decode
from rollfleet.wire.fragment_message import pack_fragment
from rollfleet_api.messages import BatchMeta
from rollfleet_api.validation import parse_job


def job_called(name: str) -> CollectorJob:
    spec: dict[str, Any] = {"policy": {"random": {}}, "collect": {"framesPerBatch": 6}, "mode": "Async"}
    return parse_job(job_data({"name": name}, **spec))


def write(folder: Path, jobs: Sequence[str] = ("test",), *, segment_bytes: int = 1 << 20, rounds: Any = None) -> None:
    """One run of a recorder for each job: batch `i` of worker 0 is full of `i`."""
    rounds = rounds or [(0, 0)] * 4
    for name in jobs:
        writer = SegmentWriter(folder, job_called(name), segment_bytes=segment_bytes)
        for number, (worker, round) in enumerate(rounds):
            meta = BatchMeta(session=1, round=round, version=1, frames=6)
            encoded = pack_fragment(fragment(float(number)), meta)
            _, tensors = decode(bytearray(b"".join(encoded.parts)))
            process = len(segments_in(folder))
            writer.write(Identity(worker=worker, incarnation=0, sequence=number, process=process), meta, tensors)
        writer.close()


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


def test_tensors_have_readable_names(tmp_path: Path) -> None:
    write(tmp_path)
    (file,) = segments_in(tmp_path)
    tensors = safetensors.torch.load_file(file)
    assert float(tensors["3/steps/observation"].mean()) == 3.0
    assert {name.partition("/")[0] for name in tensors} == {"0", "1", "2", "3"}


def test_keys_and_stacked_images_survive(tmp_path: Path) -> None:
    images = torch.randint(0, 256, (1, 11, 30, 30), dtype=torch.uint8)
    stacks = torch.stack([images[:, first : first + 8] for first in range(4)], 2)
    plain = fragment(envs=1, steps=8)
    odd: Key = ("next", "a/b %2F")
    steps = plain.steps | {("pixels",): stacks, odd: torch.arange(8).reshape(1, 8)}
    sent = replace(plain, steps=steps, final=plain.final | {("pixels",): stacks[:, -1]})
    meta = BatchMeta(session=1, round=0, version=1, frames=8)
    _, tensors = decode(bytearray(b"".join(pack_fragment(sent, meta).parts)))
    assert sum(tensor.nbytes for tensor in tensors.values()) < stacks.nbytes / 2
    writer = SegmentWriter(tmp_path, job_called("test"), segment_bytes=1)
    writer.write(Identity(worker=0, incarnation=0, sequence=0), meta, tensors)
    writer.close()
    (arrival,) = Recording(tmp_path).arrivals()
    assert torch.equal(arrival.batch["pixels"], stacks)
    assert torch.equal(arrival.batch[odd], torch.arange(8).reshape(1, 8))


def test_a_round_is_joined_as_in_the_learner(tmp_path: Path) -> None:
    # worker 1 comes first; worker 0 collects twice; one fragment of round 1 comes late; round 3 has one fragment
    rounds = [(1, 1), (0, 1), (0, 1), (1, 2), (0, 2), (2, 1), (0, 3)]
    write(tmp_path, rounds=rounds)
    recording = Recording(tmp_path)
    seen = [[float(value) for value in batch["observation"][::2, 0, 0]] for batch in recording]
    assert seen == [[1.0, 0.0], [4.0, 3.0], [6.0]]
    assert len(recording) == 3
    assert len(list(recording.arrivals())) == 7


def test_rounds_of_a_recreated_job_start_again(tmp_path: Path) -> None:
    rounds = [(0, 1), (0, 2)]
    write(tmp_path, ["test", "test"], rounds=rounds)
    assert values(Recording(tmp_path)) == [0.0, 1.0, 0.0, 1.0]


def test_a_folder_without_a_recording_is_named(tmp_path: Path) -> None:
    with pytest.raises(JobInvalid, match="`device`: 'gpu' is not a torch device"):
        Recording(tmp_path, device="gpu")
    with pytest.raises(JobInvalid, match=r"no recording in .*nothing: create one with `rollfleet record JOB"):
        Recording(tmp_path / "nothing")
