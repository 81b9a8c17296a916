"""What compression gains and costs: Pong's images, noise, and MuJoCo's numbers.

`python -P benchmarks/compression.py [--quick]`

Batches of 8 x 128 frames, played by random actions, are encoded and decoded as over NATS. Pong: `ALE/Pong-v5`
with `AtariPreprocessing` and four stacked images of 84 x 84. The worker's and the learner's time is CPU time of
encoding and decoding one batch. Figures are medians.
"""

import argparse
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median

sys.path.append(str(Path(__file__).parent))

import gymnasium
import numpy as np
import torch
from delivery import ENVS, META, STEPS, fragment_of, noise  # type: ignore[import-not-found]
from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation

from rollfleet.wire.buffer_pool import BufferPool
from rollfleet.wire.codec import empty_buffer
from rollfleet.wire.fragment_message import pack_fragment, unpack_fragment
from rollfleet_api.job import Compression

COMPRESSIONS = (Compression.NONE, Compression.AUTO, Compression.ZSTD)


def pong() -> torch.Tensor:
    """Return Pong's observations, uint8 [ENVS, STEPS, 4, 84, 84]."""
    import ale_py

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


def _measured(function: Callable[[], object], calls: int) -> float:
    """Return the function's CPU time in microseconds a frame, the median of its calls."""
    times = []
    for _ in range(calls):
        began = time.thread_time()
        function()
        times.append(time.thread_time() - began)
    return float(median(times) * 1e6 / (ENVS * STEPS))


def main() -> None:
    """Measure in turn and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few calls")
    calls = 3 if parser.parse_args().quick else 50
    print("| Observations | compression | bytes a frame | worker, µs a frame | learner, µs a frame |")
    print("|---|---|---|---|---|")
    for observe in (pong, noise, humanoid):
        fragment, memory = fragment_of(observe()), BufferPool(4)
        for compression in COMPRESSIONS:
            pack = partial(pack_fragment, fragment, META, compression=compression)
            encoded = pack()
            message = empty_buffer(encoded.nbytes)
            message[:] = np.frombuffer(b"".join(encoded.parts), np.uint8)
            unpack = partial(unpack_fragment, message, allocate=memory.take)
            size, worker, learner = encoded.nbytes / (ENVS * STEPS), _measured(pack, calls), _measured(unpack, calls)
            cells = f"{size:,.0f} | {worker:.2f} | {learner:.2f}"
            print(f"| {observe.__name__} | {compression.value} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
