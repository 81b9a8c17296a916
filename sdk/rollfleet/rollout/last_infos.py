"""What environments say of an episode when it ends: the numbers of its last info, and its label."""

import logging
from collections.abc import Iterator, Mapping
from fnmatch import translate
from math import nan
from re import compile as pattern_of
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rollfleet.data.batch import EPISODE_INFO, EPISODE_LABEL
from rollfleet.envs.serial import TEXT, place_of
from rollfleet_api.collection import CollectSpec
from rollfleet_api.messages import LONGEST_NAME, MOST_NUMBERS

log = logging.getLogger(__name__)

OTHERS: Final = "others"
"""The label of episodes whose own is one too many."""
_OF_ENVPOOL = ("env_id", "players.env_id")  # in each of its infos: they say nothing of an episode


class LastInfos:
    """Reads infos of a vector environment, in Gymnasium's form, at the end of episodes.

    A number of a nested dict has the name `outer.inner`. Of too many names the first stay, and one warning says so.

    Attributes:
        labels: The labels so far: the first 31, then `OTHERS`.
    """

    def __init__(self, source: str, spec: CollectSpec, num_envs: int) -> None:
        """`source` describes the environment."""
        self._shape = (num_envs,)
        self._source, self._names, self._warned = source, set[str](), False
        self._wanted = pattern_of("|".join(map(translate, spec.episode_metrics)) or "(?!)").match
        self._label = spec.episode_label
        self.labels: tuple[str, ...] = ()

    def read(self, info: Mapping[str, Any], ended: NDArray[np.intp]) -> dict[str, NDArray[np.float64]]:
        """Return what the environments `ended` say, float64 [n] by name in `Episodes`, NaN for those that do not."""
        numbers = _numbers(info, ended, self._shape)
        found = {f"{EPISODE_INFO}{name}": each for name, each in numbers if self._keeps(name)}
        if self._label is not None:
            texts = _texts(info, self._label, ended, self._shape)
            found[EPISODE_LABEL] = np.array([self._number(label) for label in texts])
        return found

    def _keeps(self, name: str) -> bool:
        if name in _OF_ENVPOOL or name == self._label or len(name) > LONGEST_NAME or not self._wanted(name):
            return False
        if name not in self._names and len(self._names) >= MOST_NUMBERS:
            if not self._warned:
                self._warned = True
                log.warning(
                    "%s says more than %d numbers at the end of an episode; %r and others are not counted: name those "
                    "that count in `episode_metrics` (`collect.episodeMetrics` of a job)",
                    self._source,
                    MOST_NUMBERS,
                    name,
                )
            return False
        self._names.add(name)
        return True

    def _number(self, label: str | None) -> float:
        """Return the position of a label; NaN: an episode has none."""
        if label is None:
            return nan
        if label not in self.labels:
            if len(self.labels) < MOST_NUMBERS - 1:
                self.labels += (label,)
            else:
                if OTHERS not in self.labels:
                    self.labels += (OTHERS,)
                    log.warning(
                        "%s has more than %d values of the label %r; %r and others count as %r",
                        *(self._source, MOST_NUMBERS - 1, self._label, label, OTHERS),
                    )
                label = OTHERS
        return float(self.labels.index(label))


def _numbers(
    info: Mapping[str, Any], ended: NDArray[np.intp], shape: tuple[int, ...], prefix: str = ""
) -> Iterator[tuple[str, NDArray[np.float64]]]:
    for name, values in info.items():
        if not isinstance(name, str) or name.startswith("_"):
            continue
        if isinstance(values, Mapping):
            yield from _numbers(values, ended, shape, f"{prefix}{name}.")
        elif isinstance(values, np.ndarray) and values.shape == shape and values.dtype.kind in "biuf":
            said = info.get(f"_{name}", True)
            own = np.where(said if said is True else said[ended], values[ended].astype(np.float64), np.nan)
            if not np.isnan(own).all():
                yield f"{prefix}{name}", own


def _texts(info: Mapping[str, Any], key: str, ended: NDArray[np.intp], shape: tuple[int, ...]) -> Iterator[str | None]:
    """Yield the text, or the whole number as text, that each environment has under a key; None: it has none."""
    holder, name = place_of(info, key)
    texts, values, said = info.get(f"{TEXT}{key}"), holder.get(name), holder.get(f"_{name}")
    values = values if isinstance(values, np.ndarray) and values.shape == shape else None
    for env in ended.tolist():
        value = None if texts is None else texts[env]
        if not isinstance(value, str) and values is not None and (said is None or said[env]):
            value = values[env]
        if isinstance(value, str):
            yield value[:LONGEST_NAME]
        elif isinstance(value, int | float | np.integer | np.floating | np.bool_) and float(value).is_integer():
            yield str(int(value))
        else:
            yield None
