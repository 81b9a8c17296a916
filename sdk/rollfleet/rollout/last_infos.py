"""What environments say of an episode when it ends: the numbers of its last info."""

import logging
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollfleet_api.messages import LONGEST_NAME, MOST_NUMBERS

log = logging.getLogger(__name__)


_OF_ENVPOOL = ("env_id", "players.env_id")  # in each of its infos: they say nothing of an episode


class LastInfos:
    """Reads the numbers in infos of a vector environment, in Gymnasium's form, at the end of episodes.

    A number of a nested dict has the name `outer.inner`. Of too many names the first stay, and one warning says so.
    """

    def __init__(self, source: str) -> None:
        """`source` describes the environment."""
        self._source, self._names, self._warned = source, set[str](), False

    def read(self, info: Mapping[str, Any], ended: NDArray[np.intp]) -> dict[str, NDArray[np.float64]]:
        """Return what the environments `ended` say, float64 [n] by name, NaN for those that do not."""
        return {name: values for name, values in _numbers(info, ended) if self._keeps(name)}

    def _keeps(self, name: str) -> bool:
        if name in _OF_ENVPOOL or len(name) > LONGEST_NAME:
            return False
        if name not in self._names and len(self._names) >= MOST_NUMBERS:
            if not self._warned:
                self._warned = True
                log.warning(
                    "%s says more than %d numbers at the end of an episode; %r and others are not counted: leave them "
                    "out of its info",
                    self._source,
                    MOST_NUMBERS,
                    name,
                )
            return False
        self._names.add(name)
        return True


def _numbers(
    info: Mapping[str, Any], ended: NDArray[np.intp], prefix: str = ""
) -> Iterator[tuple[str, NDArray[np.float64]]]:
    for name, values in info.items():
        if name.startswith("_"):
            continue
        if isinstance(values, Mapping):
            yield from _numbers(values, ended, f"{prefix}{name}.")
        elif isinstance(values, np.ndarray) and values.ndim == 1 and values.dtype.kind in "biuf":
            said = info.get(f"_{name}", True)
            own = np.where(said if said is True else said[ended], values[ended].astype(np.float64), np.nan)
            if not np.isnan(own).all():
                yield f"{prefix}{name}", own
