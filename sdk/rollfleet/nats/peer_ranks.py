"""What rank 0 of a learner knows of the others, and what each of these knows of rank 0."""

import threading
from dataclasses import replace

from rollfleet.nats.link import Link
from rollfleet.transports.learner_side import Elsewhere
from rollfleet_api.messages import Control, LearnerPhase, RankStatus, pack
from rollfleet_api.ranks import Rank

BEATS_MISSED = 10  # after so many, of one a second, a rank is not there


class PeerRanks:
    """The other ranks, as rank 0 hears of them. One that was not heard of for so many of its beats is not there.

    Args:
        rank: Rank 0.
    """

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self._processes: dict[int, dict[str, RankStatus]] = {}  # rank -> life -> newest; the last is present
        self._missed = dict.fromkeys(range(1, rank.ranks), 0)
        self._changed = threading.Condition()

    def hear(self, status: RankStatus) -> None:
        """A rank tells of itself. A life that was replaced may do so still."""
        if status.ranks != self._rank.ranks or status.rank not in self._missed:
            return
        with self._changed:
            processes = self._processes.setdefault(status.rank, {})
            processes[status.life] = status
            if status.life == list(processes)[-1]:
                self._missed[status.rank] = 0
            self._changed.notify_all()

    def tick(self) -> None:
        """A second has passed in which they could be heard."""
        with self._changed:
            for rank in self._missed:
                self._missed[rank] += 1
            self._changed.notify_all()

    def begin_anew(self) -> None:
        """Nothing could be heard for a while."""
        with self._changed:
            self._missed = dict.fromkeys(self._missed, 0)

    def elsewhere(self) -> Elsewhere:
        """What they have been handed, in all their lives."""
        frames = 0
        with self._changed:
            for processes in self._processes.values():
                of_rank = 0
                for status in processes.values():
                    of_rank = (status.restored or of_rank) + status.frames
                frames += of_rank
            told = [status for processes in self._processes.values() for status in processes.values()]
        return Elsewhere(
            frames=frames, batches=sum(each.batches for each in told), dropped=sum(each.dropped for each in told)
        )

    def wait_for(self, session: int, round_: int | None, timeout_s: float) -> bool:
        """Wait until nobody is behind this round of this session; None: until all have been heard of.

        False: somebody was, or was not, all the time.
        """

        def ready() -> bool:
            if round_ is None:
                return all(rank in self._processes for rank in self._there())
            return all(each.round >= round_ for each in self._following(session))

        with self._changed:
            return self._changed.wait_for(ready, timeout_s)

    def may_close(self, session: int, round_: int) -> bool:
        """Whether everybody has enough shares of this round of this session, or was handed it."""
        with self._changed:
            return all(max(each.round, each.enough) >= round_ for each in self._following(session))

    def _following(self, session: int) -> list[RankStatus]:
        """What they tell of this session: one that has not heard of it yet will."""
        unheard = RankStatus(rank=0, ranks=self._rank.ranks, life="")
        told = [self._present(rank) or unheard for rank in self._there()]
        return [status if status.session == session else unheard for status in told]

    def _there(self) -> list[int]:
        """Those that were heard of in time, or may be yet, and have not left."""
        present = {rank: self._present(rank) for rank, missed in self._missed.items() if missed < BEATS_MISSED}
        return [rank for rank, status in present.items() if status is None or not status.left]

    def _present(self, rank: int) -> RankStatus | None:
        processes = self._processes.get(rank)
        return processes[next(reversed(processes))] if processes else None


class LeaderView:
    """Rank 0, as another rank hears it; and what that one tells of itself.

    Args:
        link: The rank's connection.
        rank: Which one it is.
        life: Unlike that of any other process.
    """

    def __init__(self, link: Link, rank: Rank, life: str) -> None:
        self._link = link
        self._control: Control | None = None
        self._status = RankStatus(rank=rank.rank, ranks=rank.ranks, life=life)
        self._lock = threading.Lock()

    @property
    def control(self) -> Control | None:
        """What it said last; None: nothing yet."""
        return self._control

    def hear(self, control: Control, *, joining: bool = False) -> None:
        """It said this.

        Args:
            control: What was said.
            joining: Before we were there: its round was perhaps handed to whoever was this rank before us.
        """
        with self._lock:
            before = self._control
            if before and _order(control) < _order(before):
                return
            if before and before.session == control.session and before.phase is LearnerPhase.COMPLETE:
                return  # said once, for good
            self._control = control
            if before is None or before.session < control.session:
                last = control.round if joining else max(0, control.round - 1)
                self._status = replace(self._status, session=control.session, round=last, enough=0)
        self.tell()

    def report(self, status: RankStatus) -> None:
        """This holds of us from now on; rank 0 is told at once, and with each beat."""
        with self._lock:
            held = self._status
            session, round_ = max((held.session, held.round), (status.session, status.round))
            enough = status.enough if status.session == session else held.enough
            self._status = replace(status, life=held.life, session=session, round=round_, enough=enough, left=held.left)
        self.tell()

    def leave(self) -> None:
        """We need nothing any more."""
        with self._lock:
            self._status = replace(self._status, left=True)
        self.tell()

    def tell(self) -> None:
        """Tell rank 0 what holds of us. From any thread."""
        status = self._status
        if not self._link.closed:
            self._link.begin(self._link.tell(self._link.subjects.rank(status.rank), pack(status)))


def _order(control: Control) -> tuple[int, int, int]:
    return control.session, control.round, control.version
