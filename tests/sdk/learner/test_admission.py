"""Each batch reaches the learner once, if it is not too old, and one of each worker in a round."""

import math
import threading

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tensordict import TensorDict
from tests.sdk.allocations import allocates_at_most

from rollfleet.data.batch import EPISODES
from rollfleet.learner.admission import Admission, Round
from rollfleet.learner.duplicates import INCARNATIONS, WINDOW, DuplicateFilter
from rollfleet.transports.learner_side import Arrival
from rollfleet_api.transfers import BatchMeta

SESSION = 5


def arrival(sequence: int, *, worker: int = 0, incarnation: int = 0, session: int = SESSION, round: int = 0) -> Arrival:
    return Arrival(
        worker=worker,
        incarnation=incarnation,
        sequence=sequence,
        meta=BatchMeta(session=session, round=round, version=1, frames=8),
        batch=TensorDict({}, [2, 4]),
        episodes={name: torch.empty(0, *shape, dtype=dtype) for name, (dtype, shape) in EPISODES.items()},
        nbytes=100,
    )


def opened(number: int = 1, *, enough: int = 2) -> Round:
    """Open a round of workers 0 and 1."""
    return Round(of=(SESSION, number), members=frozenset({0, 1}), threshold=enough / 2)


def takes(admission: Admission, round_: Round, of: Arrival) -> bool:
    """Admit an arrival to a round, which then has it."""
    if admitted := admission.admit(of, lag=0, to=round_):
        round_.add(of)
    return admitted


def counts(admission: Admission) -> dict[str, int]:
    every = {"repeated": admission.repeated, "missed": admission.missed, "stale": admission.stale}
    assert admission.dropped == admission.repeated + admission.stale
    return {name: count for name, count in every.items() if count}


# Arrivals by worker, incarnation and sequence; how many of them are repeated, and how many are missed in the end.
ORDERS: dict[str, tuple[list[tuple[int, int, int]], int, int]] = {
    "in order": ([(0, 0, 0), (0, 0, 1), (0, 0, 2)], 0, 0),
    "delivered twice": ([(0, 0, 0), (0, 0, 1), (0, 0, 1), (0, 0, 0)], 2, 0),
    "some never came": ([(0, 0, 0), (0, 0, 4)], 0, 3),
    "the learner joins late": ([(0, 0, 7)], 0, 0),
    "a worker restarts and counts from zero": ([(0, 0, 9), (0, 1, 0), (0, 1, 1)], 0, 0),
    "in another order": ([(0, 0, 0), (0, 0, 3), (0, 0, 2), (0, 0, 1), (0, 0, 2)], 1, 0),
    "sent before the first arrival": ([(0, 0, 7), (0, 0, 6), (0, 0, 6)], 1, 0),
    "of an earlier incarnation after a later one": ([(0, 1, 0), (0, 0, 9), (0, 0, 9)], 1, 0),
    "of several workers": ([(0, 0, 3), (1, 0, 0), (0, 0, 3)], 1, 0),
}


@pytest.mark.parametrize(("coming", "repeated", "missed"), ORDERS.values(), ids=ORDERS)
def test_each_batch_is_admitted_once_and_gaps_are_missed(
    coming: list[tuple[int, int, int]], repeated: int, missed: int
) -> None:
    admission = Admission(max_lag=4)
    seen = set()
    for worker, incarnation, sequence in coming:
        of = arrival(sequence, worker=worker, incarnation=incarnation)
        assert admission.admit(of, lag=0) is ((worker, incarnation, sequence) not in seen)
        seen.add((worker, incarnation, sequence))
    assert (admission.repeated, admission.missed, admission.stale) == (repeated, missed, 0)


def test_memory_is_bounded_and_forgotten_batches_are_not_admitted() -> None:
    admission = Admission(max_lag=4)
    for sequence in range(3 * WINDOW):
        admission.admit(arrival(sequence), lag=0)
    assert not admission.admit(arrival(1), lag=0)
    for incarnation in range(1, INCARNATIONS + 1):
        assert admission.admit(arrival(2, incarnation=incarnation), lag=0)
    assert not admission.admit(arrival(3 * WINDOW), lag=0)
    assert counts(admission) == {"repeated": 2}


def test_any_number_of_wide_gaps_costs_no_memory() -> None:
    incarnations = DuplicateFilter()
    with allocates_at_most(20_000):
        for number in range(2 * WINDOW):
            assert incarnations.add(0, 0, 2 * number)
        assert incarnations.missed == 2 * WINDOW - 1
        assert incarnations.add(0, 0, 2**64 - 1)
        assert not incarnations.add(0, 0, 2**64 - 1)
        assert incarnations.add(0, 0, 2**64 - WINDOW)
        assert not incarnations.add(0, 0, 2**64 - 1 - WINDOW)


@pytest.mark.usefixtures("hasty_threads")
def test_missed_batches_are_counted_while_another_thread_adds() -> None:
    incarnations, counted = DuplicateFilter(), []

    def add() -> None:
        for number in range(1, 10_000):
            incarnations.add(number, 0, 0)  # of a new worker
            incarnations.add(0, number, 0)  # of a worker that was restarted

    other = threading.Thread(target=add)
    other.start()
    while other.is_alive():
        for _ in range(1000):
            incarnations.expect(0, 0, 1)
        counted.append(incarnations.missed)
    other.join()
    assert set(counted) == {0}


@pytest.mark.parametrize(
    ("max_lag", "lag", "admitted"), [(4, 0, True), (4, 4, True), (4, 5, False), (0, -1, True), (0, math.inf, False)]
)
def test_a_batch_may_be_max_lag_versions_behind_unless_the_round_decides(
    max_lag: int, lag: float, admitted: bool
) -> None:
    admission = Admission(max_lag=max_lag)
    assert admission.admit(arrival(0), lag=lag) is admitted
    assert counts(admission) == ({} if admitted else {"stale": 1})
    assert admission.admit(arrival(1, round=1), lag=lag, to=opened(1))


def test_stale_batch_is_not_counted_as_missed_later() -> None:
    admission = Admission(max_lag=0)
    assert not admission.admit(arrival(0), lag=1)
    assert admission.admit(arrival(1), lag=0)
    assert counts(admission) == {"stale": 1}


def test_round_takes_one_batch_of_each_worker() -> None:
    admission, first = Admission(max_lag=0), opened(1)
    assert takes(admission, first, arrival(0, worker=0, round=1))
    assert takes(admission, first, arrival(0, worker=1, round=1))
    assert takes(admission, opened(2), arrival(1, worker=0, round=2))
    assert counts(admission) == {}


def test_a_round_collected_again_by_a_restarted_worker_is_admitted_once() -> None:
    admission, round_ = Admission(max_lag=0), opened(1)
    assert takes(admission, round_, arrival(0, round=1))
    assert not takes(admission, round_, arrival(0, incarnation=1, round=1))
    assert counts(admission) == {"repeated": 1}


@pytest.mark.parametrize("of", [{"round": 1}, {"round": 3}, {"round": 2, "session": SESSION - 1}], ids=str)
def test_batch_of_another_round_or_session_is_stale(of: dict[str, int]) -> None:
    admission, round_ = Admission(max_lag=0), opened(2)
    assert not takes(admission, round_, arrival(0, **of))
    assert takes(admission, round_, arrival(1, round=2))
    assert counts(admission) == {"stale": 1}


def workers(arrivals: list[Arrival]) -> list[int]:
    return [each.worker for each in arrivals]


@pytest.mark.parametrize(("sent", "left", "result"), [((7, 1, 0), (), [[0, 1], [7]]), ((7,), (0, 1), [[7], []])])
def test_a_worker_that_joined_after_the_frames_were_divided_is_left_out_unless_all_members_left(
    sent: tuple[int, ...], left: tuple[int, ...], result: list[list[int]]
) -> None:
    round_ = opened()
    for worker in sent:
        round_.add(arrival(0, worker=worker))
    round_.release(set(left))
    assert [workers(each) for each in round_.result()] == result


def test_a_round_whose_members_all_left_waits_for_the_new_ones() -> None:
    round_ = opened(enough=1)
    round_.reopen(frozenset({2}))
    assert round_.missing == {2}
    round_.add(arrival(0, worker=2))
    assert [workers(each) for each in round_.result()] == [[2], []]


@pytest.mark.parametrize(("threshold", "enough"), [(1.0, 4), (0.5, 2)])
def test_a_round_that_opened_without_members_closes_with_fragments_of_all_that_came_or_their_share(
    threshold: float, enough: int
) -> None:
    round_ = Round(of=(SESSION, 1), members=frozenset(), threshold=threshold)
    round_.reopen(frozenset(range(4)))
    for worker in range(enough):
        assert not round_.has_enough
        round_.add(arrival(0, worker=worker))
    assert round_.has_enough


arrivals = st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(0, 5))


@given(st.lists(arrivals, max_size=60))
def test_no_order_of_arrivals_admits_a_batch_twice(coming: list[tuple[int, int, int]]) -> None:
    admission = Admission(max_lag=4)
    admitted = [
        each for each in coming if admission.admit(arrival(each[2], worker=each[0], incarnation=each[1]), lag=0)
    ]
    assert len(set(admitted)) == len(admitted)
    assert set(admitted) == set(coming)
    assert len(admitted) + admission.dropped == len(coming)


def test_heartbeats_of_a_successor_with_the_same_incarnation_say_nothing_of_its_predecessor() -> None:
    seen = DuplicateFilter()
    for process, batches in ((11, 5), (22, 100)):  # given by two learners
        for sequence in range(batches):
            assert seen.add(0, 3, sequence, process=process)
            seen.expect(0, 3, sequence + 1, process=process)
    assert seen.missed == 0


@pytest.mark.parametrize(("first", "missed"), [(0, 3), (2, 0)], ids=["from its start", "later"])
def test_what_a_process_kept_when_it_was_killed_counts_once_its_successor_sends(first: int, missed: int) -> None:
    seen = DuplicateFilter()
    for sent in range(first, 4):
        seen.expect(0, 0, sent, process=1)
    assert seen.missed == 0
    assert seen.add(0, 1, 0, process=2)
    assert seen.missed == missed
