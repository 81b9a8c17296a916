"""Who takes part in a step, and what a number of steps gives."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rollfleet.envs.factory import VectorEnv
from rollfleet.policies.actor import Actor, Array
from rollfleet.rollout.episodes import EpisodeCounts
from rollfleet.rollout.settings import RolloutSettings
from rollfleet.rollout.trajectory_ids import TrajectoryIds


class StepContext(NamedTuple):
    """What the lanes of a rollout have in common."""

    env: VectorEnv
    actor: Actor
    episodes: EpisodeCounts
    trajectories: TrajectoryIds
    settings: RolloutSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """What was written into a storage.

    Attributes:
        frames: int64 [envs]: how many, of each lane.
        finals: For each carried leaf [n, ...]: what came after the frames that ended and, unless only whole
            trajectories are wanted, after the last frame of each row; by lane, then frame.
    """

    frames: NDArray[np.int64]
    finals: list[Array]
