"""Fragments of changing lengths record the same frames as one long fragment."""

import pytest
import torch
from tests.sdk.rollouts import rollout_of, towards_fall

from rollfleet.data.batch import Fragment, to_batch
from rollfleet.rollout.rollout import Rollout
from rollfleet_api.job import EnvSpec, Vectorization


def rollout(vectorization: Vectorization, steps: int) -> Rollout:
    """CartPoles that reset in a step of their own (Native) or within one (Sync)."""
    return rollout_of(EnvSpec(id="CartPole-v1", num_envs=3, vectorization=vectorization), towards_fall, steps=steps)


LENGTHS = (12, 5, 30, 30, 1, 42)  # shorter, longer, and the same again


@pytest.mark.parametrize("vectorization", [Vectorization.SYNC, Vectorization.NATIVE])
def test_changed_lengths_leave_no_gap_and_no_seam(vectorization: Vectorization) -> None:
    whole = to_batch(rollout(vectorization, sum(LENGTHS)).collect(version=0))
    changing = rollout(vectorization, LENGTHS[0])
    parts = [to_batch(changing.collect(version=0, steps=steps)).clone() for steps in LENGTHS]
    assert [part.shape[1] for part in parts] == list(LENGTHS)
    for key in whole.keys(include_nested=True, leaves_only=True):
        assert torch.equal(torch.cat([part[key] for part in parts], dim=1), whole[key]), key


def test_a_length_stays_until_it_is_changed() -> None:
    changing = rollout(Vectorization.SYNC, 8)

    def frames(fragment: Fragment) -> int:
        return fragment.steps[("collector", "traj_ids")].shape[1]

    assert frames(changing.collect(version=0, steps=4)) == 4
    assert frames(changing.collect(version=0)) == 4
