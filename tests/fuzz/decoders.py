"""Feeds the wire's decoders whatever libFuzzer comes up with: they raise errors of ours, and nothing else.

`pip install atheris; python tests/fuzz/decoders.py -max_total_time=3600 -max_len=4096 FOLDER tests/fuzz/corpus`: what
is new goes into FOLDER. `--seeds FOLDER` writes messages to begin with. In `make test` hypothesis does so for short.
"""

import sys
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

atheris: Any = import_module("atheris")

with atheris.instrument_imports(include=["rollfleet", "rollfleet_api"]):
    import torch

    from rollfleet.chunking import Assembler, Identity, split
    from rollfleet.codec import decode, encode
    from rollfleet.errors import WireError
    from rollfleet.transports.fragments import unpack_fragment
    from rollfleet.weight_chunks import WeightAssembler, manifest_of
    from rollfleet.weight_chunks import split as split_weights
    from rollfleet_api.messages import Control, Manifest, MessageInvalid, WorkerStatus, pack, unpack

LIMIT_BYTES = 1 << 16


def one(data: bytes) -> None:
    """One input: its first byte says which decoder gets the rest."""
    which, rest = data[:1], data[1:]
    with suppress(WireError, MessageInvalid):
        if which == b"0":
            decode(memoryview(bytearray(rest)))
        elif which == b"1":
            unpack_fragment(memoryview(bytearray(rest)))
        elif which == b"2":
            assembler = Assembler(max_message_bytes=LIMIT_BYTES, max_pending=4)
            for start in range(0, len(rest), 256):
                assembler.add(rest[start : start + 256])
            assert assembler.pending_bytes <= 2 * LIMIT_BYTES
        elif which == b"3":
            WeightAssembler(100).add(rest)
        elif which in (b"4", b"5", b"6"):
            unpack({b"4": Manifest, b"5": Control, b"6": WorkerStatus}[which], rest)


def write_seeds(folder: Path) -> None:
    """Messages that are well."""
    folder.mkdir(exist_ok=True)
    encoded = encode(b'{"session":1}', {("steps", "reward"): torch.ones(2, 3), ("final", "done"): torch.zeros(2) > 0})
    whole = b"".join(encoded.parts)
    data = memoryview(bytes(range(100)))
    manifest = manifest_of(1, 1, (), data, max_chunk_bytes=64)
    seeds = {
        "codec": b"0" + whole,
        "fragment": b"1" + whole,
        "chunk": b"2" + next(split(encoded, Identity(worker=1, incarnation=0, sequence=2), max_chunk_bytes=256)),
        "weights": b"3" + next(split_weights(manifest, data)),
        "manifest": b"4" + pack(manifest),
        "heartbeat": b"6" + pack(WorkerStatus.starting(0, 1)),
    }
    for name, seed in seeds.items():
        (folder / name).write_bytes(seed)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--seeds"]:
        write_seeds(Path(sys.argv[2]))
    else:
        atheris.Setup(sys.argv, one)
        atheris.Fuzz()
