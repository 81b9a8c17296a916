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

from rollfleet.data.batch import REWARD, Key
from rollfleet.envs.space_tree import bounds
from rollfleet.errors import EnvironmentInvalid, PolicyInvalid
from rollfleet.policies.actor import Actor
from rollfleet.policies.outputs import shown
from rollfleet.rollout.trajectory_ids import split

log = logging.getLogger(__name__)

FINITE: Final = sys.float_info.max
NOT_NAN: Final = math.inf
"""The limit of a policy's outputs: they may be infinite, as the logits of masked actions are."""
FAR: Final = 1e6


def limits_of(actor: Actor) -> dict[Key, float]:
    """Return the greatest magnitude by key of what an actor sees and returns, and of rewards."""
    limits = dict.fromkeys((*actor.carried_keys, *actor.keys), NOT_NAN) | {REWARD: FINITE}
    for key, leaf in zip(actor.carried_keys, actor.observations.leaves.values(), strict=False):
        far = FAR * float(np.abs(bounds(leaf)).max(initial=0))
        limits[key] = far if 0 < far < FINITE else FINITE
    return limits


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
        raises: Whether the first one is an error.

    Attributes:
        limits: The greatest magnitude by key, in the order in which one of a frame is reported: at most `FINITE` for
            what environments return, `NOT_NAN` for what policies return.
    """

    def __init__(self, env: Any, *, raises: bool) -> None:
        self._env, self._raises, self._told, self._frames = env, raises, False, 0
        self.limits: Mapping[Key, float] = {}

    def take(self) -> int:
        """Return the number of frames with a wrong value since the last call."""
        frames, self._frames = self._frames, 0
        return frames

    def check(
        self, steps: Mapping[Key, Tensor], finals: Iterable[tuple[Key, Tensor]], frames: Callable[[], Frames]
    ) -> None:
        """Check values [envs, T, ...] by key, and observations [n, ...] after the frames `ends`, row by row.

        Raises:
            EnvironmentInvalid: An environment returned the first wrong value, and that is an error.
            PolicyInvalid: The policy did.
        """
        suspects = {key: steps[key] for key in self.limits if key in steps and not self._holds(key, steps[key])}
        after = [(key, rows) for key, rows in finals if not self._holds(key, rows)]
        if not suspects and not after:
            return
        found = frames()
        for key, rows in after:
            suspects["next", *key] = rows.new_zeros((*found.ends.shape, *rows.shape[1:]))
            suspects["next", *key][torch.from_numpy(found.ends)] = rows
        each = [
            self._over(key, values).reshape(*values.shape[:2], -1).any(-1).numpy() for key, values in suspects.items()
        ]
        wrong = np.stack(each) & found.real
        self._frames += int(wrong.any(0).sum())
        if wrong.any() and (self._raises or not self._told):
            self._told = True
            t, env, index = np.argwhere(wrong.transpose(2, 1, 0))[0].tolist()  # the earliest
            key = list(suspects)[index]
            values = suspects[key][env, t]
            self._report(key, float(values[self._over(key, values)].flatten()[0]), env, t, found)

    def _holds(self, key: Key, values: Tensor) -> bool:
        """Whether no value is wrong. A sum of squares shows it fast; only one above the limit needs a closer look."""
        if key not in self.limits or not values.is_floating_point():
            return True
        limit, flat = self.limits[key], values.reshape(-1)
        return float(torch.dot(flat, flat)) <= (limit if limit == NOT_NAN else min(limit * limit, FINITE))

    def _over(self, key: Key, values: Tensor) -> Tensor:
        return ~(values.abs() <= self._limit(key))  # NaN, too

    def _limit(self, key: Key) -> float:
        return self.limits[key if key in self.limits else key[1:]]

    def _report(self, key: Key, value: float, env: int, t: int, found: Frames) -> None:
        single = getattr(self._env.unwrapped, "envs", ())
        name = single[env].unwrapped if env < len(single) else self._env
        seed = f" (seed {found.seeds[env]})" if found.seeds else ""
        far = ", a million times outside of its space" if math.isfinite(value) else ""
        text = (
            f"worker {split(int(found.ids[env, t]))[0]}, environment {env} of {name}{seed}, frame "
            f"{found.before[env] + t}: {shown(key)} is {value:g}{far}"
        )
        if self._raises:
            error = PolicyInvalid if self._limit(key) == NOT_NAN else EnvironmentInvalid
            raise error(f"{text}, and `non_finite` is an error")
        log.warning(
            "%s: training on it spoils the weights. `stats().non_finite` counts further ones; `non_finite='error'` "
            "(`nonFinite: Error` of a job) ends the run at the first",
            text,
        )
