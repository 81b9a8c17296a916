"""The series of a job, in bounds: at most 720 points."""

import math
from array import array
from collections.abc import Mapping
from typing import Final

from rollfleet_api.messages import MOST_STATISTICS
from rollfleet_ui.model import SERIES, History

MAX_POINTS: Final = 720
_LARGEST: Final = 3e38  # of an array of 32-bit floats
_MEANS: Final = frozenset({"framesPerSecond"})
"""Series whose points are means over their step. Points of the others are the newest values."""


class Series:
    """The series of a job: one point for each step of time. When they are full, the step doubles and points merge.

    Example:
        >>> series = Series()
        >>> for second in range(2000):
        ...     series.add(float(second), {"frames": 64.0 * second})
        >>> series.step_s, len(series), series.points().series["frames"][-1]
        (4.0, 500, 127936.0)

    Attributes:
        step_s: The seconds of a point.
    """

    def __init__(self, step_s: float = 1.0) -> None:
        self.step_s = step_s
        self._times = array("d")
        self._values = {name: array("f") for name in SERIES}
        self._samples = 0  # of the newest point

    def __len__(self) -> int:
        """Return the number of points."""
        return len(self._times)

    def add(self, time_s: float, values: Mapping[str, float | None]) -> None:
        """Add values at a time, of `SERIES` and of other names. Time never goes back.

        Those that are missing, None or infinite are unknown.
        """
        newest_s = self._times[-1] if self._times else -math.inf
        time_s = max(time_s, newest_s)
        is_new = not self._times or time_s // self.step_s > newest_s // self.step_s
        if is_new and len(self) == MAX_POINTS:
            self._double_step()
            self.add(time_s, values)
            return
        self._samples = 1 if is_new else self._samples + 1
        if is_new:
            self._times.append(time_s)
        else:
            self._times[-1] = time_s
        for name in values.keys() - self._values.keys():
            if len(self._values) < len(SERIES) + 3 * MOST_STATISTICS:
                self._values[name] = array("f", [math.nan] * (len(self) - is_new))
        for name, kept in self._values.items():
            given = values.get(name)
            value = given if given is not None and abs(given) < _LARGEST else math.nan
            if is_new:
                kept.append(value)
            elif math.isnan(kept[-1]):
                kept[-1] = value
            elif not math.isnan(value):
                kept[-1] += (value - kept[-1]) / (self._samples if name in _MEANS else 1)

    def points(self) -> History:
        """Return all points."""
        return History.model_construct(
            time=[round(time_s, 1) for time_s in self._times],
            series={name: [_short(value) for value in kept] for name, kept in self._values.items()},
        )

    def sketch(self, name: str, points: int) -> list[float]:
        """Return at most this many known values of a series, evenly spaced, the newest last."""
        known = [value for value in self._values[name] if not math.isnan(value)]
        stride = max(math.ceil(len(known) / points), 1)
        return [_short(value) or 0.0 for value in known[::-1][::stride][::-1]]

    def _double_step(self) -> None:
        wider = Series(2 * self.step_s)
        for index, time_s in enumerate(self._times):
            wider.add(time_s, {name: kept[index] for name, kept in self._values.items()})
        self.step_s, self._times, self._values = wider.step_s, wider._times, wider._values
        self._samples = wider._samples


def _short(value: float) -> float | None:
    """Return a value with at most seven digits; None: unknown."""
    if math.isnan(value):
        return None
    return float(f"{value:.7g}")
