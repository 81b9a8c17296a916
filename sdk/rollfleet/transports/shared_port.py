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

from rollfleet.batch import Fragment, frames_in
from rollfleet.buffering.account import Account
from rollfleet.codec import Encoded
from rollfleet.errors import JobEnded
from rollfleet.schemes import Layout
from rollfleet.transports.arena import Arena
from rollfleet.transports.board import Board, Notice, Posted
from rollfleet.transports.fragments import pack_fragment
from rollfleet.transports.frames import Announced, Stored, Told, frame
from rollfleet.transports.port import Sending
from rollfleet.transports.shared_weights import SharedInbox
from rollfleet_api.messages import BatchMeta, Control, Phase, WorkerStatus

ASK_AGAIN_S = 1.0
EPISODES = 100  # that the learner is told of, of those that ended in a batch
HEADROOM = 1.5  # of a place that has become too small


@dataclass(slots=True, eq=False)
class _Place:
    """Where batches are written: a region, and the number of the batch that was written there last."""

    start: int
    memory: NDArray[np.uint8]
    sequence: int = -1


class SharedPort:
    """See `Port`. One thread uses it.

    Args:
        line: Connected to the learner; closed with the port.
        board: Where the learner's notices are.
        batches: Where batches go; this side lets it grow.
        weights: Where the learner puts weights.
        incarnation: Which life of its worker this is.
        most_waiting: Batches that may wait for the learner.
        account: What may be written into the learner's replay buffer; None: batches go to the learner.

    Attributes:
        incarnation: Which life of this worker this is.
        on_leave: Called, once or more, when the learner wants this worker to leave.
    """

    def __init__(
        self,
        line: socket.socket,
        *,
        board: Board,
        batches: Arena,
        weights: Arena,
        incarnation: int,
        most_waiting: int,
        account: Account | None = None,
    ) -> None:
        self._line, self._board, self._batches, self._weights = line, board, batches, weights
        self._most_waiting, self._account = most_waiting, account
        self._places: list[_Place] = []
        self._sequence = 0
        self._status: WorkerStatus | None = None
        self._inbox: SharedInbox | None = None
        self._poll = select.poll()
        self._poll.register(line, select.POLLIN)
        self.incarnation = incarnation
        self.on_leave: Callable[[], None] = lambda: None

    @property
    def control(self) -> Control | None:
        """The newest control message. A worker asks for it between any two steps of its environments."""
        self._board.beat()
        return self._notice().control

    @property
    def status(self) -> WorkerStatus | None:
        """What was reported last."""
        return self._status

    def follow_weights(self, layout: Layout) -> SharedInbox:
        """See `Port`."""
        self._inbox = SharedInbox(self._weights, layout, self._posted)
        return self._inbox

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """See `Port`."""
        while not condition():
            self._wait(ASK_AGAIN_S)

    def send(self, fragment: Fragment, meta: BatchMeta) -> Sending:
        """Write a batch into shared memory, and tell the learner of it once there is room. It is stored at once.

        Where it goes into a replay buffer, it is stored once there is room.
        """
        self._done_with_weights()
        if self._account is not None:
            into = partial(self._store, self._account, fragment, meta, self._sequence)
            storing = _Admission(partial(self.when_there_is_room, self._sequence, into))
            self._sequence += 1
            return Sending(admitted=storing, stored=storing)
        encoded = pack_fragment(fragment, meta, checksum=False, folded=False)
        announced = Announced(sequence=self._sequence, start=self._write(encoded), nbytes=encoded.nbytes)
        self._sequence += 1
        stored: Future[None] = Future()
        stored.set_result(None)
        announce = partial(self.when_there_is_room, announced.sequence, partial(self._announce, announced))
        return Sending(admitted=_Admission(announce), stored=stored)

    def report(self, status: WorkerStatus) -> None:
        """Tell the learner now."""
        self._done_with_weights()
        self._board.beat()
        self._status = status
        with suppress(JobEnded):  # whoever waits, or sends a batch, hears of it
            self._tell(replace(status, time_s=time.time()))

    def close(self) -> None:
        """Leave."""
        self._line.close()
        self._board.close()
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
            if notice.control is not None and notice.control.phase is Phase.COMPLETE:
                raise JobEnded("the job is complete: nobody will take this batch")
            left_s = ASK_AGAIN_S if until is None else until - time.monotonic()
            if left_s <= 0:
                return False
            self._wait(min(left_s, ASK_AGAIN_S))
        return True

    def _announce(self, announced: Announced) -> bool:
        self._tell(announced)
        return True

    def _store(self, account: Account, fragment: Fragment, meta: BatchMeta, sequence: int) -> bool:
        """Into the replay buffer, unless it is too old by now."""
        control, mine = self._notice().control, self._status.worker if self._status else 0
        meant = 0 if control is None else max(control.version, dict(control.some).get(mine, 0))
        kept = meta.version == 0 or meant - meta.version <= account.max_lag
        if kept and not account.write(frames_in(fragment)):
            return False
        self._tell(
            Stored(
                sequence=sequence,
                meta=meta,
                kept=kept,
                episode_returns=tuple(fragment.episode_returns[-EPISODES:].tolist()),
                episode_lengths=tuple(fragment.episode_lengths[-EPISODES:].tolist()),
            )
        )
        return True

    def _notice(self) -> Notice:
        notice = self._board.read()
        if notice.leave:
            self.on_leave()
        return notice

    def _posted(self) -> Posted | None:
        return self._notice().weights

    def _done_with_weights(self) -> None:
        if self._inbox:
            self._inbox.let_go()

    def _write(self, encoded: Encoded) -> int:
        place = self._free_place(encoded.nbytes)
        place.sequence = self._sequence
        view, end = place.memory.data, 0
        for part in encoded.parts:
            view[end : end + part.nbytes] = part
            end += part.nbytes
        return place.start

    def _free_place(self, nbytes: int) -> "_Place":
        """One whose batch the learner has taken, or a new one. There are `most_waiting` + 1 at most."""
        taken = self._notice().taken
        for place in self._places:
            if place.sequence < taken:
                if place.memory.nbytes >= nbytes:
                    return place
                self._places.remove(place)
                nbytes = max(nbytes, int(place.memory.nbytes * HEADROOM))
                break
        start, capacity = self._batches.grow(nbytes)
        place = _Place(start, self._batches.map(start, capacity))
        self._places.append(place)
        return place

    def _tell(self, message: Told) -> None:
        try:
            self._line.sendall(frame(message))
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
