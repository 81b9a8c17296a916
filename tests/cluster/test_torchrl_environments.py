"""Environments of TorchRL, each kind in pods: the batches are those of TorchRL's own collector, bit by bit."""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from tests.cluster.lab import Lab
from tests.sdk.places import Collect
from tests.sdk.rollout.torchrl_envs import KINDS, POLICIES, SIMULATORS
from tests.sdk.rollout.torchrl_reference import ACTIONS_DO_NOT_MATTER, assert_collects, torchrls

from rollfleet import Cluster, Collector

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(400),
    pytest.mark.filterwarnings("ignore"),  # of TorchRL, its mocks and the simulators
]


class CollectInPods(Collect):
    """One worker in a pod of a namespace."""

    def __init__(self, stack: ExitStack, namespace: str) -> None:
        super().__init__(stack)
        self._place = Cluster(namespace=namespace, name="kind")

    def __call__(self, env: Any, policy: Any = None, **keywords: Any) -> Collector:
        return self._kept(Collector(env, policy, workers=1, cluster=self._place, **keywords))


@pytest.fixture
def in_pods(lab: Lab) -> Iterator[Collect]:
    with ExitStack() as stack:
        yield CollectInPods(stack, lab.namespace)


@pytest.mark.parametrize("kind", sorted(KINDS.keys() - SIMULATORS.keys()))  # no image has the simulators
def test_a_batch_from_a_pod_equals_that_of_torchrls_collector(in_pods: Collect, kind: str) -> None:
    expected = list(torchrls(KINDS[kind], POLICIES.get(kind), resets=kind not in ACTIONS_DO_NOT_MATTER))
    assert_collects(in_pods, KINDS[kind], POLICIES.get(kind), expected)
