"""What happened to a job is kept in bounds, and read again by later versions."""

import gzip
import json
import random
import tracemalloc
import zlib
from itertools import pairwise

import pytest

from rollfleet_ui.history import MAX_BYTES, MAX_DETAIL, MAX_MOMENTS, MAX_POINTS, HistoryInvalid, JobHistory, Series
from rollfleet_ui.model import SERIES, Happened


def filled(points: int, seed: int = 0) -> JobHistory:
    """Return a history of random values, which compress badly."""
    numbers = random.Random(seed)
    history = JobHistory()
    for time_s in range(points):
        history.series.add(1.8e9 + time_s, {name: numbers.uniform(-1e9, 1e9) for name in SERIES})
    return history


def test_a_full_series_doubles_its_step_and_still_covers_all_time() -> None:
    series = Series()
    for time_s in range(20_000):
        series.add(float(time_s), {"frames": 10.0 * time_s})
    points = series.points()
    assert MAX_POINTS / 2 < len(series) <= MAX_POINTS
    assert (points.time[0], points.time[-1]) == (series.step_s - 1, 19_999.0)
    assert points.series["frames"] == [10 * time_s for time_s in points.time]
    assert {len(values) for values in points.series.values()} == {len(points.time)}


def test_points_of_rates_are_means_and_others_the_newest_value() -> None:
    series = Series(step_s=4.0)
    for time_s, value in enumerate([1.0, 3.0, None, 2.0]):
        series.add(float(time_s), {"framesPerSecond": value, "meanReturn": value})
    points = series.points()
    assert points.time == [3.0]
    assert points.series["framesPerSecond"] == [2.0]
    assert points.series["meanReturn"] == [2.0]
    assert points.series["version"] == [None]


def test_a_mean_over_a_step_keeps_its_size_when_steps_double() -> None:
    series = Series()
    for time_s in range(4 * MAX_POINTS):
        series.add(float(time_s), {"learnerWait": time_s % 2})
    assert set(series.points().series["learnerWait"][:-1]) == {0.5}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 1e300, None])
def test_values_that_no_chart_can_show_are_unknown(value: float | None) -> None:
    series = Series()
    series.add(0.0, {"meanReturn": value, "learnerWait": 7.5})
    assert series.points().series["meanReturn"] == [None]
    assert series.points().series["learnerWait"] == [1.0]


def test_time_never_goes_back() -> None:
    series = Series()
    for time_s in (100.0, 50.0, 101.0):
        series.add(time_s, {"frames": time_s})
    assert series.points().time == [100.0, 101.0]


def test_a_sketch_is_evenly_spaced_and_ends_at_the_newest_value() -> None:
    series = Series()
    for time_s in range(100):
        series.add(float(time_s), {"meanReturn": float(time_s) if time_s > 9 else None})
    sketch = series.sketch("meanReturn", 30)
    assert len(sketch) <= 30
    assert sketch[-1] == 99
    assert {late - early for early, late in pairwise(sketch)} == {3.0}


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


def test_a_history_of_the_worst_size_fits_and_comes_back() -> None:
    history = filled(MAX_POINTS)
    numbers = random.Random(1)
    for number in range(MAX_MOMENTS):
        noise = "".join(map(chr, numbers.choices(range(0x4E00, 0x9FFF), k=MAX_DETAIL + 1)))
        history.note(float(number), Happened.EDITED, noise, noise)
    assert [len(each.detail) for each in history.moments] == [0] * (MAX_MOMENTS - 5) + [MAX_DETAIL] * 5
    packed = history.to_bytes()
    assert len(packed) <= MAX_BYTES
    read = JobHistory.from_bytes(packed)
    assert read.series.points() == history.series.points()
    kept = len(read.moments)
    assert kept == 0 or read.moments == history.moments[-kept:]
    assert JobHistory.from_bytes(read.to_bytes()).series.points() == history.series.points()


def test_a_history_goes_on_after_it_was_saved() -> None:
    whole, saved = Series(), JobHistory()
    for time_s in range(3 * MAX_POINTS):
        values = {"frames": float(time_s)}
        whole.add(float(time_s), values)
        if time_s == 1000:
            saved = JobHistory.from_bytes(saved.to_bytes())
        saved.series.add(float(time_s), values)
    assert saved.series.points() == whole.points()


@pytest.mark.parametrize(
    "packed",
    [
        b"",
        b"\x1f\x8b",
        b"not compressed",
        gzip.compress(b"{}"),
        gzip.compress(b"[" * 100_000),
        gzip.compress(json.dumps({"format": 2, "stepS": 1, "points": {}, "moments": []}).encode()),
        gzip.compress(json.dumps({"format": 1, "stepS": 0, "points": {}, "moments": []}).encode()),
        gzip.compress(b'{"format":1,"stepS":1,"points":{"time":[NaN],"series":{}},"moments":[]}'),
        gzip.compress(b'{"format":1,"stepS":1,"points":{"time":[1],"series":{"frames":[]}},"moments":[]}'),
        gzip.compress(b'{"format":1,"stepS":1,"points":{"time":[1],"series":{"secret":[1]}},"moments":[]}'),
        filled(100).to_bytes()[:-20],
        zlib.compress(b"{}"),
    ],
    ids=lambda packed: f"{len(packed)} bytes",  # not the bytes: a second later, gzip makes others
)
def test_hostile_bytes_are_refused_in_one_line(packed: bytes) -> None:
    with pytest.raises(HistoryInvalid, match=r"^[^\n]+$"):
        JobHistory.from_bytes(packed)


def test_a_bomb_is_refused_before_it_is_unpacked() -> None:
    bomb = gzip.compress(b" " * (64 << 20), compresslevel=1)
    tracemalloc.start()
    try:
        with pytest.raises(HistoryInvalid, match="larger than"):
            JobHistory.from_bytes(bomb)
        assert tracemalloc.get_traced_memory()[1] < 32 << 20
    finally:
        tracemalloc.stop()


def test_fields_that_a_later_version_adds_are_ignored() -> None:
    saved = json.loads(gzip.decompress(filled(3).to_bytes()))
    saved["tomorrow"], saved["moments"] = 1, [{"time": 1, "kind": "Teleported", "text": "t", "colour": "red"}]
    read = JobHistory.from_bytes(gzip.compress(json.dumps(saved).encode()))
    assert [each.kind for each in read.moments] == ["Teleported"]


def test_no_points_become_one_because_their_times_were_rounded() -> None:
    history = JobHistory()
    for time_s in (12.97, 13.4, 14.1):
        history.series.add(time_s, {"frames": time_s})
    restored = JobHistory.from_bytes(history.to_bytes())
    assert len(restored.series) == 3
    assert restored.series.points() == history.series.points()
