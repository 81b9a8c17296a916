"""Fills a replay buffer behind the learner's back, on a thread of its own."""

import atexit
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from weakref import WeakMethod

from rollfleet.errors import Timeout

AT_EXIT_S = 10.0  # for the batch that is under way: torch aborts a program that ends in the middle of its work


class BackgroundFill:
    """Fills until all is done, `stop` is called, nobody holds the collector any more, or the program ends."""

    def __init__(self, fill: Callable[[], object]) -> None:
        """Begins at once.

        Args:
            fill: A method, which is not kept alive. Puts one batch into the buffer; raises StopIteration at the end.
        """
        self._fill = WeakMethod(fill)
        self._turn = threading.Lock()
        self._stopping = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="rollfleet-filling", daemon=True)
        self._thread.start()
        atexit.register(self._end)

    @property
    def running(self) -> bool:
        """Whether it goes on."""
        return self._thread.is_alive()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Nothing is written inside the block; it is entered once what is under way was written."""
        with self._turn:
            yield

    def check(self) -> None:
        """Raise what went wrong, if anything did."""
        if self._error:
            raise self._error

    def stop(self, timeout_s: float | None = None) -> None:
        """End after the batch that is under way.

        Raises:
            Timeout: That batch did not come in time.
        """
        self._end(timeout_s)
        if self._thread.is_alive():
            raise Timeout(f"the batch that is under way did not come within {timeout_s:g} s")
        self.check()

    def leave(self, timeout_s: float) -> None:
        """End, wherever it is after so long; what went wrong is not told."""
        self._end(timeout_s)

    def _end(self, timeout_s: float | None = AT_EXIT_S) -> None:
        atexit.unregister(self._end)
        self._stopping.set()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                with self._turn:
                    fill = self._fill()
                    if fill is None or self._stopping.is_set():
                        return
                    try:
                        fill()
                    except StopIteration:
                        return
                    del fill
        except BaseException as error:  # raised at the learner's next call
            self._error = error
