"""`RunningNorm`: its statistics travel with the weights, are saved, and stand still while a policy acts."""

from pathlib import Path

import gymnasium
import torch
from tests.sdk.places import CollectInProcesses
from torch import Tensor, nn

import rollfleet
from rollfleet.checkpoint import read


class Normalised(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        env = gymnasium.make("CartPole-v1")
        self.norm = rollfleet.RunningNorm((4,))
        self.networks = rollfleet.ActorCritic(env.observation_space, env.action_space)

    def forward(self, observation: Tensor) -> dict[str, Tensor]:
        outputs: dict[str, Tensor] = self.networks(self.norm(observation))
        return outputs


def test_merged_statistics_are_those_of_all_observations() -> None:
    norm, seen = rollfleet.RunningNorm((2, 3)), 5 + 3 * torch.randn(7, 4, 2, 3, dtype=torch.float64)
    for part in seen.split([1, 4, 2]):
        norm.update(part)
    variance, mean = torch.var_mean(seen.flatten(0, 1), 0, correction=0)
    torch.testing.assert_close((norm.mean, norm.variance, norm.count), (mean, variance, torch.tensor(28.0).double()))
    torch.testing.assert_close(norm(seen), ((seen - mean) / variance.sqrt()).float())
    assert norm(torch.full((2, 3), 1e6)).unique().tolist() == [10]


def test_workers_act_on_the_statistics_of_their_version_and_a_checkpoint_has_them(
    processes: CollectInProcesses, tmp_path: Path
) -> None:
    policy = Normalised()
    collector = processes("CartPole-v1", policy, workers=1, num_envs=2, frames_per_batch=64, total_frames=192)
    means = []
    for batch in collector:
        with torch.no_grad():
            log_prob, _, _ = policy.networks.evaluate(policy.norm(batch["observation"]), batch["action"])
        torch.testing.assert_close(batch["action_log_prob"], log_prob)
        policy.norm.update(batch["observation"])
        means.append(policy.norm.mean.tolist())
    assert len({tuple(mean) for mean in means}) == 3
    rollfleet.evaluate(policy, "CartPole-v1", 2)
    rollfleet.Checkpoint(tmp_path, collector, {"policy": policy}).save()
    assert read(tmp_path)[1]["parts"]["policy"]["norm.mean"].tolist() == policy.norm.mean.tolist() == means[-1]


def test_an_update_of_no_frames_changes_nothing() -> None:
    norm = rollfleet.RunningNorm((4,))
    norm.update(torch.randn(7, 4))
    before = {name: value.clone() for name, value in norm.state_dict().items()}
    norm.update(torch.zeros(0, 4))
    assert all(torch.equal(value, before[name]) for name, value in norm.state_dict().items())
