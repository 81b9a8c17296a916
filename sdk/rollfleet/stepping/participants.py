"""Who takes part in a step, and what a number of steps gives."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rollfleet.acting.actor import Actor, Array
from rollfleet.envs import VectorEnv
from rollfleet.stepping.episodes import EpisodeCounts
from rollfleet.stepping.settings import RolloutSettings
from rollfleet.trajectories import TrajectoryIds


class Participants(NamedTuple):
    """What the lanes of a rollout have in common."""

    env: VectorEnv
    actor: Actor
    episodes: EpisodeCounts
    trajectories: TrajectoryIds
    settings: RolloutSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Harvest:
    """What was written into a storage.

    Attributes:
        frames: int64 [envs]: how many, of each lane.
        finals: For each carried leaf [n, ...]: what came after the frames that ended and, unless only whole
            trajectories are wanted, after the last frame of each row; by lane, then frame.
    """

    frames: NDArray[np.int64]
    finals: list[Array]
