"""What a container's first process must do that others need not."""

import os
import signal
import sys
import threading
from types import FrameType


def heed_sigterm() -> None:
    """End at SIGTERM in order, as any other process would end by itself.

    The system keeps signals from a container's first process that it has no handler for. A learner whose pod is deleted
    would go on, until it is killed half a minute later, and its successor begins that much later; so would a worker
    that is told to leave while it still imports. Whoever handles SIGTERM already, or ignores it, is left alone.
    """
    of_main = threading.current_thread() is threading.main_thread()
    if os.getpid() == 1 and of_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _exit)


def _exit(number: int, _frame: FrameType | None) -> None:
    sys.exit(128 + number)
