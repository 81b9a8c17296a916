"""The seam between a rollout and the ways in which it steps environments, and the memory that they fill."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rollfleet.data.batch import FIXED, REWARD, STEP_COUNT, TERMINATED, TRUNCATED, Key, Layout
from rollfleet.data.tensor_memory import Array, as_array
from rollfleet.envs.factory import VectorEnv
from rollfleet.errors import EnvironmentInvalid
from rollfleet.policies.actor import Actor
from rollfleet.rollout.episodes import EpisodeCounts
from rollfleet.rollout.infos import Infos
from rollfleet.rollout.trajectory_ids import TrajectoryIds
from rollfleet_api.collection import CollectSpec

_SCALARS = (REWARD, TERMINATED, TRUNCATED, STEP_COUNT)


class Storage:
    """Preallocated memory for all values of a fragment, [envs, frames].

    Readers get torch tensors, and the loop that writes gets numpy views of them.

    Attributes:
        tensors: By key, contiguous, [envs, frames, ...].
        arrays: Views of the same memory. Flags, reward and step_count lack their last dimension of 1; bfloat16 is
            int16.
    """

    def __init__(self, layout: Layout, envs: int, frames: int) -> None:
        """Allocate the values that every fragment has, and those in `layout`."""
        # Policies run in inference mode; memory that is allocated there could not be trained on.
        with torch.inference_mode(False):
            self.tensors: dict[Key, Tensor] = {
                key: torch.zeros((envs, frames, *shape), dtype=dtype, device="cpu")
                for key, (dtype, shape) in {**layout, **FIXED}.items()
            }
        self.arrays: dict[Key, Array] = {
            key: as_array(tensor)[..., 0] if key in _SCALARS else as_array(tensor)
            for key, tensor in self.tensors.items()
        }


class StepContext(NamedTuple):
    """The parts of a rollout that its stepper works with."""

    env: VectorEnv
    actor: Actor
    episodes: EpisodeCounts
    trajectories: TrajectoryIds
    spec: CollectSpec
    infos: Infos | None


def check_outcome(env: VectorEnv, outcome: Sequence[Any]) -> None:
    """Check the rewards and flags of a step: numpy would repeat a single one, and take any value for a flag.

    Raises:
        EnvironmentInvalid: One is not [envs], rewards are not numbers, or flags are neither true nor false.
    """
    for name, value in zip(("rewards", "terminated", "truncated"), outcome, strict=True):
        kinds, wanted = ("biuf", "numbers") if name == "rewards" else ("b", "True or False")
        found = np.asarray(value)
        if found.shape != (env.num_envs,):
            raise EnvironmentInvalid(
                f"environment {env} returned {name} of shape {list(found.shape)}; expected [{env.num_envs}]"
            )
        if found.dtype.kind not in kinds and (kinds != "b" or not np.isin(found, (0, 1)).all()):
            raise EnvironmentInvalid(f"environment {env} returned {name} {found.tolist()}; expected {wanted}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """The frames that a stepper wrote into a storage.

    Attributes:
        frames: int64 [envs], the number of frames of each environment.
        finals: One array [n, ...] per carried leaf: the observations after frames that ended an episode. Without
            `trajs_per_batch` also those after the last frame of each row. Sorted by environment, then frame.
    """

    frames: NDArray[np.int64]
    finals: list[Array]


class Stepper(Protocol):
    """Steps a vector of environments and writes their frames. A rollout has one and owns it.

    A new stepper expects all environments at the first observation of an episode, in `actor.carried`. The order of
    calls is `resume` or `restart`, then `collect`. T may differ from one `collect` to the next.
    """

    def restart(self) -> None:
        """Start over: all environments were reset, and frames that were kept back are dropped."""

    def resume(self) -> None:
        """Start the next fragment: reset environments that waited for it."""

    def collect(
        self, into: Storage, act: Callable[[], list[Array]], *, version: int, stop: Callable[[], bool]
    ) -> Collected:
        """Fill a storage [envs, T]; when `stop` is true, fill as much as every environment has.

        `act` calls the policy on `actor.carried`, into which the policy may write: record it before. `stop` is checked
        between steps, after at least one frame of each environment.
        """
