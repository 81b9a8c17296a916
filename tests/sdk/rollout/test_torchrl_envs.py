"""Environments of TorchRL, each kind in each place: the batches are those of TorchRL's own collector, bit by bit."""

import math
from typing import TYPE_CHECKING

import pytest
from tests.sdk.rollout.torchrl_envs import KINDS, NOT_FORKED, POLICIES
from tests.sdk.rollout.torchrl_reference import ACTIONS_DO_NOT_MATTER, BATCHES, T, assert_equal, rows_of, torchrls

if TYPE_CHECKING:
    from tests.sdk.places import Collect

pytestmark = pytest.mark.filterwarnings("ignore")  # of TorchRL, its mocks and the simulators


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_equals_that_of_torchrls_collector(collect: "Collect", kind: str) -> None:
    make, policy = KINDS[kind], POLICIES.get(kind)
    expected = list(torchrls(make, policy, resets=kind not in ACTIONS_DO_NOT_MATTER))
    envs = math.prod(expected[0].shape[:-1])
    frames = T * envs * collect.alone.get("workers", collect.workers)  # of two processes, the first has their seeds
    keywords = collect.alone | (collect.spawned if kind in NOT_FORKED else {})
    with collect(
        make, policy, frames_per_batch=frames, num_envs=envs, total_frames=BATCHES * frames, **keywords
    ) as collector:
        for batch, theirs in zip(collector, expected, strict=True):
            assert_equal(batch[:envs], rows_of(theirs))
