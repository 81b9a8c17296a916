"""`info_keys`: infos of the environments, in every place."""

from itertools import islice
from typing import Any

import pytest
import torch
from tests.sdk.places import Collect

import rollfleet
from rollfleet.errors import JobInvalid
from rollfleet.testing.counting_env import CountingEnv


class Reporting(CountingEnv):
    """Reports its observation in each step, and its success in the last step of an episode."""

    def step(self, action: Any) -> Any:
        *outcome, _ = super().step(action)
        done = outcome[2]
        return *outcome, {"steps": outcome[0][0]} | ({"success": True} if done else {})


def test_batches_have_the_infos_that_were_asked_for(collect: Collect) -> None:
    buffer = rollfleet.ReplayBuffer(1000)
    keywords: dict[str, Any] = {"num_envs": 2, "frames_per_batch": 8 * collect.workers}
    collector = collect(Reporting, info_keys=["steps", "success"], **keywords)
    for batch in islice(collector, 3):  # 4 frames a row: no episode ends in the first batch
        buffer.extend(batch.reshape(-1))
        infos = batch["next", "info"]
        assert torch.equal(infos["steps"], batch["next", "observation"].squeeze(-1).double())
        assert torch.equal(infos["success"].isnan(), ~batch["next", "done"].squeeze(-1))
    assert buffer.sample(8)["next", "info", "success"].shape == (8,)
    collector.shutdown()
    assert ("next", "info") not in next(collect(Reporting, **keywords)).keys(True)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("success", r"info_keys: expected a list, got 'success'; write `info_keys=\['success'\]`"),
        (5, r"info_keys: expected a list, got 5; write `info_keys=\[5\]`"),
        (["success", 1], r'info_keys\[1\]: expected text, got 1; write it in quotes: "1"'),
    ],
)
def test_info_keys_is_a_sequence_of_names(here: Collect, wrong: Any, message: str) -> None:
    with pytest.raises(JobInvalid, match=f"^{message}$"):
        here("CartPole-v1", num_envs=1, frames_per_batch=8, info_keys=wrong)
