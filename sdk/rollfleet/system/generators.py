"""The global generators of Python, NumPy and torch, which all threads of a process share."""

import gc
import os
import random
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

_reading = threading.Lock()
os.register_at_fork(before=_reading.acquire, after_in_parent=_reading.release, after_in_child=_reading.release)


def cpu_state() -> Tensor:
    """Return the state of torch's default generator of the CPU, uint8.

    torch (2.14) keeps the generator locked while it makes the result, and Python (3.11) may collect garbage for that.
    A tensor in the garbage lets other threads run, and one that wants the generator would wait forever.
    """
    with _reading:
        collects = gc.isenabled()
        gc.disable()
        try:
            return torch.get_rng_state()
        finally:
            if collects:
                gc.enable()


@contextmanager
def generators_kept(devices: Iterable[torch.device | int] = ()) -> Iterator[None]:
    """Let torch's default generators, of the CPU and of these CUDA devices, go on afterwards as if there was no block.

    It is `torch.random.fork_rng` by `cpu_state`.
    """
    cpu, cuda = cpu_state(), {device: torch.cuda.get_rng_state(device) for device in devices}
    try:
        yield
    finally:
        torch.set_rng_state(cpu)
        for device, state in cuda.items():
            torch.cuda.set_rng_state(state, device)


@contextmanager
def generators_seeded(seed: int) -> Iterator[None]:
    """Seed the global generators for a block, on the CPU. Afterwards they continue as if there had been no block.

    `seed` is below 2**32, because NumPy takes no more.
    """
    python, numpy = random.getstate(), np.random.get_state()
    with generators_kept():
        random.seed(seed)
        np.random.seed(seed)
        torch.set_rng_state(torch.Generator().manual_seed(seed).get_state())
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)
