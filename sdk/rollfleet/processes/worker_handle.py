"""One life of a worker process, as the learner sees it."""

import os
import socket
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rollfleet.processes.control_block import ControlBlock, Notice
from rollfleet.processes.fork_safety import close_in_children
from rollfleet.processes.launch import StartMethod, WorkerProcess, main_thread_alone, start
from rollfleet.processes.messages import BatchReady, MessageReader, WorkerMessage
from rollfleet.processes.worker_main import Assignment
from rollfleet.system.shared_memory import SharedMemory
from rollfleet_api.messages import WorkerState, WorkerStatus

if TYPE_CHECKING:
    from rollfleet.transports.workload import Workload

LAST_BYTES = 8000  # of what a worker wrote to standard error
_LAST_STATES = (WorkerState.COMPLETE, WorkerState.LEFT, WorkerState.FAILED)


class WorkerHandle:
    """A started worker: its process, what it is told, what it says.

    Args:
        method: How it is started.
        index: Which worker it is.
        incarnation: Which life of it this is.
        notice: What it is told from the beginning.
        settings: The other fields of its `Assignment`.
        workload: For a fork.

    Attributes:
        index: Which worker it is.
        incarnation: Which life of it this is.
        line: Socket to it, not blocking; what it says can be read.
        errors: Descriptor of what it writes to standard error, not blocking.
        status: What it said of itself last; None: it has not begun.
        notice: What it was told last.
        leaving: Whether it is to leave.
    """

    def __init__(
        self,
        method: StartMethod,
        index: int,
        incarnation: int,
        notice: Notice,
        settings: dict[str, Any],
        workload: "Workload | None",
    ) -> None:
        self.index, self.incarnation = index, incarnation
        self.status: WorkerStatus | None = None
        self.leaving = False
        self.notice = notice
        self._frames = MessageReader()
        self._batches = SharedMemory.create()
        self._control_block = ControlBlock.create()
        self._control_block.write(notice)
        self._regions: dict[int, NDArray[np.uint8]] = {}
        self._last: deque[str] = deque()
        self.line, theirs = socket.socketpair()
        self.line.setblocking(False)
        close_in_children(self.line)
        self.errors, errors = os.pipe()
        os.set_blocking(self.errors, False)
        try:
            assignment = Assignment(
                index=index,
                incarnation=incarnation,
                parent=os.getpid() if main_thread_alone() else 0,
                line=theirs.fileno(),
                control_block=self._control_block.fileno(),
                batches=self._batches.fileno(),
                **settings,
            )
            self.process: WorkerProcess = start(method, assignment, errors, workload)
        except BaseException:
            self.close()
            raise
        finally:
            theirs.close()
            os.close(errors)

    @property
    def ended_well(self) -> bool:
        """Whether what it said last was its last word."""
        return self.status is not None and self.status.state in _LAST_STATES

    @property
    def in_step_s(self) -> float:
        """For how many seconds it has been in the present step of its environments; 0: in none."""
        collecting = self.status is not None and self.status.state is WorkerState.COLLECTING
        return self._control_block.since_beat_s() if collecting else 0.0

    def post(self, **changes: Any) -> None:
        """Change what it is to know, and ring."""
        self.notice = replace(self.notice, **changes)
        self._control_block.write(self.notice)
        with suppress(OSError):  # it has not listened for so long that more would not wake it; or it is gone
            self.line.send(b"\0")

    def hear(self) -> Iterator[WorkerMessage | None]:
        """What it has said since; None at the end: it is gone.

        Raises:
            MessageCorrupt: Its bytes are no messages.
        """
        try:
            data = self.line.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            yield None
        for told in self._frames.add(data):
            if isinstance(told, WorkerStatus):
                self.status = told
            yield told

    def read_errors(self) -> bool:
        """Pass on what it wrote to standard error. False: it never will again."""
        while True:
            try:
                data = os.read(self.errors, 1 << 16)
            except BlockingIOError:
                return True
            if not data:
                return False
            text = data.decode(errors="replace")
            self._last.append(text)
            while sum(map(len, self._last)) - len(self._last[0]) > LAST_BYTES:
                self._last.popleft()
            with suppress(OSError, ValueError, AttributeError):  # ours may be closed, or not be there
                sys.stderr.write(text)

    def last_words(self) -> str:
        """The end of what it wrote to standard error."""
        return "".join(self._last)[-LAST_BYTES:].strip()

    def region(self, ready: BatchReady) -> NDArray[np.uint8]:
        """The bytes of a batch, where the worker wrote them.

        Raises:
            MessageCorrupt: There are none.
        """
        memory = self._regions.get(ready.start)
        if memory is None or memory.nbytes < ready.nbytes:
            memory = self._regions[ready.start] = self._batches.map(ready.start, ready.nbytes)
        return memory[: ready.nbytes]

    def hang_up(self) -> None:
        """Tell it that nobody listens any more; what it says can still be read."""
        with suppress(OSError):
            self.line.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Give everything up but the process, and the batches that are still to be read."""
        self.line.close()
        self._control_block.close()
        if self.errors >= 0:
            os.close(self.errors)
            self.errors = -1
