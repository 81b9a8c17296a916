"""Who waits for whom, from the counters of heartbeats."""

from dataclasses import replace
from typing import Any

import pytest
from tests.api.job_data import job_data

from rollfleet_api.messages import LearnerStatus, WorkerState, WorkerStatus
from rollfleet_api.validation import parse_job
from rollfleet_api.waits import WINDOW_S, Waits

LEARNER = LearnerStatus(session=1, version=1, applied_version=1)
SERVED = {"id": "CartPole-v1", "numEnvs": 8, "vectorization": "Async", "servers": {"replicas": 4}}
WORKER = WorkerStatus(worker=0, incarnation=0, state=WorkerState.COLLECTING)


def beat(index: int, time_s: float, **said: object) -> WorkerStatus:
    return replace(WORKER, worker=index, time_s=time_s, **said)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("learner_s", "room_s", "round_s", "weights_s", "envs_s", "sentence"),
    [
        (7.0, 0.0, 0.0, 1.0, 0.0, "The workers are the bottleneck: the learner waited 70 % of the last 10 s for data."),
        (
            *(7.0, 0.0, 0.0, 1.0, 6.0),
            "The environments are the bottleneck: the learner waited 70 % of the last 10 s for data, and environments "
            "took 60 % of the workers' time.",
        ),
        (
            *(7.0, 0.0, 0.0, 1.0, 2.0),
            "The workers are the bottleneck: the learner waited 70 % of the last 10 s for data, and environments took "
            "20 % of the workers' time.",
        ),
        (1.0, 2.0, 4.3, 1.0, 2.0, "The learner is the bottleneck: workers waited 63 % of the last 10 s for it."),
        (1.0, 2.0, 0.0, 3.0, 4.0, "The learner is the bottleneck: workers waited 30 % of the last 10 s for weights."),
        (
            0.9,
            0.5,
            0.0,
            0.0,
            8.0,
            "Nothing is a bottleneck: learner and workers waited less than 10 % of the last 10 s.",
        ),
    ],
)
def test_the_longest_wait_is_the_bottleneck(
    learner_s: float, room_s: float, round_s: float, weights_s: float, envs_s: float, sentence: str
) -> None:
    waits = Waits()
    for time_s in (0.0, 5.0, 10.0):
        share = time_s / 10
        waited = {
            "waited_for_space_s": room_s * share,
            "waited_for_round_s": round_s * share,
            "waited_for_weights_s": weights_s * share,
            "waited_for_environments_s": envs_s * share,
            "collecting_s": (10.0 - room_s - round_s - weights_s) * share,
        }
        learner = replace(LEARNER, time_s=time_s, waited_s=learner_s * share)
        shares = waits.look(time_s, learner, {index: beat(index, time_s, **waited) for index in (0, 1)})
    assert shares
    assert list(shares) == pytest.approx([learner_s / 10, (room_s + round_s) / 10, weights_s / 10, envs_s / 10])
    assert waits.bottleneck() == sentence


def of_a_job_with_servers(
    *,
    learner: float = 0.8,
    environments: float = 0.6,
    steps_per_s: int = 1,
    batch_s: float = 1.0,
    until_s: int = 31,
    slow: tuple[str, ...] = ("", ""),
    **spec: Any,
) -> str:
    """What the sentence about a job of two workers says after the shares. `slow` are the slow servers of each."""
    job = parse_job(job_data(**{"workers": 2, "env": SERVED, "collect": {"framesPerBatch": 96}} | spec))
    waits = Waits()
    for now_s in map(float, range(until_s)):
        done_s = now_s // batch_s * batch_s
        said = {"waited_for_environments_s": environments * done_s, "collecting_s": done_s}
        frames = job.spec.env.num_envs * steps_per_s * int(done_s)
        beats = {i: beat(i, now_s, **said, frames=frames, slow_servers=each) for i, each in enumerate(slow)}
        waits.look(now_s, at(now_s, waited_s=learner * now_s), beats)
    return waits.bottleneck(job.spec).partition(" of the last")[2].partition(".")[2]


@pytest.mark.parametrize(
    ("said", "fields"),
    [
        (" `env.servers.replicas: 8` would make the job about 1.8 times as fast.", {"environments": 0.9}),
        (" `env.servers.replicas: 8` would make the job about 1.4 times as fast.", {"learner": 0.3}),
        ("", {"learner": 0.2}),
        (" `env.servers.replicas: 6` would make the job about 1.4 times as fast.", {"env": SERVED | {"numEnvs": 6}}),
        (
            " `workers: 4` would make the job up to 2.0 times as fast, `env.servers.replicas: 8` about 1.1 times.",
            {"environments": 0.2},
        ),
        ("", {"environments": 0.2, "autoscale": {"minWorkers": 1, "maxWorkers": 8, "targetWait": 0.1}}),
        (
            " `workers: 4` would make the job up to 2.0 times as fast.",
            {"environments": 0.9, "env": SERVED | {"numEnvs": 4}},
        ),
        (
            " `workers: 4` would make the job up to 2.0 times as fast, `env.servers.replicas: 8` about 1.0 times.",
            {"steps_per_s": 1000},
        ),
        ("", {"until_s": 20}),
        (" `env.servers.replicas: 8` would make the job about 1.4 times as fast.", {"batch_s": 20.0, "until_s": 50}),
        ("", {"batch_s": 99.0}),
        ("", {"env": {"id": "CartPole-v1", "numEnvs": 8}}),
    ],
)
def test_a_size_is_advised_if_measured_shares_allow_it_to_be_worth_it(said: str, fields: dict[str, Any]) -> None:
    assert of_a_job_with_servers(**fields) == said


def test_a_worker_whose_counters_make_no_sense_breaks_no_sentence() -> None:
    job, waits = parse_job(job_data(env=SERVED)), Waits()
    for now_s in map(float, range(31)):
        odd = {"waited_for_environments_s": 1e9 * now_s, "collecting_s": now_s, "frames": int(now_s // 30)}
        waits.look(now_s, at(now_s, waited_s=now_s), {0: beat(0, now_s, **odd)})
        assert waits.bottleneck(job.spec).startswith("The environments are" if now_s else "")


def test_slow_servers_are_named_instead() -> None:
    slow = "3 of 64 servers answer up to 40 times slower than the others: a, b, c"
    one, both = (of_a_job_with_servers(slow=each) for each in (("", slow), (slow, slow)))
    assert (one, both) == (f" In worker 1, {slow}.", f" In worker 0 (and 1 more), {slow}.")


def at(time_s: float, **said: object) -> LearnerStatus:
    return replace(LEARNER, time_s=time_s, **said)  # type: ignore[arg-type]


def test_a_wait_that_goes_on_counts_before_its_worker_adds_it_up() -> None:
    waits = Waits()
    beats = [beat(0, float(time_s), state=WorkerState.WAITING_FOR_LEARNER) for time_s in range(8)]
    beats.append(beat(0, 8.0, state=WorkerState.COLLECTING, waited_for_round_s=8.0))
    seen = [waits.look(each.time_s, at(each.time_s), {0: each}) for each in beats]
    shares = [each.workers_for_learner for each in seen if each]
    assert shares == pytest.approx([1.0] * 8)


def test_a_worker_that_is_dead_waits_for_nothing() -> None:
    waits = Waits()
    silent = beat(0, 0.0, state=WorkerState.WAITING_FOR_LEARNER)
    for time_s in range(5):
        shares = waits.look(float(time_s), at(float(time_s)), {0: silent})
    assert shares == (0.0, 0.0, 0.0, 0.0)


def test_a_worker_that_has_been_silent_for_the_whole_window_counts_no_more() -> None:
    waits, silent = Waits(), beat(1, 0.0)
    for time_s in map(float, range(2 * int(WINDOW_S) + 1)):
        beats = {0: beat(0, time_s, waited_for_space_s=time_s), 1: silent}
        shares = waits.look(time_s, at(time_s), beats)
    assert shares
    assert shares.workers_for_learner == pytest.approx(1.0)


def test_counters_that_begin_again_are_no_wait() -> None:
    waits = Waits()
    waits.look(0.0, at(0.0, waited_s=100.0), {0: beat(0, 0.0, waited_for_space_s=50.0)})
    restarted = beat(0, 1.0, incarnation=1, waited_for_space_s=80.0)
    waits.look(1.0, at(1.0, session=2, waited_s=500.0), {0: restarted})
    assert waits.look(2.0, at(2.0, session=2, waited_s=500.0), {0: restarted}) == (0.0, 0.0, 0.0, 0.0)


def test_neither_the_start_nor_the_end_of_a_run_dilutes_its_shares() -> None:
    waits = Waits()
    looks: list[tuple[float, LearnerStatus | None]] = [(float(time_s), None) for time_s in range(5)]
    looks += [(5.0 + time_s / 2, at(5.0 + time_s // 2, waited_s=0.75 * (time_s // 2))) for time_s in range(20)]
    looks += [(15.0 + time_s, looks[-1][1]) for time_s in range(5)]
    seen = [waits.look(now_s, learner, {}) for now_s, learner in looks]
    assert {each.learner for each in seen if each} == {0.75}
    assert waits.bottleneck() == "The workers are the bottleneck: the learner waited 75 % of the last 14 s for data."


def test_without_a_learner_nothing_is_known() -> None:
    waits = Waits()
    assert waits.look(0.0, None, {}) is None
    assert waits.look(1.0, None, {}) is None
    assert waits.bottleneck() == ""
