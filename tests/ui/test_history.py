"""The timeline of a job, from its heartbeats, in bounds."""

from collections.abc import Mapping
from dataclasses import replace

from rollfleet_api.messages import LearnerStatus, WorkerState, WorkerStatus
from rollfleet_ui.history import MAX_DETAIL, MAX_MOMENTS, MAX_TEXT, JobHistory
from rollfleet_ui.model import Happened

LEARNER = LearnerStatus(session=1)


class Fleet:
    """A job whose history takes in its heartbeats once a second."""

    def __init__(self) -> None:
        self.history = JobHistory()
        self.time_s = 0.0
        self.learner: LearnerStatus | None = None
        self.workers: dict[int, WorkerStatus] = {}

    def look(self, problems: Mapping[int, str] | None = None) -> None:
        self.time_s += 1
        self.history.look(
            self.time_s,
            learner=self.learner,
            workers=self.workers,
            ready=len(self.workers),
            frames_per_second=64.0,
            problems=problems,
        )

    def happened(self) -> list[tuple[str, str]]:
        return [(each.kind, each.text) for each in self.history.moments]


def worker(index: int = 0, incarnation: int = 0, state: WorkerState = WorkerState.COLLECTING) -> WorkerStatus:
    return WorkerStatus(worker=index, incarnation=incarnation, state=state)


def test_the_timeline_tells_the_life_of_a_job() -> None:
    fleet = Fleet()
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
    fleet = Fleet()
    fleet.workers = {index: worker(index) for index in range(1000)}
    fleet.look()
    fleet.workers = {index: worker(index, incarnation=1) for index in range(1000)}
    fleet.look()
    assert fleet.happened() == [("WorkerBack", "1000 workers are back")]
    assert fleet.history.moments[0].detail.startswith("worker 0 is back, incarnation 1\n")


def test_of_too_many_moments_the_oldest_version_goes_first() -> None:
    history = JobHistory()
    history.note(0.0, Happened.CREATED, "created")
    for number in range(MAX_MOMENTS):
        history.note(float(number), Happened.VERSION if number % 2 else Happened.SCALED, f"{number}")
    assert len(history.moments) == MAX_MOMENTS
    assert [each.text for each in history.moments[:3]] == ["created", "0", "2"]
    for number in range(MAX_MOMENTS):
        history.note(float(number), Happened.SCALED, f"later {number}")
    assert [each.text for each in history.moments] == [f"later {number}" for number in range(MAX_MOMENTS)]


def test_texts_are_cut_and_only_the_newest_details_stay() -> None:
    history = JobHistory()
    for number in range(MAX_MOMENTS):
        history.note(float(number), Happened.EDITED, "t" * 1000, "d" * (MAX_DETAIL + 1))
    assert [len(each.detail) for each in history.moments] == [0] * (MAX_MOMENTS - 5) + [MAX_DETAIL] * 5
    assert {len(each.text) for each in history.moments} == {MAX_TEXT}
