"""The worker processes of one learner: started, listened to, started again, ended. Without threads."""

import os
import selectors
import signal
import time
from collections import deque
from collections.abc import Collection
from functools import partial
from typing import Any

from rollfleet.buffering.account import Account
from rollfleet.buffering.ring import Ring
from rollfleet.commands.children import describe_exit
from rollfleet.cpus import available_cpus
from rollfleet.errors import JobEnded, JobInvalid, MessageCorrupt, WorkerFailed
from rollfleet.learning.workload import Workload
from rollfleet.transports.arena import Arena
from rollfleet.transports.board import Notice, Posted
from rollfleet.transports.frames import Announced, Stored
from rollfleet.transports.parcel import wrap
from rollfleet.transports.seat import Seat
from rollfleet.transports.shared_weights import Shelf
from rollfleet.transports.starting import Process, StartMethod, signal_group
from rollfleet.weights import Snapshot
from rollfleet_api.job import CollectorJobSpec, Mode
from rollfleet_api.messages import Control, Parameter, WorkerState, WorkerStatus

LEAVE_GRACE_S = 3.0  # to end the environments in order
TERMINATE_GRACE_S = 1.0
EXIT_S = 5.0  # between the end of a socket and that of its process


class Crew:
    """What stays of a transport when nobody holds it: all that must be let go of.

    Args:
        workload: What the workers do.
        method: How they are started.
        max_restarts: How often each worker may be started again.
        quiet: Whether their warnings are left out.
        ring: The learner's replay buffer, if they write into it themselves.

    Attributes:
        members: Indices of the workers that there should be.
        seats: The newest life of every worker that has not left.
        statuses: What each worker said of itself last.
        announced: Batches that wait, in the order in which they were announced.
        fault: What went wrong; None: nothing did.
        account: What they write into the replay buffer; None: their batches go to the learner.
        leave_grace_s: How long they have to end in order.
    """

    def __init__(
        self, workload: Workload, method: StartMethod, *, max_restarts: int, quiet: bool, ring: Ring | None = None
    ) -> None:
        spec = workload.job.spec
        self._workload, self._method, self._max_restarts = workload, method, max_restarts
        self._pid = os.getpid()
        self._shelf = Shelf()
        self._parcel = _parcel(workload) if method == "spawn" else None
        self._settings: dict[str, Any] = {
            "most_waiting": spec.delivery.max_batches_ahead,
            # The threads that torch has are not in a fork, which would wait for them.
            "threads": max(1, available_cpus() // spec.workers) if method == "spawn" else 1,
            "quiet": quiet,
            "weights": self._shelf.arena.fileno(),
            "parcel": self._parcel.fileno() if self._parcel else -1,
        }
        self._selector = selectors.DefaultSelector()
        self._ending: list[Process] = []
        self._control: Control | None = None
        self._newest: Posted | None = None  # of what was meant for all
        self._started = 0
        self._closed = False
        self.members: set[int] = set()
        self.seats: dict[int, Seat] = {}
        self.statuses: dict[int, WorkerStatus] = {}
        self.announced: deque[tuple[Seat, Announced | Stored]] = deque()
        self.fault: BaseException | None = None
        self.leave_grace_s = LEAVE_GRACE_S
        self.account = None if ring is None else _account(ring, spec)
        if self.account is not None:
            memory, locks = self.account.ring.descriptors
            self._settings |= {"ring": memory, "ring_locks": locks, "account": self.account.number}

    def add(self, count: int) -> list[int]:
        """Start workers; their indices."""
        if self._closed:
            raise JobEnded("the transport is closed")
        indices = list(range(self._started, self._started + count))
        self._started += count
        for index in indices:
            self.members.add(index)
            self._start(index, 0, Notice(control=self._control, weights=self._newest))
        return indices

    def remove(self, workers: Collection[int]) -> None:
        """Have these leave."""
        if unknown := set(workers) - self.members:
            raise JobInvalid(f"there are no workers {sorted(unknown)}; there are {sorted(self.members)}")
        for index in workers:
            self.members.discard(index)
            self.seats[index].leaving = True
            self.seats[index].post(leave=True)

    def control(self, control: Control) -> None:
        """Tell all, also those that come later."""
        self._control = control
        for seat in self.seats.values():
            seat.post(control=control)

    def lend(self, parameters: tuple[Parameter, ...], nbytes: int) -> Snapshot | None:
        """See `Lends`."""
        return None if self._closed else self._shelf.lend(parameters, nbytes, self._in_use())

    def weights(self, version: int, snapshot: Snapshot, workers: frozenset[int] | None) -> bool:
        """Put a version where these workers, or all of them, find it.

        False: it was copied there, and the snapshot itself is no longer needed.
        """
        lies_there = self._shelf.is_lent(snapshot)
        posted = self._shelf.put(version, snapshot, self._in_use())
        if workers is None:
            self._newest = posted
        for index, seat in self.seats.items():
            if workers is None or index in workers:
                seat.post(weights=posted)
        return lies_there

    def taken(self, worker: int, incarnation: int) -> None:
        """One more batch of a worker is the learner's."""
        seat = self.seats.get(worker)
        if seat is not None and seat.incarnation == incarnation:
            seat.post(taken=seat.notice.taken + 1)

    def listen(self, timeout_s: float) -> None:
        """Hear what workers say; returns after the first that says something, at the latest after so long.

        Raises:
            JobEnded: This is a fork of the process whose workers these are.
        """
        if os.getpid() != self._pid:
            raise JobEnded("these workers belong to the process that this one is a fork of")
        if self._selector.get_map() is None:  # closed
            return
        for key, _ in self._selector.select(timeout_s):
            if key.fileobj in self._selector.get_map():  # else it went with another one of these
                key.data()
        self._ending = [process for process in self._ending if process.wait(0) is None]

    def close(self) -> None:
        """End all workers, give up all memory. Again is harmless; so is a copy in a forked process."""
        if self._closed or os.getpid() != self._pid:
            return
        self._closed = True
        for seat in list(self.seats.values()):  # a thread that fills a buffer may still listen
            seat.post(leave=True)
            seat.hang_up()
        self._end()
        self.announced.clear()
        self._selector.close()
        self._shelf.close()
        if self._parcel:
            self._parcel.close()
        if self.account:
            self.account.close()

    # --- inside ---

    def _in_use(self) -> list[Posted]:
        """What a worker may look for, now or when it is started."""
        told = (seat.notice.weights for seat in self.seats.values())
        return [posted for posted in (*told, self._newest) if posted]

    def _start(self, index: int, incarnation: int, notice: Notice) -> None:
        seat = Seat(self._method, index, incarnation, notice, self._settings, self._workload)
        self.seats[index] = seat
        self._selector.register(seat.line, selectors.EVENT_READ, partial(self._hear, seat))
        self._selector.register(seat.errors, selectors.EVENT_READ, partial(self._read_errors, seat))

    def _hear(self, seat: Seat) -> None:
        try:
            for told in seat.hear():
                if told is None:
                    self._gone(seat)
                elif isinstance(told, Announced | Stored):
                    self.announced.append((seat, told))
                else:
                    self.statuses[seat.index] = told
                    self._look_for_failure(seat, told)
        except MessageCorrupt as error:
            self._fail(error)

    def _read_errors(self, seat: Seat) -> None:
        if not seat.read_errors():
            self._selector.unregister(seat.errors)

    def _gone(self, seat: Seat) -> None:
        """Its socket has ended: it left, or it died."""
        if not seat.ended_well:
            signal_group(seat.process, signal.SIGKILL)  # what it has started and left behind
        code = seat.process.wait(0 if seat.ended_well else EXIT_S)
        if code is None:
            self._ending.append(seat.process)
        seat.read_errors()
        for file in (seat.line, seat.errors):
            if file in self._selector.get_map():
                self._selector.unregister(file)
        seat.close()
        del self.seats[seat.index]
        failed = not seat.ended_well or (seat.status is not None and seat.status.state is WorkerState.FAILED)
        if seat.leaving:
            self.statuses.pop(seat.index, None)
        if seat.leaving or self._closed or not failed:
            return
        if self._may_start_again(seat):
            self._start(seat.index, seat.incarnation + 1, Notice(control=self._control, weights=seat.notice.weights))
        elif not seat.ended_well:
            said = seat.last_words()
            ended = describe_exit(code) if code is not None else "it closed its connection"
            self._fail(WorkerFailed(seat.index, f"{ended}; it wrote last:\n{said}" if said else ended))

    def _look_for_failure(self, seat: Seat, status: WorkerStatus) -> None:
        if status.state is WorkerState.FAILED and not seat.leaving and not self._may_start_again(seat):
            self._fail(WorkerFailed(seat.index, status.error or "no reason given"))

    def _may_start_again(self, seat: Seat) -> bool:
        return seat.incarnation < self._max_restarts and not (seat.status is not None and seat.status.fatal)

    def _fail(self, error: BaseException) -> None:
        self.fault = self.fault or error

    def _end(self) -> None:
        """Until all have ended: in order, by SIGTERM, by SIGKILL."""
        until = time.monotonic() + self.leave_grace_s
        while any(seat.status for seat in list(self.seats.values())) and (left_s := until - time.monotonic()) > 0:
            self.listen(left_s)
        left = self._ending + [seat.process for seat in list(self.seats.values())]
        left = [process for process in left if process.wait(0) is None]
        if not self.seats:
            left = [process for process in left if process.wait(max(0.0, until - time.monotonic())) is None]
        for number, grace_s in ((signal.SIGTERM, TERMINATE_GRACE_S), (signal.SIGKILL, EXIT_S)):
            until = time.monotonic() + grace_s
            for process in left:
                signal_group(process, number)
            left = [process for process in left if process.wait(max(0.0, until - time.monotonic())) is None]
        for seat in list(self.seats.values()):
            seat.read_errors()
            seat.close()
        self.seats.clear()
        self._ending.clear()


def _account(ring: Ring, spec: CollectorJobSpec) -> Account:
    """In mode Sync rounds end when the learner opens none; in mode Async the workers must know themselves."""
    return Account.open(ring, limit=0 if spec.mode is Mode.SYNC else spec.collect.total_frames)


def _parcel(workload: Workload) -> Arena:
    data = wrap(workload)
    arena = Arena.create()
    arena.grow(len(data))
    os.pwrite(arena.fileno(), data, 0)
    return arena
