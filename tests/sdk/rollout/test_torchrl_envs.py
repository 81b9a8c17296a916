"""Environments of TorchRL, each kind in each place: the batches are those of TorchRL's own collector, bit by bit."""

from functools import cache

import pytest
from tensordict import TensorDict
from tests.sdk.places import Collect
from tests.sdk.rollout.torchrl_envs import KINDS, NOT_FORKED, POLICIES
from tests.sdk.rollout.torchrl_reference import ACTIONS_DO_NOT_MATTER, assert_collects, torchrls

pytestmark = pytest.mark.filterwarnings("ignore")  # of TorchRL, its mocks and the simulators


OF_OWN_STRUCTURE = {
    "agents-that-die",
    "batched",
    "changing-shape",
    "counted",
    "different-agents",
    "groups",
    "images",
    "mask",
    "parallel",
    "text",
}
"""Kinds whose batches, or processes, are of another structure than those of the others."""


@cache
def expected_of(kind: str) -> list[TensorDict]:
    return list(torchrls(KINDS[kind], POLICIES.get(kind), resets=kind not in ACTIONS_DO_NOT_MATTER))


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_equals_that_of_torchrls_collector(here: Collect, kind: str) -> None:
    assert_collects(here, KINDS[kind], POLICIES.get(kind), expected_of(kind))


@pytest.mark.parametrize(
    "kind", [kind if kind in OF_OWN_STRUCTURE else pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS]
)
def test_a_batch_of_other_workers_equals_that_of_torchrls_collector(apart: Collect, kind: str) -> None:
    spawned = apart.spawned if kind in NOT_FORKED else {}
    assert_collects(apart, KINDS[kind], POLICIES.get(kind), expected_of(kind), **spawned)
