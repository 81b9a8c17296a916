"""A worker's side of a job whose learner is another process on this machine.

It has no threads. It reads the learner's instructions from shared memory whenever they matter. The learner sends a byte
on the socket, a wake-up, whenever they change. When the socket closes, the learner is gone.
"""

import select
import socket
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from rollfleet.data.batch import Fragment
from rollfleet.errors import JobEnded
from rollfleet.processes.control_block import ControlBlock, Instructions
from rollfleet.processes.messages import BatchReady, WorkerMessage, encode_message
from rollfleet.processes.weights import SharedWeightsInbox
from rollfleet.schemes import Layout
from rollfleet.system.shared_memory import SharedMemory
from rollfleet.transports.worker_side import PendingBatch
from rollfleet.wire.codec import Encoded
from rollfleet.wire.fragment_message import pack_fragment
from rollfleet_api.messages import Answer, Call, Control, Evaluation, WorkerStatus
from rollfleet_api.transfers import BatchMeta

CHECK_INTERVAL_S = 1.0
HEADROOM = 1.5  # size of a slot that replaces one that was too small, relative to it


@dataclass(slots=True, eq=False)
class _Slot:
    """A region for batches, and the number of the last batch written to it."""

    start: int
    memory: NDArray[np.uint8]
    sequence: int = -1


class ProcessWorkerTransport:
    """See `WorkerTransport`. One thread uses it.

    It grows the memory of batches, of which at most `max_batches_ahead` wait for the learner, and closes its connection
    to the learner.

    Attributes:
        incarnation: The worker's incarnation, from 0.
        on_leave: Called, once or more, when the learner asks this worker to leave.
    """

    def __init__(
        self,
        connection: socket.socket,
        *,
        control_block: ControlBlock,
        batches: SharedMemory,
        weights: SharedMemory,
        incarnation: int,
        max_batches_ahead: int,
    ) -> None:
        self._connection, self._control_block = connection, control_block
        self._batches, self._weights = batches, weights
        self._max_batches_ahead = max_batches_ahead
        self._slots: list[_Slot] = []
        self._sequence = 0
        self._waiting: deque[tuple[BatchReady, Future[None]]] = deque()  # for the learner's capacity
        self._inbox: SharedWeightsInbox | None = None
        self._poll = select.poll()
        self._poll.register(connection, select.POLLIN)
        self._answered = 0  # the number of the last call
        self.incarnation = incarnation
        self.on_leave: Callable[[], None] = lambda: None

    @property
    def control(self) -> Control | None:
        """See `WorkerTransport`. A worker reads it between any two steps of its environments."""
        self._control_block.beat()
        return self._instructions().control

    @property
    def call(self) -> Call | None:
        """See `WorkerTransport`."""
        call = self._instructions().call
        return call if call and call.number != self._answered else None

    def answer(self, answer: Answer) -> None:
        """See `WorkerTransport`."""
        self._answered = answer.number
        self._send(answer)

    def follow_weights(self, layout: Layout) -> SharedWeightsInbox:
        """See `WorkerTransport`."""
        self._inbox = SharedWeightsInbox(self._weights, layout, lambda: self._instructions().weights)
        return self._inbox

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """See `WorkerTransport`."""
        while True:
            self._announce()
            if condition():
                return
            self._wait(CHECK_INTERVAL_S)

    def send(self, fragment: Fragment, meta: BatchMeta) -> PendingBatch:
        """Write a batch into shared memory. Announce it when the learner has capacity."""
        self._release_weights()
        encoded = pack_fragment(fragment, meta, checksum=False, folded=False)
        ready = BatchReady(sequence=self._sequence, start=self._write(encoded), nbytes=encoded.nbytes)
        self._sequence += 1
        announced: Future[None] = Future()
        self._waiting.append((ready, announced))
        self._announce()
        return PendingBatch(admitted=announced, delivered=announced)

    def report(self, status: WorkerStatus) -> None:
        """See `WorkerTransport`."""
        self._release_weights()
        self._control_block.beat()
        with suppress(JobEnded):  # the next wait, or the next batch, raises it
            self._send(replace(status, time_s=time.time()))

    def evaluated(self, evaluation: Evaluation) -> None:
        """See `EvaluationTransport`."""
        self._send(evaluation)

    def close(self) -> None:
        """See `WorkerTransport`."""
        self._connection.close()
        self._control_block.close()
        self._batches.close()
        self._weights.close()

    def _announce(self) -> None:
        """Announce the batches for which the learner has capacity."""
        taken = self._instructions().taken
        while self._waiting and self._waiting[0][0].sequence < taken + self._max_batches_ahead:
            ready, admitted = self._waiting.popleft()
            self._send(ready)
            admitted.set_result(None)

    def _instructions(self) -> Instructions:
        instructions = self._control_block.read()
        if instructions.leave:
            self.on_leave()
        return instructions

    def _release_weights(self) -> None:
        if self._inbox:
            self._inbox.release()

    def _write(self, encoded: Encoded) -> int:
        slot = self._free_slot(encoded.nbytes)
        slot.sequence = self._sequence
        view, end = slot.memory.data, 0
        for part in encoded.parts:
            view[end : end + part.nbytes] = part
            end += part.nbytes
        return slot.start

    def _free_slot(self, nbytes: int) -> "_Slot":
        """Return a slot whose batch is taken, or a new one. There are at most `max_batches_ahead` + 1."""
        taken = self._instructions().taken
        for slot in self._slots:
            if slot.sequence < taken:
                if slot.memory.nbytes >= nbytes:
                    return slot
                self._slots.remove(slot)
                nbytes = max(nbytes, int(slot.memory.nbytes * HEADROOM))
                break
        start, capacity = self._batches.grow(nbytes)
        slot = _Slot(start, self._batches.map(start, capacity))
        self._slots.append(slot)
        return slot

    def _send(self, message: WorkerMessage) -> None:
        try:
            self._connection.sendall(encode_message(message))
        except OSError as error:
            raise JobEnded("the learner is gone") from error

    def _wait(self, timeout_s: float) -> None:
        """Wait for a wake-up of the learner, at most `timeout_s`."""
        if not self._poll.poll(timeout_s * 1000):
            return
        with suppress(OSError):
            if self._connection.recv(4096):
                return
        raise JobEnded("the learner is gone")
