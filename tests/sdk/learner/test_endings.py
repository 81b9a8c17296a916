"""The end of a collector raises each error that no call has raised, once."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from tests.sdk.counting import always_0
from tests.sdk.places import Collect
from tests.waiting import wait_until

from rollfleet import Collector
from rollfleet.errors import JobInvalid, WorkerFailed
from rollfleet.testing import CountingEnv
from rollfleet_api.messages import WorkerState

OPTIONS: dict[str, Any] = {"num_envs": 1, "frames_per_batch": 16}
BREAKS: dict[str, Any] = OPTIONS | {"env_kwargs": {"breaks_at": 3}}


def test_each_call_raises_an_error_again_and_the_end_of_the_with_block_does_not(apart: Collect) -> None:
    with apart(CountingEnv, always_0, **BREAKS) as collector:
        for _ in range(2):
            with pytest.raises(WorkerFailed, match="the simulator broke"):
                next(collector)
            with suppress(WorkerFailed), collector.pause():
                pass  # a pause that failed does not pause
        with pytest.raises(JobInvalid, match="there is no worker 9"):  # another error does not hide the first
            collector.update_policy_weights_({}, worker_ids=9)


def test_shutdown_raises_an_error_that_no_call_has_raised(here: Callable[..., Collector]) -> None:
    """In mode async a worker may break while the learner is busy with the batch before."""
    place = {"mode": "async", "workers": 1, "start_method": "fork", "frames_per_batch": 2}
    collector = here(CountingEnv, always_0, **BREAKS | place)
    next(collector)
    wait_until(lambda: collector.stats().workers[0].state is WorkerState.FAILED)  # known, and not raised yet
    with pytest.raises(WorkerFailed, match="the simulator broke"):
        collector.shutdown()
