"""Encoding and decoding a batch: Rollfleet's codec beside pickle, in the same process, interleaved.

    python benchmarks/codec.py [--quick]

Two batches: 8 environments x 128 steps of CartPole (46 KB), and of pixels (uint8 84x84x4, observation and next, 58
MB). A figure is the median of the rounds; MB/s counts the tensors' bytes. `rollfleet` alone passes memoryviews to the
socket; `+ chunks` also cuts and joins chunks of 1 MiB, which users of pickle have to add.
"""

import argparse
import pickle
import statistics
import time
from collections.abc import Callable

import torch

from rollfleet.wire.batch_chunks import Assembler, Identity, cut
from rollfleet.wire.codec import Encoded, Key, decode, encode

MAX_CHUNK_BYTES = 1 << 20
ENVS, STEPS = 8, 128

Batch = dict[Key, torch.Tensor]


def cartpole() -> Batch:
    """Build the tensors of CartPole that a worker sends: observation, action, extras, reward, flags, trajectory ids."""
    frames = (ENVS, STEPS)
    return {
        ("observation",): torch.rand(*frames, 4),
        ("action",): torch.randint(2, frames),
        ("action_log_prob",): torch.rand(frames),
        ("state_value",): torch.rand(*frames, 1),
        ("next", "reward"): torch.ones(*frames, 1),
        ("next", "terminated"): torch.zeros(*frames, 1, dtype=torch.bool),
        ("next", "truncated"): torch.zeros(*frames, 1, dtype=torch.bool),
        ("collector", "traj_ids"): torch.randint(1 << 60, frames),
    }


def pixels() -> Batch:
    """Build CartPole's batch with Atari's observation and next observation."""
    shape = (ENVS, STEPS, 84, 84, 4)
    observations = {
        key: torch.randint(256, shape, dtype=torch.uint8) for key in [("observation",), ("next", "observation")]
    }
    return {**cartpole(), **observations}


def assemble(encoded: Encoded) -> bytearray | memoryview:
    """Cut a message and join it again, like the two ends of a connection."""
    assembler = Assembler(max_message_bytes=encoded.nbytes)
    identity = Identity(worker=0, incarnation=0, sequence=0)
    for chunk in (b"".join(pieces) for pieces in cut(encoded, identity, max_chunk_bytes=MAX_CHUNK_BYTES)):
        if (assembled := assembler.add(chunk)) is not None:
            return assembled.buffer.data
    raise AssertionError("a message's own chunks make the message")


def median_s(functions: dict[str, Callable[[], object]], *, rounds: int, calls: int) -> dict[str, float]:
    """Return the median seconds of one call. The functions take turns, so that noise of the machine affects all."""
    taken: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(rounds):
        for name, function in functions.items():
            function()
            start = time.perf_counter()
            for _ in range(calls):
                function()
            taken[name].append((time.perf_counter() - start) / calls)
    return {name: statistics.median(times) for name, times in taken.items()}


def report(name: str, batch: Batch, *, rounds: int, calls: int) -> None:
    """Print one batch's figures."""
    nbytes = sum(tensor.nbytes for tensor in batch.values())
    encoded = encode(b"", batch)
    message = bytearray(b"".join(encoded.parts))
    pickled = pickle.dumps(batch, protocol=5)
    seconds = median_s(
        {
            "encode  pickle": lambda: pickle.dumps(batch, protocol=5),
            "encode  rollfleet": lambda: encode(b"", batch),
            "decode  pickle": lambda: pickle.loads(pickled),
            "decode  rollfleet": lambda: decode(message),
            "both    pickle": lambda: pickle.loads(pickle.dumps(batch, protocol=5)),
            "both    rollfleet + chunks": lambda: decode(assemble(encode(b"", batch))),
        },
        rounds=rounds,
        calls=calls,
    )
    print(f"{name}: {nbytes:,} bytes of tensors, {encoded.nbytes:,} encoded, {len(pickled):,} pickled")
    for what, one_s in seconds.items():
        print(f"  {what:28} {one_s * 1e6:10,.1f} us  {nbytes / one_s / 1e6:10,.0f} MB/s")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few rounds: a check that it runs, not for figures")
    quick = parser.parse_args().quick
    report("cartpole 8x128", cartpole(), rounds=3 if quick else 9, calls=50 if quick else 500)
    report("pixels 8x128", pixels(), rounds=1 if quick else 5, calls=1 if quick else 5)


if __name__ == "__main__":
    main()
