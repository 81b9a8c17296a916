"""What owns descriptors, processes or connections refuses copies and pickles, whose end would close them."""

import copy
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from tests.held import descriptors
from tests.sdk.counting import always_0
from torch.utils.data import DataLoader

from rollfleet import Collector, Processes
from rollfleet.envs.subprocesses import ProcessVectorEnv
from rollfleet.errors import JobEnded
from rollfleet.system.shared_memory import SharedMemory
from rollfleet.testing import CountingEnv

PLACES: list[dict[str, Any]] = [{}, {"workers": 1, "processes": Processes(start_method="fork")}]


@pytest.fixture(params=PLACES, ids=["here", "processes"])
def make(request: pytest.FixtureRequest) -> Callable[[], Collector]:
    return lambda: Collector(CountingEnv, always_0, frames_per_batch=4, **request.param)


@pytest.mark.parametrize("copied", [copy.deepcopy, copy.copy, pickle.dumps])
def test_a_failed_copy_of_a_collector_closes_nothing(
    make: Callable[[], Collector], copied: Callable[[Any], object]
) -> None:
    with make() as collector:
        before = descriptors()
        with pytest.raises(TypeError, match="a Collector cannot be copied or pickled"):
            copied({"c": collector} if copied is copy.deepcopy else collector)
        assert before <= descriptors()
        assert next(collector).numel() == 4


@pytest.mark.parametrize("owner", [SharedMemory.create, lambda: ProcessVectorEnv([CountingEnv], 1)])
def test_owners_of_descriptors_cannot_be_copied(owner: Callable[[], Any]) -> None:
    owns = owner()
    with pytest.raises(TypeError, match=f"a {type(owns).__name__} cannot be copied or pickled"):
        copy.deepcopy([owns])
    owns.close()


def test_a_data_loader_with_processes_is_refused(make: Callable[[], Collector]) -> None:
    with make() as collector:
        load = partial(
            DataLoader, collector, batch_size=None, collate_fn=lambda batch: batch, multiprocessing_context="fork"
        )
        with pytest.raises(JobEnded, match="num_workers=0"):
            next(iter(load(collate_fn=lambda batch: batch, num_workers=2)))
        assert next(collector).numel() == 4
