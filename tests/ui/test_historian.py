"""The timeline and the series of a job, from its heartbeats."""

from collections.abc import Mapping
from dataclasses import replace

from rollfleet_api.messages import LearnerStatus, WorkerState, WorkerStatus
from rollfleet_ui.historian import Historian
from rollfleet_ui.history import JobHistory

LEARNER = LearnerStatus(session=1)


class Fleet:
    """A job that a historian looks at once a second."""

    def __init__(self, history: JobHistory) -> None:
        self.historian = Historian(history)
        self.time_s = 0.0
        self.learner: LearnerStatus | None = None
        self.workers: dict[int, WorkerStatus] = {}

    def look(self, problems: Mapping[int, str] | None = None) -> None:
        self.time_s += 1
        self.historian.look(
            self.time_s,
            learner=self.learner,
            workers=self.workers,
            ready=len(self.workers),
            frames_per_second=64.0,
            problems=problems,
        )

    def happened(self) -> list[tuple[str, str]]:
        return [(each.kind, each.text) for each in self.historian.history.moments]


def worker(index: int = 0, incarnation: int = 0, state: WorkerState = WorkerState.COLLECTING) -> WorkerStatus:
    return WorkerStatus(worker=index, incarnation=incarnation, state=state)


def test_the_timeline_tells_the_life_of_a_job() -> None:
    fleet = Fleet(JobHistory())
    fleet.look()
    fleet.learner, fleet.workers = LEARNER, {0: worker(0), 1: worker(1)}
    fleet.look()
    for version in (1, 2, 3):
        fleet.learner = replace(LEARNER, version=version)
        fleet.look()
    fleet.workers[1] = worker(1, state=WorkerState.FAILED)
    fleet.look({1: "worker 1 failed"})
    fleet.workers[1] = worker(1, incarnation=1)
    fleet.look({0: "worker 0 has been in one environment step for 12 s"})
    fleet.look({0: "worker 0 has been in one environment step for 13 s"})
    fleet.learner = replace(LEARNER, session=2, version=3)
    fleet.look()
    assert fleet.happened() == [
        ("LearnerConnected", "the learner is connected, session 1"),
        ("Version", "versions 1 to 3"),
        ("WorkerBack", "worker 1 is back, incarnation 1"),
        ("Straggler", "worker 0 has been in one environment step for 12 s"),
        ("LearnerReplaced", "another learner took over, session 2"),
        ("Version", "version 3"),
    ]


def test_what_happens_to_many_workers_at_once_is_one_moment() -> None:
    fleet = Fleet(JobHistory())
    fleet.workers = {index: worker(index) for index in range(1000)}
    fleet.look()
    fleet.workers = {index: worker(index, incarnation=1) for index in range(1000)}
    fleet.look()
    assert fleet.happened() == [("WorkerBack", "1000 workers are back")]
    assert fleet.historian.history.moments[0].detail.startswith("worker 0 is back, incarnation 1\n")
