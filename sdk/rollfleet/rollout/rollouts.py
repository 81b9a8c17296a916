"""The seam between a worker and the ways to collect: Gymnasium's vector environments, and TorchRL's environments."""

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from rollfleet.data.batch import Fragment
from rollfleet.envs.settings import Settings
from rollfleet.envs.torchrl_env import TorchRLEnv
from rollfleet.envs.vector import ServedVectorEnv
from rollfleet.errors import EnvironmentInvalid
from rollfleet.rollout.rollout import Rollout
from rollfleet.rollout.seeding import Seeds
from rollfleet.rollout.trajectory_ids import TrajectoryIds


class Rollouts(Protocol):
    """Collects fragments of T steps from environments that it owns. Use it from one thread at a time.

    After an exception out of `collect`, the next `collect` begins new episodes in all environments.
    """

    @property
    def path(self) -> str:
        """What of TorchRL's environment and policy the last batch ran on plain tensors; empty: neither is TorchRL's."""

    @property
    def first_reset_failed(self) -> bool:
        """Whether the first reset of the environments raised."""

    @property
    def environments_s(self) -> float:
        """The seconds that the environments have taken so far; 0: unknown."""

    def collect(
        self,
        *,
        version: int,
        steps: int = 0,
        random_actions: bool = False,
        stop: Callable[[], bool] = lambda: False,
    ) -> Fragment:
        """Collect T more frames of each environment or, with `trajs_per_batch`, that many whole trajectories."""

    def reseed(self, seeds: Seeds, trajectories: TrajectoryIds) -> None:
        """Make the next fragment that of a new rollout with these seeds and ids, same environments and policy."""

    def set_env(self, settings: Settings) -> None:
        """Set the environments' settings: each has them from its next reset on.

        Raises:
            EnvironmentInvalid: They cannot take them.
        """

    def start_over(self) -> None:
        """Begin new episodes in the next `collect`: the last fragment is lost. Exceptions in `collect` do so, too."""

    def outcomes(self, fragment: Fragment) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Return the reward of each frame of a fragment, and whether its episode ended with it: `[envs, T]` each."""

    def close(self) -> None:
        """Close the environments and end their processes, even in mid-step. May be called again."""


def make_rollout(env: Any, policy: Any, **options: Any) -> Rollouts:
    """Return the rollout for environments of this kind. `Rollout` has the options.

    Raises:
        EnvironmentInvalid: The environments do not suit the options.
        PolicyInvalid: The policy does not suit the environments.
    """
    if isinstance(env, TorchRLEnv):
        if options.pop("failures", None) is not None:
            raise EnvironmentInvalid(
                f"environment {env}: TorchRL's environments cannot be replaced one by one; remove `env_failures` "
                "(`failure.environments` of a job)"
            )
        from rollfleet.rollout.tensordict_rollout import TensorDictRollout

        return TensorDictRollout(env, policy, **options)
    if isinstance(env, ServedVectorEnv):
        env.reset_on_request()  # no step goes to resets, and an environment that fails can be replaced
    return Rollout(env, policy, **options)
