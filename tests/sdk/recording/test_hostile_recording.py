"""A file of a recording may come from anyone: reading it ends in an error that names it, and in nothing worse."""

import json
import random
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.api.job_data import job_data
from tests.sdk.nats.numbered_batches import META, fragment, of
from tests.sdk.wire.joined_chunks import joined

from rollfleet import Recording
from rollfleet.errors import RecordingDamaged
from rollfleet.recording.segments import SegmentWriter, segments_in
from rollfleet.wire.fragment_message import pack_fragment
from rollfleet_api.validation import parse_job

LONG = 1 << 62


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A recording of one file with one batch."""
    writer = SegmentWriter(tmp_path, parse_job(job_data()), segment_bytes=1 << 20)
    message = np.frombuffer(joined(pack_fragment(fragment(), META)), np.uint8)
    writer.write(of(0, 0), META, message)
    writer.close()
    (file,) = segments_in(tmp_path)
    return file


def change(file: Path, changed: Callable[[dict[str, Any]], None]) -> None:
    """Change the header of a file of safetensors: u64 length, JSON, bytes of the tensors."""
    (length,), data = struct.unpack("<Q", file.read_bytes()[:8]), file.read_bytes()[8:]
    header = json.loads(data[:length])
    changed(header)
    written = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(written)) + written + data[length:])


def assert_damaged(file: Path) -> None:
    with pytest.raises(RecordingDamaged, match=f"{file} cannot be read"):
        list(Recording(file.parent))


@pytest.mark.parametrize("length", [0, 1, 1 << 20, LONG, (1 << 64) - 1])
def test_a_header_of_impossible_length_is_an_error(file: Path, length: int) -> None:
    file.write_bytes(struct.pack("<Q", length) + file.read_bytes()[8:])
    assert_damaged(file)


@pytest.mark.parametrize(
    "instead",
    [
        {"data_offsets": [0, LONG]},
        {"data_offsets": [LONG, LONG + 96]},
        {"data_offsets": [96, 0]},
        {"data_offsets": [-96, 0]},
        {"shape": [LONG, 4]},
        {"shape": [LONG, LONG, 0]},
        {"shape": [24]},
        {"shape": [2, 24], "dtype": "F8_E4M3"},
        {"dtype": "I32"},
        {"dtype": "object"},
    ],
    ids=str,
)
def test_a_tensor_outside_of_its_file_or_of_another_form_is_an_error(file: Path, instead: dict[str, Any]) -> None:
    change(file, lambda header: header["0"].update(instead))
    assert_damaged(file)


@pytest.mark.parametrize(
    "batches",
    [
        "[" * 100_000,
        "{}",
        "[{}]",
        '[{"identity": {"worker": [], "incarnation": 0, "sequence": 0}, "meta": META, "nbytes": 1}]',
        '[{"identity": IDENTITY, "meta": {"session": 1, "round": "1", "version": 1, "frames": 6}, "nbytes": 1}]',
        '[{"identity": IDENTITY, "meta": META, "nbytes": Infinity}]',
        '[{"identity": IDENTITY, "meta": META, "nbytes": 1}, {"identity": NEXT, "meta": META, "nbytes": 1}]',
    ],
    ids=lambda text: text[:60],
)
def test_a_list_of_batches_that_no_recorder_wrote_is_an_error(file: Path, batches: str) -> None:
    first = {"worker": 0, "incarnation": 0, "sequence": 0, "process": 0}
    known = {"META": {"session": 1, "round": 0, "version": 1, "frames": 6}, "IDENTITY": first}
    for word, value in (known | {"NEXT": first | {"sequence": 1}}).items():
        batches = batches.replace(word, json.dumps(value))
    change(file, lambda header: header["__metadata__"].update(batches=batches))
    assert_damaged(file)


@pytest.mark.parametrize("seed", range(8))
def test_changed_bytes_of_a_file_are_read_or_are_an_error(file: Path, seed: int) -> None:
    chance, whole = random.Random(seed), file.read_bytes()
    (length,) = struct.unpack("<Q", whole[:8])
    for _ in range(100):
        data = bytearray(whole)
        for _ in range(chance.randint(1, 3)):
            data[chance.randrange(8, 8 + length)] = chance.choice(b'0123456789-[]{}",:eIFU/x')
        file.write_bytes(data)
        with suppress(RecordingDamaged):
            list(Recording(file.parent))
