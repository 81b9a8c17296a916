"""Episodes that a failure of their environment ends, while the others go on."""

import logging
import time
from collections import Counter, deque
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rollfleet.data.tensor_memory import Array
from rollfleet.envs.failures import FAILURES, Failure
from rollfleet.envs.serial import SerialVectorEnv
from rollfleet.envs.subprocesses import ProcessVectorEnv
from rollfleet.errors import EnvironmentInvalid
from rollfleet_api.messages import LONGEST_NAME, MOST_NUMBERS
from rollfleet_api.placement import EnvironmentFailuresSpec
from rollfleet_api.text import last_line
from rollfleet_api.times import format_time

log = logging.getLogger(__name__)

RECENT: Final = 100
"""Episodes of which at most a share may fail."""
LEAST: Final = 10
"""Failures among them that are not bad luck."""
COUNTED: Final = 1000
"""Failures among which those of an hour are counted."""
OTHERS: Final = "others"
"""Stands for further classes of errors: a batch names `MOST_NUMBERS` at most."""


class Lost(NamedTuple):
    """A trajectory whose environment failed after its last frame had been handed over.

    Attributes:
        trajectory: Its id.
        following: The observation after its last frame, and hidden states: a leaf [...] each.
    """

    trajectory: int
    following: list[Array]


class FailedEpisodes:
    """Goes on with new episodes where environments have failed, and counts the failures.

    The step that failed has no frame. The environment that replaces it takes its first step in the same row: no
    other one waits for it, and no row has a gap.

    Args:
        env: A vector of single environments.
        spec: The job's `failure.environments`.

    Attributes:
        lost: Of whole trajectories, those that failed after all their frames had been handed over.

    Raises:
        EnvironmentInvalid: The vector is of another kind.
    """

    def __init__(self, env: Any, spec: EnvironmentFailuresSpec) -> None:
        if not isinstance(env, SerialVectorEnv | ProcessVectorEnv):
            raise EnvironmentInvalid(
                f"environment {env} replaces no single environment; remove `env_failures` "
                "(`failure.environments` of a job), or let its factory return a single gymnasium.Env"
            )
        env.failures = spec
        self._env, self._max_share = env, spec.max_share
        self._counts, self._known = Counter[str](), set[str]()
        self._recent = deque[bool]([], RECENT)  # whether an episode failed
        self._newest = deque[tuple[float, int, Failure]](maxlen=COUNTED)  # with its time, and its environment
        self.lost: list[Lost] = []

    def take_lost(self) -> list[Lost]:
        """Return and forget these episodes."""
        lost, self.lost = self.lost, []
        return lost

    def take(self) -> tuple[Mapping[str, int], str]:
        """Return and forget the number of failures, by the class of their error, and describe the newest, if any."""
        counts, self._counts = dict(self._counts), Counter()
        if not counts:
            return counts, ""
        now_s, (_, env, failure) = time.time(), self._newest[-1]
        alike = sum((e, f.name) == (env, failure.name) and now_s - s < 3600 for s, e, f in self._newest)
        newest = f"environment {env}: {failure.name}, {alike:,} times in the hour before {format_time(now_s)}"
        return counts, f"{newest}; the last one: {failure.text}"

    def note_ended(self, episodes: int) -> None:
        """Note episodes that ended well."""
        self._recent.extend([False] * min(episodes, RECENT))

    def note(self, info: Mapping[str, Any]) -> NDArray[np.intp]:
        """Note the failures in a vector's infos, and return their environments.

        Raises:
            EnvironmentInvalid: Too many of the last episodes failed.
        """
        found = info.get(FAILURES)
        if found is None:
            return np.zeros(0, np.intp)
        envs = np.flatnonzero([bool(each) for each in found])
        for env in envs.tolist():
            for failure in found[env]:
                self._add(env, failure)
        # A process that died is one failure, of all its environments.
        self._recent.extend([True] * len({id(failure) for env in envs for failure in found[env]}))
        self._check_share(found[envs[-1]][-1])
        return envs

    def _add(self, env: int, failure: Failure) -> None:
        name = failure.name[-LONGEST_NAME:]
        if name not in self._known and len(self._known) >= MOST_NUMBERS - 1:
            name = OTHERS
        self._counts[name] += 1
        self._newest.append((time.time(), env, Failure(failure.name, last_line(failure.text)[:300])))
        if name not in self._known:
            self._known.add(name)
            log.warning("environment %d of %s failed, and was replaced: %s", env, self._env, failure.text)

    def _check_share(self, newest: Failure) -> None:
        failed = sum(self._recent)
        if failed >= LEAST and failed > self._max_share * len(self._recent):
            raise EnvironmentInvalid(
                f"environment {self._env}: {failed} of the last {len(self._recent)} episodes failed, more than "
                f"`maxShare`, {self._max_share:g}, allows; the last one: {last_line(newest.text)}"
            )
