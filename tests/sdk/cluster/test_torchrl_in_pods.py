"""Collectors of `rollfleet.torchrl` in pods: an argument that a program has for processes does the same there."""

import warnings
from typing import Any

import pytest
from tests.sdk.cluster.kubelet import Kubelet

from rollfleet import Cluster
from rollfleet.cluster.api import ClusterApi

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore")]  # of TorchRL


def test_hooks_calls_devices_and_postproc_of_a_program_act_in_pods(kubelet: Kubelet, api: ClusterApi) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from tests.sdk.torchrl.programs import linear, pendulum

        from rollfleet.torchrl import MultiSyncCollector
    keywords: dict[str, Any] = {
        "init_fn": lambda: print("begins", flush=True),
        "pre_collect_hook": lambda: print("before", flush=True),
        "post_collect_hook": lambda batch: print("after", list(batch.shape), flush=True),
        "postproc": lambda batch: batch.reshape(-1),
    }
    place = Cluster(namespace=api.namespace, timeout_s=120)
    collector: Any = MultiSyncCollector(
        [pendulum] * 2, linear(), frames_per_batch=20, total_frames=40, device="cpu", cluster=place, **keywords
    )
    try:
        assert collector.map_fn("env.set_seed", [(1,), (2,)]) == [pendulum().set_seed(1), pendulum().set_seed(2)]
        assert [tuple(batch.shape) for batch in collector] == [(20,)] * 2
    finally:
        collector.shutdown()
    for worker in (0, 1):
        lines = kubelet.log(worker).splitlines()
        said = [line for line in lines if line.startswith(("begins", "before", "after"))]
        assert said[:5] == ["begins", "before", "after [10]", "before", "after [10]"]
