"""Fills a replay buffer in the background, on its own thread."""

import atexit
import logging
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import inf
from typing import Any
from weakref import WeakMethod

from rollfleet.arguments import plain, shown
from rollfleet.errors import JobInvalid, Timeout, copied

log = logging.getLogger(__name__)

TURN_S = 0.1  # between two looks whether to stop, while `held` keeps the turn
POLL_S = 0.002  # between two looks at the number of samples
AT_EXIT_S = 60.0  # for the batch under way: torch aborts a program that exits during its work (busy machines: > 10 s)
_LATE = "the batch under way did not come within {:g} s"


class SampleRatio:
    """The frames that a buffer gets for each sample, from the first one on: each side waits for the other.

    Raises:
        JobInvalid: The buffer does not count samples, or it is no number above 0.
    """

    def __init__(self, buffer: Any, frames_per_sample: float) -> None:
        self._frames = frames = plain(frames_per_sample)
        if not isinstance(frames, int | float) or isinstance(frames, bool) or not 0 < frames < inf:
            wanted = "a number above 0, such as 4, or 0.5 for two samples a frame"
            raise JobInvalid(f"frames_per_sample: expected {wanted}, got {shown(frames)}")
        if not hasattr(buffer, "sample_count"):
            raise JobInvalid(f"`frames_per_sample` needs a rollfleet.ReplayBuffer; {shown(buffer)} counts no samples")
        self._buffer, self._samples, self._written = buffer, buffer.sample_count, -1

    def allows(self) -> bool:
        """Whether the buffer may get another batch."""
        return self._buffer.sample_count == self._samples or self.lacks()

    def lacks(self) -> bool:
        """Whether the buffer lacks frames for the samples so far."""
        samples = self._buffer.sample_count - self._samples
        if samples and self._written < 0:
            self._written = self._buffer.write_count
        return bool(self._buffer.write_count - self._written < self._frames * samples)

    def hold_samples(self, fills: Callable[[], bool]) -> None:
        """Let samples wait for the frames that they lack, while `fills` returns true."""
        self._buffer.must_wait = lambda: self.lacks() and fills()


class BackgroundFill:
    """Fills until the iterator ends, `stop` is called, the collector is dropped, or the program exits."""

    def __init__(self, fill: Callable[[], object], ratio: SampleRatio | None = None) -> None:
        """Start filling.

        Args:
            fill: A method that puts one batch into the buffer, and raises StopIteration at the end. Its object is not
                kept alive.
            ratio: When it may be called; None: at any time.
        """
        self._fill, self._ratio = WeakMethod(fill), ratio
        self._turn = threading.RLock()  # `call` inside `pause`
        # One for each call that waits, or has the turn: the thread that fills would retake it, and samples wait for it.
        self._waiting: list[None] = []
        self._stopping = threading.Event()
        self._error: BaseException | None = None
        self._raised = False
        self._thread = threading.Thread(target=self._run, name="rollfleet-filling", daemon=True)
        atexit.register(self.leave)  # until the thread ends
        self._thread.start()
        if ratio is not None:
            ratio.hold_samples(lambda: self.running and not self._stopping.is_set() and not self._waiting)

    @property
    def running(self) -> bool:
        """Whether the thread still fills: not once an error is known."""
        return self._error is None and self._thread.is_alive()

    @contextmanager
    def held(self, timeout_s: float = -1) -> Iterator[None]:
        """Write nothing inside the block. Enter it once the batch under way is written.

        Raises:
            Timeout: That batch did not come in time. -1: wait for it without a limit.
        """
        self._waiting.append(None)
        try:
            if not self._turn.acquire(timeout=timeout_s):
                raise Timeout(_LATE.format(timeout_s))
            try:
                yield
            finally:
                self._turn.release()
        finally:
            self._waiting.pop()

    def check(self, *, again: bool = True) -> None:
        """Raise the error that ended the thread, if any. Not `again`: unless it was raised before."""
        if self._error and (again or not self._raised):
            self._raised = True
            raise copied(self._error)

    def stop(self, timeout_s: float | None = None) -> None:
        """Stop after the batch under way, and raise the error that ended the thread, if any.

        Raises:
            Timeout: That batch did not come in time.
        """
        self.leave(timeout_s)
        if self._thread.is_alive():
            raise Timeout(_LATE.format(timeout_s))
        self.check()

    def leave(self, timeout_s: float | None = AT_EXIT_S) -> None:
        """Stop, or give up waiting after the timeout; the program's exit waits again. Raise no error."""
        self._stopping.set()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                if self._ratio is not None and not self._ratio.allows():
                    if self._fill() is None:
                        return
                    self._stopping.wait(POLL_S)
                    continue
                while self._waiting and not self._stopping.wait(POLL_S):
                    pass
                if not self._turn.acquire(timeout=TURN_S):
                    continue
                try:
                    fill = self._fill()
                    if fill is None or self._stopping.is_set():
                        return
                    try:
                        fill()
                    except StopIteration:
                        return
                    finally:
                        del fill
                finally:
                    self._turn.release()
        except BaseException as error:  # raised at the learner's next call; it may only watch the buffer
            traceback.clear_frames(error.__traceback__)  # they refer to the collector
            try:
                if not self._stopping.is_set():
                    text = "start() has ended, and the collector's next call raises %s: %s"
                    log.warning(text, type(error).__name__, error)
            finally:
                self._error = error
        finally:
            atexit.unregister(self.leave)
