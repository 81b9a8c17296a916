"""What rank 0 of a learner knows of the other ranks, and what each of these knows of rank 0."""

import threading
from collections.abc import Callable
from dataclasses import replace

from rollfleet.nats.link import Link
from rollfleet.transports.learner_side import PeerTotals
from rollfleet_api.messages import Control, LearnerPhase, RankStatus, pack
from rollfleet_api.ranks import Rank

MISSED_HEARTBEATS = 10  # a rank is absent after this many, at one a second


class PeerRanks:
    """The other ranks, by the heartbeats that rank 0 receives. A rank is absent after `MISSED_HEARTBEATS`.

    A rank may be restarted: each of its processes has its own id (`RankStatus.process`). The newest process is present.

    Args:
        rank: Rank 0.
        check: Raises an error that happened in the background.

    Example:
        >>> peers = PeerRanks(Rank(0, 2))
        >>> peers.hear(RankStatus(rank=1, ranks=2, process="a", session=1, round=3))
        >>> peers.wait_for_round(1, 3, timeout_s=0)
        True
    """

    def __init__(self, rank: Rank, check: Callable[[], None] = lambda: None) -> None:
        self._rank, self._check = rank, check
        self._processes: dict[int, dict[str, RankStatus]] = {}  # rank -> process -> newest status; the last is present
        self._missed = dict.fromkeys(range(1, rank.ranks), 0)
        self._changed = threading.Condition()

    def hear(self, status: RankStatus) -> None:
        """Record a rank's heartbeat. A process that was replaced may still send some."""
        if status.ranks != self._rank.ranks or status.rank not in self._missed:
            return
        with self._changed:
            processes = self._processes.setdefault(status.rank, {})
            processes[status.process] = status
            if status.process == list(processes)[-1]:
                self._missed[status.rank] = 0
            self._changed.notify_all()

    def tick(self) -> None:
        """Count a second in which heartbeats could arrive."""
        with self._changed:
            for rank in self._missed:
                self._missed[rank] += 1
            self._changed.notify_all()

    def forget_missed(self) -> None:
        """Forget missed heartbeats: none could arrive for a while."""
        with self._changed:
            self._missed = dict.fromkeys(self._missed, 0)

    def totals(self) -> PeerTotals:
        """See `Peers`."""
        frames = 0
        with self._changed:
            for processes in self._processes.values():
                of_rank = 0
                for status in processes.values():
                    of_rank = (status.restored or of_rank) + status.frames
                frames += of_rank
            statuses = [status for processes in self._processes.values() for status in processes.values()]
        return PeerTotals(
            frames=frames,
            batches=sum(status.batches for status in statuses),
            dropped=sum(status.dropped for status in statuses),
        )

    def wait_for_round(self, session: int, round_: int | None, *, timeout_s: float) -> bool:
        """See `Peers`."""
        self._check()
        with self._changed:
            return self._changed.wait_for(
                lambda: not any(self._is_behind(rank, session, round_) for rank in self._missed), timeout_s
            )

    def _is_behind(self, rank: int, session: int, round_: int | None) -> bool:
        processes = self._processes.get(rank)
        newest = processes[next(reversed(processes))] if processes else None
        if self._missed[rank] >= MISSED_HEARTBEATS or (newest and newest.left):
            return False
        if newest is None or round_ is None:
            return newest is None
        return newest.session != session or newest.round < round_


class LeaderView:
    """Rank 0 as another rank hears it, and that rank's own status. See `Leader`."""

    def __init__(self, link: Link, rank: Rank, process: str) -> None:
        self._link = link
        self._control: Control | None = None
        self._status = RankStatus(rank=rank.rank, ranks=rank.ranks, process=process)
        self._lock = threading.Lock()

    @property
    def control(self) -> Control | None:
        """See `Leader`."""
        return self._control

    def hear(self, control: Control, *, joining: bool = False) -> None:
        """Record a control message of rank 0.

        `joining`: it is older than this process, whose predecessor may have received its round.
        """
        with self._lock:
            before = self._control
            if before and before.is_newer_than(control):
                return
            if before and before.session == control.session and before.phase is LearnerPhase.COMPLETE:
                return  # a session never continues after its end
            self._control = control
            if before is None or before.session < control.session:
                last = control.round if joining else max(0, control.round - 1)
                self._status = replace(self._status, session=control.session, round=last)
        self.send()

    def report(self, status: RankStatus) -> None:
        """See `Leader`."""
        with self._lock:
            held = self._status
            session, round_ = max((held.session, held.round), (status.session, status.round))
            self._status = replace(status, process=held.process, session=session, round=round_, left=held.left)
        self.send()

    def leave(self) -> None:
        """Report that this rank needs nothing any more."""
        with self._lock:
            self._status = replace(self._status, left=True)
        self.send()

    def send(self) -> None:
        """Send the status to rank 0. From any thread."""
        status = self._status
        if not self._link.closed:
            self._link.begin(self._link.publish(self._link.subjects.rank(status.rank), pack(status)))
