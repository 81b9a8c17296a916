"""Environments of TorchRL, each kind in each place: the batches are those of TorchRL's own collector, bit by bit."""

import math
from functools import cache
from typing import TYPE_CHECKING

import pytest
from tests.sdk.rollout.torchrl_envs import KINDS, NOT_FORKED, POLICIES
from tests.sdk.rollout.torchrl_reference import ACTIONS_DO_NOT_MATTER, BATCHES, T, assert_equal, rows_of, torchrls

if TYPE_CHECKING:
    from tensordict import TensorDict
    from tests.sdk.places import Collect

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
def expected_of(kind: str) -> "list[TensorDict]":
    return list(torchrls(KINDS[kind], POLICIES.get(kind), resets=kind not in ACTIONS_DO_NOT_MATTER))


def check(collect: "Collect", kind: str) -> None:
    expected = expected_of(kind)
    envs = math.prod(expected[0].shape[:-1])
    frames = T * envs * collect.alone.get("workers", collect.workers)  # of two processes, the first has their seeds
    keywords = collect.alone | (collect.spawned if kind in NOT_FORKED else {})
    keywords |= {"frames_per_batch": frames, "num_envs": envs, "total_frames": BATCHES * frames}
    with collect(KINDS[kind], POLICIES.get(kind), **keywords) as collector:
        for batch, theirs in zip(collector, expected, strict=True):
            assert_equal(batch[:envs], rows_of(theirs))


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_equals_that_of_torchrls_collector(here: "Collect", kind: str) -> None:
    check(here, kind)


@pytest.mark.parametrize(
    "kind", [kind if kind in OF_OWN_STRUCTURE else pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS]
)
def test_a_batch_of_other_workers_equals_that_of_torchrls_collector(apart: "Collect", kind: str) -> None:
    check(apart, kind)
