"""The global generators, which threads share."""

import sys

import torch
from tests.running import output_of

from rollfleet.system.generators import cpu_state, generators_kept

THREADS = """
import gc
import sys
import threading

import numpy as np
import torch

from rollfleet.system.generators import generators_kept

sys.setswitchinterval(1e-5)


def go() -> None:
    for number in range(10_000):
        gc.set_threshold(5 + number % 30)  # so that some collections are in the call below
        garbage = [torch.from_numpy(np.zeros(1))]
        garbage.append(garbage)
        del garbage
        with generators_kept():
            pass


threads = [threading.Thread(target=go) for _ in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert gc.isenabled()
"""


def test_threads_that_keep_the_generators_while_tensors_are_collected_do_not_wait_for_each_other_for_ever() -> None:
    output_of(sys.executable, "-c", THREADS, timeout=60)


def test_generators_go_on_after_the_block_as_if_there_was_none() -> None:
    torch.manual_seed(0)
    expected = [torch.rand(3), torch.rand(3)]
    torch.manual_seed(0)
    found = [torch.rand(3)]
    before = cpu_state()
    with generators_kept():
        torch.rand(100)
    assert torch.equal(cpu_state(), before)
    found.append(torch.rand(3))
    assert all(map(torch.equal, found, expected))
