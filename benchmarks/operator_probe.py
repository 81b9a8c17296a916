"""The operator's program with measurements of its event loop, for `operator_scale.py`.

`python -P benchmarks/operator_probe.py FILE`: on SIGUSR1 it writes them to FILE, and starts over. Times are CPU time of
the loop's thread, which other programs of the machine do not lengthen.
"""

import gc
import json
import signal
import sys
import time
from asyncio import Handle
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollfleet_operator.__main__ import main
from rollfleet_operator.nats_port import JobKey
from rollfleet_operator.reconcile import Reconciler, ReconcileResult


@dataclass(eq=False)
class Look:
    """A reconciliation: its job, the loop's time that it took, the longest part of it without a pause, and its end."""

    job: str
    cpu_s: float = 0.0
    longest_s: float = 0.0
    ended_s: float = 0.0


LOOK: ContextVar[Look | None] = ContextVar("look", default=None)


class Probe:
    """The measurements since the last dump."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._clear()

    def _clear(self) -> None:
        self._began_s, self._cpu_s, self._longest_s = time.monotonic(), time.process_time(), 0.0
        self._looks: list[Look] = []
        self._collection_s = 0.0

    def install(self) -> None:
        """Measure each call of the loop, and which reconciliation it belongs to."""
        run, reconcile = Handle._run, Reconciler.reconcile

        def measured(handle: Any) -> None:
            began_s = time.thread_time()
            run(handle)
            spent_s = time.thread_time() - began_s
            self._longest_s = max(self._longest_s, spent_s)
            look = handle._context.get(LOOK)
            if look is not None and not look.ended_s:
                look.cpu_s += spent_s
                look.longest_s = max(look.longest_s, spent_s)
                if look in self._ending:
                    self._ending.remove(look)
                    look.ended_s = time.time()
                    self._looks.append(look)

        async def noted(reconciler: Reconciler, key: JobKey) -> ReconcileResult:
            look = Look(key.name)
            LOOK.set(look)
            try:
                return await reconcile(reconciler, key)
            finally:
                self._ending.append(look)  # its last step is still running

        def collected(phase: str, _: dict[str, int]) -> None:
            if phase == "start":
                self._collecting_s = time.thread_time()
            else:
                self._collection_s = max(self._collection_s, time.thread_time() - self._collecting_s)

        self._ending: list[Look] = []
        self._collecting_s = 0.0
        gc.callbacks.append(collected)
        Handle._run = measured  # type: ignore[assignment,method-assign]
        Reconciler.reconcile = noted  # type: ignore[assignment,method-assign]
        signal.signal(signal.SIGUSR1, self._dump)

    def _dump(self, *_: object) -> None:
        found = {
            "seconds": time.monotonic() - self._began_s,
            "cpu_s": time.process_time() - self._cpu_s,
            "longest_s": self._longest_s,
            "collection_s": self._collection_s,
            "looks": [[look.job, look.cpu_s, look.longest_s, look.ended_s] for look in self._looks],
        }
        draft = self._file.with_suffix(".draft")
        draft.write_text(json.dumps(found))
        draft.rename(self._file)
        self._clear()


if __name__ == "__main__":
    Probe(Path(sys.argv[1])).install()
    sys.exit(main())
