"""What happened to a job, in bounds: its series, and a timeline of at most 300 moments."""

from collections.abc import Mapping
from typing import Final

from rollfleet_api.messages import LearnerStatus, WorkerState, WorkerStatus
from rollfleet_api.text import one_line
from rollfleet_api.waits import Shares
from rollfleet_ui.model import Happened, Moment
from rollfleet_ui.series import Series

_PARTS: Final = {"mean.": "mean", "min.": "min", "max.": "max"}
"""The series of a number of episodes are each of these and its name, and what they have of its statistic."""
_KNOWN: Final = frozenset({"mean.return", "min.last_version", "max.last_version"})
"""Series that the page does not show: `meanReturn` is the first."""
MAX_MOMENTS: Final = 300
MAX_TEXT, MAX_DETAIL, MAX_DETAILS = 300, 4_000, 20_000
"""The most characters of a moment's text, of its detail, and of all details; the newest ones stay."""
MOST_AT_ONCE: Final = 5
"""As many moments of one kind at a time are shown one by one."""


class JobHistory:
    """The series and the timeline of a job.

    Call `look` at a steady pace, such as once a second or once in ten.

    Attributes:
        series: The series.
        moments: The timeline, the oldest first.

    Example:
        >>> history = JobHistory()
        >>> history.look(0.0, learner=LearnerStatus(session=1), workers={}, ready=2, frames_per_second=0.0)
        >>> history.moments[0].text
        'the learner is connected, session 1'
    """

    def __init__(self) -> None:
        self.series = Series()
        self.moments: list[Moment] = []
        self._learner: LearnerStatus | None = None
        self._version = 0
        self._workers: Mapping[int, WorkerStatus] = {}
        self._stuck: frozenset[int] = frozenset()
        self._versions: tuple[int, int] | None = None  # of the newest moment, if it is about versions

    def look(
        self,
        now_s: float,
        *,
        learner: LearnerStatus | None,
        workers: Mapping[int, WorkerStatus],
        ready: int,
        frames_per_second: float,
        waits: Shares | None = None,
        problems: Mapping[int, str] | None = None,
    ) -> None:
        """Add the newest heartbeats, those of workers by index.

        `ready` workers run and report. `waits`: as in `Snapshot`. `problems` describe workers that hang or are silent,
        by index.
        """
        values: dict[str, float | None] = {"workersReady": ready, "framesPerSecond": frames_per_second}
        if waits:
            values |= zip(("learnerWait", "workersWaitLearner", "workersWaitWeights"), waits, strict=False)
        if learner:
            values |= {
                "frames": learner.frames,
                "meanReturn": learner.mean_return,
                "episodes": learner.episodes,
                "version": learner.version,
                "lag": learner.lag,
            }
            for prefix, part in _PARTS.items():
                for name, each in learner.episode_statistics.items():
                    if f"{prefix}{name}" not in _KNOWN:
                        values[f"{prefix}{name}"] = getattr(each, part)
        self.series.add(now_s, values)
        self._note_learner(now_s, learner)
        self._note_workers(now_s, workers, problems or {})
        self._learner, self._workers = learner, dict(workers)

    def _note_learner(self, now_s: float, learner: LearnerStatus | None) -> None:
        known = self._learner
        if learner is None:
            return
        session = f"session {learner.session}"
        if known is None:
            self.note(now_s, Happened.LEARNER_CONNECTED, f"the learner is connected, {session}")
        elif learner.session > known.session:
            self.note(now_s, Happened.LEARNER_REPLACED, f"another learner took over, {session}")
        if learner.version > self._version or (known and learner.session > known.session):
            self._note_version(now_s, learner.version)
        self._version = learner.version

    def _note_version(self, now_s: float, version: int) -> None:
        """Note a version. Versions with nothing else between them are one moment."""
        newest = self.moments[-1] if self.moments else None
        first = version
        if newest and newest.kind == Happened.VERSION and self._versions:
            first = self._versions[0]
            self.moments.pop()
        self._versions = (first, version)
        text = f"version {version}" if first == version else f"versions {first} to {version}"
        self.note(now_s, Happened.VERSION, text)

    def _note_workers(self, now_s: float, workers: Mapping[int, WorkerStatus], problems: Mapping[int, str]) -> None:
        back = [
            (f"worker {index} is back, incarnation {beat.incarnation}", "")
            for index, beat in workers.items()
            if (old := self._workers.get(index)) and beat.incarnation > old.incarnation
        ]
        stuck = [
            (problems[index], "")
            for index in problems.keys() - self._stuck
            if index not in workers or workers[index].state is not WorkerState.FAILED
        ]
        self.note_all(now_s, Happened.WORKER_BACK, back, "workers are back")
        self.note_all(now_s, Happened.STRAGGLER, stuck, "workers hang or are silent")
        self._stuck = frozenset(problems)

    def note(self, time_s: float, kind: str, text: str, detail: str = "") -> None:
        """Add a moment. Of too many moments, the oldest that is a version goes first."""
        moment = Moment(time=time_s, kind=kind, text=_clip(text, MAX_TEXT), detail=_clip(detail, MAX_DETAIL))
        self.moments.append(moment)
        if len(self.moments) > MAX_MOMENTS:
            self.moments.remove(next((old for old in self.moments if old.kind == Happened.VERSION), self.moments[0]))
        left = MAX_DETAILS
        for index in reversed(range(len(self.moments) if detail else 0)):
            left -= len(self.moments[index].detail)
            if left < 0 and self.moments[index].detail:
                self.moments[index] = self.moments[index].model_copy(update={"detail": ""})

    def note_all(self, now_s: float, kind: Happened, found: list[tuple[str, str]], summary: str) -> None:
        """Note moments of one kind, each a text and a detail; as one if they are many."""
        if len(found) > MOST_AT_ONCE:
            found = [(f"{len(found)} {summary}", "\n".join(sorted(text for text, _ in found)))]
        for text, detail in sorted(found):
            self.note(now_s, kind, one_line(text), detail)


def _clip(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
