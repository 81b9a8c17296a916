"""The number of a version of the weights: the learner's session in its high bits, the learner's count in its low ones.

So a version of a newer learner is greater, whatever it counts. Users see the count: in frames, heartbeats, the status.
"""

from typing import Final

_COUNT_BITS: Final = 28  # a session has 35 more: a version has 63 bits
MAX_VERSIONS: Final = (1 << _COUNT_BITS) - 1
_SESSIONS_PER_S: Final = 8


def session_at(time_s: float) -> int:
    """Return the session of a learner that starts at this time, in seconds since the epoch."""
    return int(time_s * _SESSIONS_PER_S)


def version_of(session: int, count: int) -> int:
    """Return the number of a learner's version.

    Example:
        >>> version_of(2, 1) > version_of(1, 7), count_of(version_of(2, 5))
        (True, 5)
    """
    return session << _COUNT_BITS | count


def count_of(version: int) -> int:
    """Return the count of a version."""
    return version & MAX_VERSIONS
