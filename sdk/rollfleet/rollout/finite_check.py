"""Values that no policy can be trained on: NaN, infinity, and observations a million times outside of their space."""

import logging
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rollfleet.data.batch import Key
from rollfleet.errors import EnvironmentInvalid, PolicyInvalid
from rollfleet.policies.outputs import shown
from rollfleet.rollout.trajectory_ids import split

log = logging.getLogger(__name__)

FINITE: Final = sys.float_info.max
NOT_NAN: Final = math.inf
"""The limit of a policy's outputs: they may be infinite, as the logits of masked actions are."""
FAR: Final = 1e6


class Frames(NamedTuple):
    """The frames that are checked.

    Attributes:
        ids: Their trajectory ids, int64 [envs, T].
        real: Which are no padding, bool [envs, T].
        ends: Those with a final observation, bool [envs, T].
        seeds: Of each environment; empty: unknown.
        before: Frames of each environment between its seed and these.
    """

    ids: NDArray[np.int64]
    real: NDArray[np.bool_]
    ends: NDArray[np.bool_]
    seeds: Sequence[int]
    before: Sequence[int]


class FiniteCheck:
    """Looks at the frames of each fragment: reports the first wrong value, and counts the frames that have one.

    Args:
        env: The vector of environments, for the report.
        limits: The greatest magnitude by key: at most `FINITE` for what environments return, then `NOT_NAN` for what
            policies return. Of a frame with several wrong values the first key is reported.
        raises: Whether the first one is an error.

    Attributes:
        limits: As above.
        frames: Number of frames with one, since the caller set it to 0.
    """

    def __init__(self, env: Any, limits: Mapping[Key, float], *, raises: bool) -> None:
        self._env, self.limits, self._raises = env, limits, raises
        self._told, self.frames = False, 0

    def check(
        self, steps: Mapping[Key, Tensor], finals: Iterable[tuple[Key, Tensor]], frames: Callable[[], Frames]
    ) -> None:
        """Check values [envs, T, ...] by key, and observations [n, ...] after the frames `ends`, row by row.

        Raises:
            EnvironmentInvalid: An environment returned the first wrong value, and that is an error.
            PolicyInvalid: The policy did.
        """
        suspects = [(key, steps[key], 2) for key in self.limits if key in steps and not self._holds(key, steps[key])]
        suspects += [(key, rows, 1) for key, rows in finals if not self._holds(key, rows)]
        if not suspects:
            return
        where = frames()
        wrong: NDArray[np.bool_] = np.zeros((len(suspects), *where.real.shape), np.bool_)
        for mask, (key, values, dims) in zip(wrong, suspects, strict=True):
            over = self._over(key, values).reshape(*values.shape[:dims], -1).any(-1).numpy()
            mask[where.ends if dims == 1 else ...] = over
        wrong &= where.real
        found = np.argwhere(wrong.transpose(2, 1, 0))  # the earliest first, and observations before what follows them
        self.frames += int(wrong.any(0).sum())
        if len(found) and not self._told:
            self._told = True
            t, env, at = found[0].tolist()
            key, values, dims = suspects[at]
            row = values[env, t] if dims == 2 else values[int(where.ends.ravel()[: env * wrong.shape[2] + t].sum())]
            self._report(key, float(row[self._over(key, row)].flatten()[0]), dims == 1, env, t, where)

    def _holds(self, key: Key, values: Tensor) -> bool:
        """Whether no value is wrong. A sum of squares shows it fast; only one above the limit needs a closer look."""
        if not values.is_floating_point():
            return True
        limit, flat = self.limits[key], values.reshape(-1)
        return float(torch.dot(flat, flat)) <= (limit if limit == NOT_NAN else min(limit * limit, FINITE))

    def _over(self, key: Key, values: Tensor) -> Tensor:
        return ~(values.abs() <= self.limits[key])  # NaN, too

    def _report(self, key: Key, value: float, is_next: bool, env: int, t: int, where: Frames) -> None:
        single = getattr(self._env.unwrapped, "envs", ())
        name = single[env].unwrapped if env < len(single) else self._env
        seed = f" (seed {where.seeds[env]})" if where.seeds else ""
        text = (
            f"worker {split(int(where.ids[env, t]))[0]}, environment {env} of {name}{seed}, frame "
            f"{where.before[env] + t}: {shown(('next', *key) if is_next else key)} is {value:g}"
        )
        if math.isfinite(value):
            text += ", a million times outside of its space"
        if not self._raises:
            log.warning(
                "%s: training on it spoils the weights. `stats().non_finite` counts further ones; "
                "`non_finite='error'` (`nonFinite: Error` of a job) ends the run at the first",
                text,
            )
        elif self.limits[key] == NOT_NAN:
            raise PolicyInvalid(f"{text}, and `non_finite` is an error")
        else:
            raise EnvironmentInvalid(f"{text}, and `non_finite` is an error")
