"""One incarnation of a worker process, as the learner sees it."""

import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rollfleet.processes.control_block import ControlBlock, Instructions
from rollfleet.processes.launch import StartMethod, start
from rollfleet.processes.messages import BatchReady, MessageReader, WorkerMessage
from rollfleet.processes.worker_main import WorkerArguments
from rollfleet.system.child_processes import ChildProcess, close_in_children, outlives_children
from rollfleet.system.shared_memory import SharedMemory
from rollfleet_api.messages import WorkerState, WorkerStatus
from rollfleet_api.permissions import Role

if TYPE_CHECKING:
    from rollfleet.transports.workload import Workload

LONGEST_STACK_BYTES = 8000


@dataclass(frozen=True, slots=True)
class Seat:
    """The place of a worker: its role, and its index among the workers of this role."""

    role: Role
    index: int


class WorkerHandle:
    """A started worker: its process, its instructions, its messages.

    Attributes:
        seat: Its role, and its index among the workers of this role.
        incarnation: The worker's incarnation, from 0.
        connection: Non-blocking socket to the worker.
        status: The last status that it reported; None: none yet.
        instructions: Its newest instructions.
    """

    def __init__(
        self,
        method: StartMethod,
        seat: Seat,
        incarnation: int,
        instructions: Instructions,
        settings: dict[str, Any],
        workload: "Workload | None",
    ) -> None:
        self.seat, self.index, self.incarnation = seat, seat.index, incarnation
        self.status: WorkerStatus | None = None
        self.instructions = instructions
        self._messages = MessageReader()
        self._batches = SharedMemory.create()
        self._control_block = ControlBlock.create()
        self._control_block.write(instructions)
        self._regions: dict[int, NDArray[np.uint8]] = {}
        self._crash = SharedMemory.create()
        self.connection, theirs = socket.socketpair()
        self.connection.setblocking(False)
        close_in_children(self.connection)
        try:
            arguments = WorkerArguments(
                index=seat.index,
                evaluation=seat.role is Role.EVALUATION,
                incarnation=incarnation,
                parent=os.getpid() if outlives_children() else 0,
                connection=theirs.fileno(),
                control_block=self._control_block.fileno(),
                batches=self._batches.fileno(),
                crash=self._crash.fileno(),
                **settings,
            )
            self.process: ChildProcess = start(method, arguments, workload)
        except BaseException:
            self.close()
            raise
        finally:
            theirs.close()

    @property
    def ended_well(self) -> bool:
        """Whether its last report was a final one: complete, left or failed."""
        return self.status is not None and self.status.state.ended

    @property
    def in_step_s(self) -> float:
        """Seconds since the present step of its environments began; 0: it is not collecting."""
        collecting = self.status is not None and self.status.state is WorkerState.COLLECTING
        return self._control_block.since_beat_s() if collecting else 0.0

    def instruct(self, **changes: Any) -> None:
        """Change its instructions, and wake it."""
        self.instructions = replace(self.instructions, **changes)
        self._control_block.write(self.instructions)
        with suppress(OSError):  # its socket is full of wake-ups, or it has ended
            self.connection.send(b"\0")

    def receive(self) -> Iterator[WorkerMessage | None]:
        """Yield its new messages, then None if it has closed the connection.

        Raises:
            MessageCorrupt: Its bytes are not valid messages.
        """
        try:
            data = self.connection.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            yield None
        for message in self._messages.add(data):
            if isinstance(message, WorkerStatus):
                self.status = message
            yield message

    def crash(self) -> str:
        """Return the stack of a worker that a fault of the machine's code ended; empty: it ended otherwise."""
        found = os.pread(self._crash.fileno(), LONGEST_STACK_BYTES, 0).decode(errors="replace")
        return found.partition("\nExtension modules: ")[0].strip()

    def region(self, ready: BatchReady) -> NDArray[np.uint8]:
        """Return the bytes of a batch, in the memory that the worker writes: uint8 `[nbytes]`.

        Raises:
            MessageCorrupt: The region does not exist.
        """
        memory = self._regions.get(ready.start)
        if memory is None or memory.nbytes < ready.nbytes:
            memory = self._regions[ready.start] = self._batches.map(ready.start, ready.nbytes)
        return memory[: ready.nbytes]

    def hang_up(self) -> None:
        """Close our direction of the connection. The worker's messages can still be read."""
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Release everything but the process and the batches that are not yet read."""
        self.connection.close()
        self._control_block.close()
        self._crash.close()
