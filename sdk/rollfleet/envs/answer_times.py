"""How long each server of a vector takes to answer, in a step now and then: measuring each step would slow it down."""

import selectors
import time
from collections import deque
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rollfleet.envs.array_pipe import ArrayPipe

PAUSE_S: Final = 0.25
"""The least time between measured steps."""

SAMPLES: Final = 20
"""The newest measured steps, by which servers are judged; a quarter of them is enough."""

SLOW: Final = 3.0
"""Servers that take this many times as long as the median of all are slow."""

MOST_NAMED: Final = 4
"""As many slow servers are named."""


class AnswerTimes:
    """The times of the servers of one vector.

    Example:
        >>> times = AnswerTimes(3)
        >>> for _ in range(5):
        ...     times.note([0.001, 0.04, 0.0012])
        >>> times.slow(["a:7700", "b:7700", "c:7700"])
        '1 of 3 servers answers 33 times slower than the others: b:7700'
    """

    def __init__(self, servers: int) -> None:
        self._samples = deque[NDArray[np.float64]](maxlen=SAMPLES)
        self._due_s = 0.0 if servers > 1 else np.inf
        self._slow: list[int] = []
        self._factor = 1.0

    def are_due(self, now_s: float) -> bool:
        """Return whether to measure a step that began now, by `time.perf_counter`."""
        return now_s >= self._due_s

    def measure(self, pipes: Sequence[Connection | ArrayPipe], began_s: float, limit_s: float | None) -> None:
        """Wait until each server has answered, or for `limit_s`, and read nothing. `began_s`: when they were asked."""
        times = np.zeros(len(pipes))
        self._due_s = began_s + PAUSE_S
        if any(pipe.closed for pipe in pipes):
            return
        with selectors.DefaultSelector() as selector:
            for index, pipe in enumerate(pipes):
                selector.register(pipe, selectors.EVENT_READ, index)
            while selector.get_map():
                left_s = None if limit_s is None else began_s + limit_s - time.perf_counter()
                ready = selector.select(left_s)
                if not ready:
                    return  # one hangs
                took_s = time.perf_counter() - began_s
                for key, _ in ready:
                    times[key.data] = took_s
                    selector.unregister(key.fileobj)
        self.note(times)

    def note(self, times: Sequence[float] | NDArray[np.float64]) -> None:
        """Add the seconds that each server took in one step."""
        self._samples.append(np.asarray(times))
        usual = np.median(self._samples, axis=0)
        middle = np.sort(usual)[(len(usual) - 1) // 2]
        self._slow = np.flatnonzero(usual >= SLOW * middle).tolist() if len(self._samples) >= SAMPLES // 4 else []
        self._factor = usual.max() / middle

    def slow(self, names: Sequence[str]) -> str:
        """Return which servers are slow, in words; empty: none."""
        if not self._slow:
            return ""
        count, few = len(self._slow), ", ".join(names[index] for index in self._slow[:MOST_NAMED])
        more = f" and {count - MOST_NAMED} more" if count > MOST_NAMED else ""
        answer = "answers" if count == 1 else "answer up to"
        return f"{count} of {len(names)} servers {answer} {self._factor:.0f} times slower than the others: {few}{more}"
