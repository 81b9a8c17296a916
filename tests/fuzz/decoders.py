"""Feeds inputs of libFuzzer to the decoders of the wire: they raise Rollfleet's errors only.

`pip install atheris; python tests/fuzz/decoders.py -max_total_time=3600 -max_len=4096 FOLDER tests/fuzz/corpus`: what
is new goes into FOLDER. `--seeds FOLDER` writes messages to begin with. `make test` feeds them what the corpus holds,
and changes of it.

Checksums of messages are corrected: a hostile peer sends right ones, and no fuzzer would find them.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from tests.api.job_data import job_data

from rollfleet_api.validation import parse_job

try:
    atheris: Any = import_module("atheris")
except ImportError:  # not needed to import `one`
    atheris = None


@contextmanager
def instrumented() -> Iterator[None]:
    """Instrument the modules that are imported in this context: libFuzzer follows their coverage."""
    if atheris is None:
        yield
    else:
        with atheris.instrument_imports(include=["rollfleet", "rollfleet_api"]):
            yield


with instrumented():
    import torch
    from pydantic import ValidationError
    from tests.sdk.wire.forged_messages import sealed
    from tests.sdk.wire.joined_chunks import split

    from rollfleet.data.batch import join, to_batch
    from rollfleet.errors import WireError
    from rollfleet.nats.weights import pack_version, unpack_version
    from rollfleet.weights.layout import Snapshot
    from rollfleet.wire.chunks import Assembler, Identity
    from rollfleet.wire.codec import Key, decode, encode
    from rollfleet.wire.fragment_message import unpack_fragment
    from rollfleet_api.job import CollectorJob, Compression
    from rollfleet_api.messages import (
        Answer,
        Call,
        Control,
        LearnerPhase,
        LearnerStatus,
        MessageInvalid,
        WorkerStatus,
        pack,
        unpack,
    )
    from rollfleet_api.transfers import BatchMeta, KeptBatch, Offer, Parameter, Receipt, Want

LIMIT_BYTES, CHUNK_BYTES = 1 << 16, 252
MESSAGES: dict[bytes, type[Any]] = {
    b"5": Control,
    b"6": WorkerStatus,
    b"7": Want,
    b"8": LearnerStatus,
    b"a": BatchMeta,
    b"b": Call,
    b"c": Answer,
    b"d": Offer,
    b"e": Receipt,
}


def one(data: bytes) -> None:
    """Decode one input: its first byte selects the decoder of the rest."""
    which, rest = data[:1], data[1:]
    with suppress(WireError, MessageInvalid):
        if which == b"0":
            decode(sealed(bytearray(rest)))
        elif which == b"1":
            batch = to_batch(unpack_fragment(sealed(bytearray(rest)))[1])
            join([batch, batch])
        elif which == b"2":
            assembler = Assembler(Identity.of, Identity.overtakes, max_message_bytes=LIMIT_BYTES, max_pending=4)
            for start in range(0, len(rest), CHUNK_BYTES):
                with suppress(WireError):
                    assembler.add(rest[start : start + CHUNK_BYTES])
                assert assembler.pending_bytes <= 2 * LIMIT_BYTES
        elif which == b"3":
            unpack_version(sealed(bytearray(rest)))
        elif which == b"j":
            with suppress(ValidationError):
                CollectorJob.model_validate_json(rest)
        elif which in MESSAGES:
            unpack(MESSAGES[which], rest)


def write_seeds(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    encoded = encode(b'{"session":1}', {("steps", "reward"): torch.ones(2, 3), ("final", "done"): torch.zeros(2) > 0})
    unfolded: dict[Key, torch.Tensor] = {
        ("steps", "observation"): torch.ones(1, 2, 1),
        ("final", "observation"): torch.ones(1, 1),
    }
    stacks = [_stacks(last=last) for last in (False, True)]
    identity = Identity(worker=1, incarnation=0, sequence=2)
    parameter = Parameter(model="policy", name="weight", dtype="uint8", shape=(100,))
    snapshot = Snapshot((parameter,), torch.arange(100, dtype=torch.uint8), (("", True),))
    job = parse_job(job_data({"name": "test"}, policy={"random": {}}))
    kept = KeptBatch(sequence=3, nbytes=1000, chunks=4, idle=True)
    learner = LearnerStatus(session=1, version=1, applied_version=1, frames=1, batches=1, mean_return=1.0)
    packed = [
        encode(b"", {("a",): torch.arange(1 << 10) // 64}, compression=compression)
        for compression in (Compression.LZ4, Compression.ZSTD)
    ]
    seeds = {
        "codec": b"0" + b"".join(encoded.parts),
        "lz4": b"0" + b"".join(packed[0].parts),
        "zstd": b"0" + b"".join(packed[1].parts),
        "fragment": b"1" + _fragment(unfolded),
        "stacks": b"1" + _fragment(stacks[0]),
        "stacks_last": b"1" + _fragment(stacks[1]),
        "chunk": b"2" + next(split(encoded, identity, max_chunk_bytes=CHUNK_BYTES)),
        "weights": b"3" + b"".join(pack_version(1, snapshot).parts),
        "control": b"5" + pack(Control(session=1, phase=LearnerPhase.RUN, round=1, version=1)),
        "heartbeat": b"6" + pack(WorkerStatus(worker=0, incarnation=1)),
        "want": b"7" + pack(Want(version=1, send=((0, 4),))),
        "learner": b"8" + pack(learner),
        "meta": b"a" + pack(BatchMeta(session=1, round=0, version=1, frames=2)),
        "call": b"b" + pack(Call(number=1, method="env.level", arguments="[[],{}]")),
        "answer": b"c" + pack(Answer(number=1)),
        "offer": b"d" + pack(Offer(incarnation=0, process=7, batches=(kept,))),
        "receipt": b"e" + pack(Receipt(process=7, taken=(1,), held=(2,), send=((3, 0, 4),))),
        "spec": b"j" + job.model_dump_json(by_alias=True).encode(),
    }
    for name, seed in seeds.items():
        (folder / name).write_bytes(seed)


def _stacks(*, last: bool) -> dict[Key, torch.Tensor]:
    """Make two frames of two images each, with one image in common."""
    return {
        ("folded images", "observation"): torch.arange(9, dtype=torch.uint8).view(3, 3),
        ("folded begins", "observation"): torch.tensor([[True, False]]),
        ("folded form", "observation"): torch.tensor([2, int(last)]),
        ("final", "observation"): torch.zeros((1, 3, 2) if last else (1, 2, 3), dtype=torch.uint8),
    }


def _fragment(observations: dict[Key, torch.Tensor]) -> bytes:
    """Make a batch of one environment and two frames."""
    flags = torch.zeros(1, 2, 1, dtype=torch.bool)
    others: dict[Key, torch.Tensor] = {
        ("steps", "action"): torch.zeros(1, 2, dtype=torch.int64),
        ("steps", "next", "reward"): torch.ones(1, 2, 1),
        ("steps", "next", "terminated"): flags,
        ("steps", "next", "truncated"): flags,
        ("steps", "collector", "traj_ids"): torch.zeros(1, 2, dtype=torch.int64),
        ("episodes", "returns"): torch.ones(1, dtype=torch.float64),
        ("episodes", "lengths"): torch.ones(1, dtype=torch.int64),
        ("episodes", "versions"): torch.ones(1, 2, dtype=torch.int64),
    }
    meta = pack(BatchMeta(session=1, round=0, version=1, frames=2))
    return b"".join(encode(meta, observations | others).parts)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--seeds"]:
        write_seeds(Path(sys.argv[2]))
    else:
        atheris.Setup(sys.argv, one)
        atheris.Fuzz()
