"""Series are kept in bounds."""

from itertools import pairwise

import pytest

from rollfleet_api.messages import MOST_STATISTICS
from rollfleet_ui.series import MAX_POINTS, Series


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
        series.add(float(time_s), {"framesPerSecond": time_s % 2})
    assert set(series.points().series["framesPerSecond"][:-1]) == {0.5}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 1e300, None])
def test_values_that_no_chart_can_show_are_unknown(value: float | None) -> None:
    series = Series()
    series.add(0.0, {"meanReturn": value, "lag": 7.5})
    assert series.points().series["meanReturn"] == [None]
    assert series.points().series["lag"] == [7.5]


def test_series_of_other_names_begin_when_they_come_and_are_bounded() -> None:
    series = Series()
    series.add(0.0, {"frames": 1.0})
    for time_s in range(1, 3):
        series.add(float(time_s), {f"mean.{number}": float(time_s) for number in range(10_000)})
    points = series.points()
    infos = [values for name, values in points.series.items() if name.startswith("mean.")]
    assert infos == [[None, 1.0, 2.0]] * 3 * MOST_STATISTICS


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
