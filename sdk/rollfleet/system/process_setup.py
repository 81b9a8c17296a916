"""What a program of Rollfleet sets up in its process: its end at SIGTERM, its warnings, its global generators."""

import os
import random
import signal
import sys
import threading
import warnings
from types import FrameType


def exit_on_sigterm() -> None:
    """Make a container's first process exit at SIGTERM, as any other process does by default.

    The kernel keeps signals without a handler from a container's first process. Without this, the learner of a deleted
    pod runs on until SIGKILL, half a minute later, and so does a worker that still imports its libraries.
    An existing handler stays, and so does an ignored SIGTERM.
    """
    in_main_thread = threading.current_thread() is threading.main_thread()
    if os.getpid() == 1 and in_main_thread and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, exit_by_signal)


def exit_by_signal(number: int, _frame: FrameType | None) -> None:
    """Handle a signal: exit with the code that shells report."""
    sys.exit(128 + number)


def silence_warnings() -> None:
    """Ignore warnings from now on. Every worker of a job would repeat those of its libraries."""
    import gymnasium

    warnings.simplefilter("ignore")
    gymnasium.logger.min_level = gymnasium.logger.ERROR


def seed_generators(seed: int) -> None:
    """Seed the global generators of Python, NumPy and, if it is loaded, torch: environments may draw from them.

    `seed` is below 2**32, because NumPy takes no more.

    Processes that were forked have the same generators, and would draw the same numbers. The default generator of torch
    for CUDA devices is seeded, too.
    """
    import numpy as np

    random.seed(seed)
    np.random.seed(seed)
    if (torch := sys.modules.get("torch")) is not None:
        torch.manual_seed(seed)
