"""One round of mode Sync: which workers it waits for, and which fragments make its batch."""

from tests.sdk.learner.arrivals import arrival

from rollfleet.learner.rounds import Round
from rollfleet.transports.learner_side import Arrival


def workers(arrivals: list[Arrival]) -> list[int]:
    return [each.worker for each in arrivals]


def test_a_worker_that_joined_after_the_frames_were_divided_is_left_out() -> None:
    round_ = Round(frozenset({0, 1}), enough=2)
    for worker in (7, 1, 0):
        round_.add(arrival(0, worker=worker))
    assert [workers(each) for each in round_.result()] == [[0, 1], [7]]


def test_the_fragment_of_a_new_worker_counts_if_all_members_left() -> None:
    round_ = Round(frozenset({0, 1}), enough=2)
    round_.add(arrival(0, worker=7))
    round_.release({0, 1})
    assert [workers(each) for each in round_.result()] == [[7], []]


def test_a_round_whose_members_all_left_waits_for_the_new_ones() -> None:
    round_ = Round(frozenset({0, 1}), enough=1)
    round_.reopen(frozenset({2}))
    assert round_.missing == {2}
    round_.add(arrival(0, worker=2))
    assert [workers(each) for each in round_.result()] == [[2], []]
