"""What compression gains and costs on the way through NATS: Pong's images, noise, and MuJoCo's numbers.

`python -P benchmarks/compression.py [--rounds N] [--quick]`

Batches of 8 x 128 frames, played by random actions, are sent again and again (see `delivery.py`). Pong: `ALE/Pong-v5`
with `AtariPreprocessing` and four stacked images of 84 x 84. The worker's and the learner's time is CPU time of
encoding and decoding one batch. Compressions take turns; figures are medians.
"""

import argparse
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median

sys.path += [str(Path(__file__).parent), str(Path(__file__).parent / "contenders")]

import ale_py
import gymnasium
import numpy as np
import torch
from delivery import ENVS, META, STEPS, fragment_of, job, noise, rollfleet_rates  # type: ignore[import-not-found]
from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation

import nats_job
from rollfleet.wire.buffer_pool import BufferPool
from rollfleet.wire.codec import empty_buffer
from rollfleet.wire.fragment_message import pack_fragment, unpack_fragment
from rollfleet_api.job import Compression

COMPRESSIONS = (Compression.NONE, Compression.AUTO, Compression.ZSTD)


def pong() -> torch.Tensor:
    """Return Pong's observations, uint8 [ENVS, STEPS, 4, 84, 84]."""
    gymnasium.register_envs(ale_py)
    env = AtariPreprocessing(gymnasium.make("ALE/Pong-v5", frameskip=1))
    return _played(FrameStackObservation(env, 4))


def humanoid() -> torch.Tensor:
    """Return Humanoid's observations, float64 [ENVS, STEPS, 348]."""
    return _played(gymnasium.make("Humanoid-v5"))


def _played(env: gymnasium.Env) -> torch.Tensor:
    env.action_space.seed(0)
    rows = []
    for seed in range(ENVS):
        observation, _ = env.reset(seed=seed)
        row = [observation]
        while len(row) < STEPS:
            observation, _, terminated, truncated, _ = env.step(env.action_space.sample())
            row.append(env.reset()[0] if terminated or truncated else observation)
        rows.append(row)
    return torch.from_numpy(np.array(rows))


def _measured(function: Callable[[], object]) -> float:
    """Return the function's CPU time in microseconds a frame, the median of ten calls."""
    times = []
    for _ in range(10):
        began = time.thread_time()
        function()
        times.append(time.thread_time() - began)
    return float(median(times) * 1e6 / (ENVS * STEPS))


def main() -> None:
    """Measure in turn and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="one round of few batches")
    arguments = parser.parse_args()
    rounds, batches = (1, 3) if arguments.quick else (arguments.rounds, 30)
    print("| Observations | compression | bytes a frame | worker, µs a frame | learner, µs a frame | frames/s |")
    print("|---|---|---|---|---|---|")
    for observe in (pong, noise, humanoid):
        fragment, memory = fragment_of(observe()), BufferPool(4)
        nbytes: dict[Compression, int] = {}
        figures: dict[Compression, list[tuple[float, float, float]]] = {each: [] for each in COMPRESSIONS}
        with nats_job.nats_server(job()) as server:
            for _ in range(rounds):
                for compression, measured in figures.items():
                    encoded = pack_fragment(fragment, META, compression=compression)
                    message = empty_buffer(encoded.nbytes)
                    message[:] = np.frombuffer(b"".join(encoded.parts), np.uint8)
                    nbytes[compression] = encoded.nbytes
                    measured.append(
                        (
                            _measured(partial(pack_fragment, fragment, META, compression=compression)),
                            _measured(partial(unpack_fragment, message, allocate=memory.take)),
                            rollfleet_rates(server, batches, compression=compression.value, observe=observe)[1],
                        )
                    )
        for compression, measured in figures.items():
            packing, unpacking, rate = map(median, zip(*measured, strict=True))
            size = nbytes[compression] / (ENVS * STEPS)
            cells = f"{size:,.0f} | {packing:.2f} | {unpacking:.2f} | {rate:,.0f}"
            print(f"| {observe.__name__} | {compression.value} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
