"""TorchRL's environments stepped without a collector: what a batch begins with, and whose error ends it."""

from typing import Any

import pytest
from tests.sdk.rollout.failing import Failing
from torchrl.envs import GymEnv, GymWrapper, StepCounter, TransformedEnv
from torchrl.modules import RandomPolicy

from rollfleet.data.batch import to_batch
from rollfleet.envs.torchrl_env import TorchRLEnv
from rollfleet.errors import EnvironmentInvalid
from rollfleet.rollout.seeding import Seeds
from rollfleet.rollout.tensordict_rollout import TensorDictRollout
from rollfleet.rollout.trajectory_ids import TrajectoryIds
from rollfleet_api.job import CollectSpec

pytestmark = pytest.mark.filterwarnings("ignore")  # of TorchRL

STEPS, EPISODE = 4, 7


def rollout_of(env: Any, incarnation: int = 0, **collect: Any) -> TensorDictRollout:
    return TensorDictRollout(
        TorchRLEnv(env),
        RandomPolicy(env.full_action_spec),
        steps=STEPS,
        seeds=Seeds.derive(0, 0, incarnation, 1),
        trajectories=TrajectoryIds(0, incarnation),
        collect=CollectSpec(frames_per_batch=STEPS, **collect),
    )


def test_reset_at_each_iter_resets_once_for_a_batch_of_whole_trajectories() -> None:
    env = TransformedEnv(GymEnv("Pendulum-v1"), StepCounter(max_steps=EPISODE))
    rollout = rollout_of(env, trajs_per_batch=1, reset_at_each_iter=True)
    for version in range(2):
        stop = iter([False] * 99 + [True] * 99).__next__  # ends a rollout that completes none
        batch = to_batch(rollout.collect(version=version, stop=stop))
        assert batch["step_count"].flatten().tolist() == list(range(EPISODE))
    rollout.close()


@pytest.mark.parametrize(("incarnation", "error"), [(0, EnvironmentInvalid), (1, ConnectionError)])
def test_a_first_reset_that_fails_is_a_wrong_environment_unless_its_worker_was_restarted(
    incarnation: int, error: type[Exception]
) -> None:
    rollout = rollout_of(GymWrapper(Failing(resets=False)), incarnation)
    with pytest.raises(error, match="no simulator"):
        rollout.collect(version=0)
    rollout.close()
