"""Requests that outlast a cluster that does not answer for a while."""

import time
from collections.abc import Callable
from typing import Final, TypeVar

from rollfleet.cluster.refusals import passes
from rollfleet.errors import ClusterError

T = TypeVar("T")

AGAIN_S: Final = 1.0
"""Seconds before a request, or a stream that was cut, begins again."""

AWAY_S: Final = 60.0
"""Seconds that a cluster may be away while a job is watched."""


def answered(ask: Callable[[], T], until_s: float) -> T:
    """Return what `ask` returns. Repeat it until `until_s`, a monotonic time, while the cluster does not answer.

    Raises:
        ClusterError: The cluster refuses the request, or has not answered in time.
    """
    while True:
        late = time.monotonic() >= until_s
        try:
            return ask()
        except ClusterError as error:
            if late or not passes(error):
                raise
        time.sleep(AGAIN_S)
