"""`torchrl.trainers.Trainer` over collectors of `rollfleet.torchrl`."""

from typing import Any

import pytest
import torch
from torch import nn
from torchrl.envs import GymEnv
from torchrl.modules import QValueActor
from torchrl.objectives import DQNLoss
from torchrl.trainers import Trainer

from rollfleet.torchrl import MultiSyncDataCollector, SyncDataCollector

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("forked")]  # warnings of TorchRL


def cartpole() -> Any:
    return GymEnv("CartPole-v1")


@pytest.mark.parametrize("processes", [False, True])
def test_a_trainer_trains_on_all_frames(processes: bool) -> None:
    actor = QValueActor(nn.Linear(4, 2), in_keys=["observation"], spec=cartpole().action_spec)
    loss = DQNLoss(actor, delay_value=False)
    frames: dict[str, Any] = {"frames_per_batch": 32, "total_frames": 128}
    collector: Any = (
        MultiSyncDataCollector([cartpole] * 2, actor, cat_results=0, **frames)
        if processes
        else SyncDataCollector(cartpole, actor, **frames)
    )
    trainer = Trainer(
        collector=collector,
        total_frames=128,
        frame_skip=1,
        optim_steps_per_batch=2,
        loss_module=loss,
        optimizer=torch.optim.Adam(loss.parameters()),
        progress_bar=False,
    )
    before = [each.clone() for each in actor.parameters()]
    trainer.train()
    assert trainer.collected_frames == 128
    assert all(not torch.equal(old, new) for old, new in zip(before, actor.parameters(), strict=True))
