"""Workers of `rollfleet.torchrl` as users have them: new interpreters, which get functions pickled."""

from typing import Any

import pytest
from tests.sdk.torchrl.programs import linear, pendulum, running
from torchrl.envs import EnvCreator

from rollfleet.torchrl import AsyncCollector

pytestmark = pytest.mark.filterwarnings("ignore")  # of TorchRL


def test_functions_and_their_keyword_arguments_reach_the_worker() -> None:
    seen = []
    given: Any
    for make, given in ((EnvCreator(lambda: pendulum(3)), {}), (pendulum, {"create_env_kwargs": {"seed": 3}})):
        with running(AsyncCollector(make, linear(), frames_per_batch=10, total_frames=10, **given)) as collector:
            seen += list(collector)
    assert (seen[0] == seen[1]).all()
