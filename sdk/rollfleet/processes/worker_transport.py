"""A worker's end of a job whose learner is another process of this machine.

Without threads: the learner's notices are read from shared memory whenever they matter, and it rings, which is a byte
on the socket, whenever there is a new one. A socket that ends says that the learner is gone.
"""

import select
import socket
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from rollfleet.data.batch import Fragment, frames_in
from rollfleet.data.write_quota import WriteQuota
from rollfleet.errors import JobEnded
from rollfleet.processes.control_block import ControlBlock, Notice, WeightsLocation
from rollfleet.processes.messages import BatchReady, BatchStored, WorkerMessage, encode_message
from rollfleet.processes.weights import SharedWeightsInbox
from rollfleet.schemes import Layout
from rollfleet.system.shared_memory import SharedMemory
from rollfleet.transports.worker_side import Sending
from rollfleet.wire.codec import Encoded
from rollfleet.wire.fragment_message import pack_fragment
from rollfleet_api.messages import BatchMeta, Control, LearnerPhase, WorkerStatus

ASK_AGAIN_S = 1.0
EPISODES = 100  # that the learner is told of, of those that ended in a batch
HEADROOM = 1.5  # of a place that has become too small


@dataclass(slots=True, eq=False)
class _Slot:
    """Where batches are written: a region, and the number of the batch that was written there last."""

    start: int
    memory: NDArray[np.uint8]
    sequence: int = -1


class ProcessWorkerTransport:
    """See `WorkerTransport`. One thread uses it.

    Args:
        line: Connected to the learner; closed with the transport.
        control_block: Where the learner's notices are.
        batches: Where batches go; this side lets it grow.
        weights: Where the learner puts weights.
        incarnation: Which life of its worker this is.
        most_waiting: Batches that may wait for the learner.
        quota: What may be written into the learner's replay buffer; None: batches go to the learner.

    Attributes:
        incarnation: Which life of this worker this is.
        on_leave: Called, once or more, when the learner wants this worker to leave.
    """

    def __init__(
        self,
        line: socket.socket,
        *,
        control_block: ControlBlock,
        batches: SharedMemory,
        weights: SharedMemory,
        incarnation: int,
        most_waiting: int,
        quota: WriteQuota | None = None,
    ) -> None:
        self._line, self._control_block, self._batches, self._weights = line, control_block, batches, weights
        self._most_waiting, self._quota = most_waiting, quota
        self._slots: list[_Slot] = []
        self._sequence = 0
        self._status: WorkerStatus | None = None
        self._inbox: SharedWeightsInbox | None = None
        self._poll = select.poll()
        self._poll.register(line, select.POLLIN)
        self.incarnation = incarnation
        self.on_leave: Callable[[], None] = lambda: None

    @property
    def control(self) -> Control | None:
        """The newest control message. A worker asks for it between any two steps of its environments."""
        self._control_block.beat()
        return self._notice().control

    @property
    def status(self) -> WorkerStatus | None:
        """What was reported last."""
        return self._status

    def follow_weights(self, layout: Layout) -> SharedWeightsInbox:
        """See `WorkerTransport`."""
        self._inbox = SharedWeightsInbox(self._weights, layout, self._location)
        return self._inbox

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """See `WorkerTransport`."""
        while not condition():
            self._wait(ASK_AGAIN_S)

    def send(self, fragment: Fragment, meta: BatchMeta) -> Sending:
        """Write a batch into shared memory, and tell the learner of it once there is room. It is stored at once.

        Where it goes into a replay buffer, it is stored once there is room.
        """
        self._done_with_weights()
        if self._quota is not None:
            into = partial(self._store, self._quota, fragment, meta, self._sequence)
            storing = _Admission(partial(self.when_there_is_room, self._sequence, into))
            self._sequence += 1
            return Sending(admitted=storing, stored=storing)
        encoded = pack_fragment(fragment, meta, checksum=False, folded=False)
        ready = BatchReady(sequence=self._sequence, start=self._write(encoded), nbytes=encoded.nbytes)
        self._sequence += 1
        stored: Future[None] = Future()
        stored.set_result(None)
        announce = partial(self.when_there_is_room, ready.sequence, partial(self._announce, ready))
        return Sending(admitted=_Admission(announce), stored=stored)

    def report(self, status: WorkerStatus) -> None:
        """Tell the learner now."""
        self._done_with_weights()
        self._control_block.beat()
        self._status = status
        with suppress(JobEnded):  # whoever waits, or sends a batch, hears of it
            self._tell(replace(status, time_s=time.time()))

    def close(self) -> None:
        """Leave."""
        self._line.close()
        self._control_block.close()
        self._batches.close()
        self._weights.close()

    def when_there_is_room(self, sequence: int, send: Callable[[], bool], timeout_s: float | None) -> bool:
        """Send a batch once there is room for it. False: there was none in time.

        Args:
            sequence: Its number.
            send: Does so; False: there is no room yet.
            timeout_s: How long to wait; None: for ever.

        Raises:
            JobEnded: There never will be.
        """
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while (notice := self._notice()).taken <= sequence - self._most_waiting or not send():
            if notice.control is not None and notice.control.phase is LearnerPhase.COMPLETE:
                raise JobEnded("the job is complete: nobody will take this batch")
            left_s = ASK_AGAIN_S if until is None else until - time.monotonic()
            if left_s <= 0:
                return False
            self._wait(min(left_s, ASK_AGAIN_S))
        return True

    def _announce(self, ready: BatchReady) -> bool:
        self._tell(ready)
        return True

    def _store(self, quota: WriteQuota, fragment: Fragment, meta: BatchMeta, sequence: int) -> bool:
        """Into the replay buffer, unless it is too old by now."""
        control, mine = self._notice().control, self._status.worker if self._status else 0
        meant = 0 if control is None else max(control.version, dict(control.some).get(mine, 0))
        kept = meta.version == 0 or meant - meta.version <= quota.max_lag
        if kept and not quota.write(frames_in(fragment)):
            return False
        self._tell(
            BatchStored(
                sequence=sequence,
                meta=meta,
                kept=kept,
                episode_returns=tuple(fragment.episode_returns[-EPISODES:].tolist()),
                episode_lengths=tuple(fragment.episode_lengths[-EPISODES:].tolist()),
            )
        )
        return True

    def _notice(self) -> Notice:
        notice = self._control_block.read()
        if notice.leave:
            self.on_leave()
        return notice

    def _location(self) -> WeightsLocation | None:
        return self._notice().weights

    def _done_with_weights(self) -> None:
        if self._inbox:
            self._inbox.let_go()

    def _write(self, encoded: Encoded) -> int:
        slot = self._free_slot(encoded.nbytes)
        slot.sequence = self._sequence
        view, end = slot.memory.data, 0
        for part in encoded.parts:
            view[end : end + part.nbytes] = part
            end += part.nbytes
        return slot.start

    def _free_slot(self, nbytes: int) -> "_Slot":
        """One whose batch the learner has taken, or a new one. There are `most_waiting` + 1 at most."""
        taken = self._notice().taken
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

    def _tell(self, message: WorkerMessage) -> None:
        try:
            self._line.sendall(encode_message(message))
        except OSError as error:
            raise JobEnded("the learner is gone") from error

    def _wait(self, timeout_s: float) -> None:
        """Until the learner rings, at most so long."""
        if not self._poll.poll(timeout_s * 1000):
            return
        try:
            rung = self._line.recv(4096)
        except OSError as error:
            raise JobEnded("the learner is gone") from error
        if not rung:
            raise JobEnded("the learner is gone")


class _Admission(Future[None]):
    """Whoever waits for it does the waiting: for room, and then sends the batch."""

    def __init__(self, send: Callable[[float | None], bool]) -> None:
        super().__init__()
        self._send = send
        self._attempt(0)

    def result(self, timeout: float | None = None) -> None:
        if not self.done():
            self._attempt(timeout)
        return super().result(0)

    def _attempt(self, timeout_s: float | None) -> None:
        if self._send(timeout_s):
            self.set_result(None)
