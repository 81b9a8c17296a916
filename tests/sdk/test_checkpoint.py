"""A learner continues from its newest checkpoint, which is whole, whenever the learner was killed."""

import os
import random
import subprocess
import sys
import time
from itertools import islice
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from tests.job_server import Server
from tests.running import running

import rollfleet
from rollfleet.checkpoint import read
from rollfleet.errors import JobInvalid, RollfleetError
from rollfleet_api.permissions import Role

CARTPOLE = gymnasium.make("CartPole-v1")


class Learner:
    def __init__(self, folder: Path, **options: Any) -> None:
        self.policy = rollfleet.ActorCritic(CARTPOLE.observation_space, CARTPOLE.action_space, hidden=(8,))
        self.optimizer = torch.optim.Adam(self.policy.parameters())
        self.collector = rollfleet.Collector("CartPole-v1", self.policy, num_envs=2, frames_per_batch=64)
        parts = {"policy": self.policy, "optimizer": self.optimizer}
        self.checkpoint = rollfleet.Checkpoint(folder, self.collector, parts, **options)

    def train(self, batches: int) -> "Learner":
        """Train on batches, with a step of the checkpoint after each."""
        for batch in islice(self.collector, batches):
            self.optimizer.zero_grad()
            self.policy.value(batch["observation"]).square().mean().backward()
            self.optimizer.step()
            self.checkpoint.step()
        return self

    def state(self) -> tuple[Any, ...]:
        moments = self.optimizer.state_dict()["state"]
        return (
            [value.tolist() for value in self.policy.state_dict().values()],
            [[value.tolist() for value in each.values()] for each in moments.values()],
            (self.collector.frames, self.collector.batches, self.collector.version, self.collector.mean_return),
        )


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_next_learner_continues_with_policy_optimizer_and_counters(tmp_path: Path) -> None:
    first = Learner(tmp_path / "runs/a")
    assert not first.checkpoint.resume()
    first.train(3)
    second = Learner(tmp_path / "runs/a")
    assert second.state() != first.state()
    assert second.checkpoint.resume()
    assert second.state() == first.state()
    second.train(1)
    assert (second.collector.frames, second.collector.batches) == (256, 4)


@pytest.mark.parametrize("compiled", [0, 1])
def test_a_compiled_policy_continues_a_plain_one_and_the_other_way_round(tmp_path: Path, compiled: int) -> None:
    policies = [torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)]
    for policy, is_compiled in zip(policies, (compiled, not compiled), strict=True):
        with rollfleet.Collector("CartPole-v1", frames_per_batch=8) as collector:
            part: Any = torch.compile(policy, backend="eager") if is_compiled else policy
            checkpoint = rollfleet.Checkpoint(tmp_path, collector, {"policy": part})
            checkpoint.resume()
            checkpoint.save()
    assert list(read(tmp_path)[1]["parts"]["policy"]) == ["weight", "bias"]
    assert torch.equal(policies[0].weight, policies[1].weight)


def test_a_run_that_has_all_frames_says_that_it_trains_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for life in range(2):
        with rollfleet.Collector("CartPole-v1", frames_per_batch=64, total_frames=1280) as collector:
            checkpoint = rollfleet.Checkpoint(tmp_path, collector, {})
            assert checkpoint.resume() == (life == 1)
            assert len(list(collector)) == 20 * (life == 0)
            checkpoint.save()
    assert caplog.messages == [
        f"{tmp_path}/checkpoint-1.pt: resumed at its end: it has all 1,280 frames, and nothing is trained; "
        "to train again, name another folder"
    ]


def test_every_so_often_a_file_is_written_and_the_newest_stay(tmp_path: Path) -> None:
    learner = Learner(tmp_path, every=2, keep=3).train(7)
    assert names(tmp_path) == ["checkpoint-1.pt", "checkpoint-2.pt", "checkpoint-3.pt"]
    learner.train(5)
    assert names(tmp_path) == ["checkpoint-4.pt", "checkpoint-5.pt", "checkpoint-6.pt"]
    assert read(tmp_path)[1]["collector"]["batches"] == 12


def test_the_best_mean_return_stays_also_after_a_resume(tmp_path: Path) -> None:
    torch.manual_seed(0)
    returns = []
    for life in range(2):
        learner = Learner(tmp_path, keep=1, best="mean_return")
        assert learner.checkpoint.resume() == (life == 1)
        for _ in range(6):
            learner.train(1)
            returns.append(learner.collector.mean_return or 0.0)
            best = read(tmp_path / "best.pt")[1]["collector"]["episode_returns"]
            assert sum(best) / len(best) == max(returns)
    assert names(tmp_path) == ["best.pt", "checkpoint-12.pt"]
    assert max(returns) > returns[-1], "else the newest file would do"
    with pytest.raises(JobInvalid, match="best: expected 'mean_return' or None, got 'loss'"):
        Learner(tmp_path, best="loss")


def test_a_run_that_begins_again_in_the_same_folder_has_the_newest_file(tmp_path: Path) -> None:
    Learner(tmp_path).train(11)
    Learner(tmp_path).train(1)
    path, state = read(tmp_path)
    assert (path.name, state["collector"]["batches"]) == ("checkpoint-12.pt", 1)


def test_failed_save_leaves_the_earlier_file(tmp_path: Path) -> None:
    class Unsaved:
        def __reduce__(self) -> str:
            raise ZeroDivisionError

    learner = Learner(tmp_path).train(1)
    learner.optimizer.param_groups[0]["rule"] = Unsaved()
    with pytest.raises(ZeroDivisionError):
        learner.checkpoint.save()
    assert Learner(tmp_path).checkpoint.resume()
    assert read(tmp_path)[0].name == "checkpoint-1.pt"


def test_a_full_disk_is_an_error_of_the_system_with_the_file(tmp_path: Path) -> None:
    (tmp_path / "unfinished.tmp").symlink_to("/dev/full")
    with pytest.raises(OSError, match=r"No space left on device: '.*unfinished\.tmp'"):
        Learner(tmp_path).checkpoint.save()


@pytest.mark.parametrize("value", [np.float64(0.1), np.zeros(2)], ids=["number", "array"])
def test_a_state_that_cannot_be_resumed_is_not_saved(tmp_path: Path, value: object) -> None:
    learner = Learner(tmp_path).train(1)
    learner.optimizer.param_groups[0]["lr"] = value
    with pytest.raises(RollfleetError, match=r"the state of policy, optimizer has .*numpy\.dtype.*; convert it"):
        learner.checkpoint.save()
    assert read(tmp_path)[0].name == "checkpoint-1.pt"


@pytest.mark.parametrize("share", [0.0, 0.5, 0.99])
def test_damaged_file_is_named(tmp_path: Path, share: float) -> None:
    Learner(tmp_path).train(1)
    (path,) = tmp_path.iterdir()
    os.truncate(path, int(path.stat().st_size * share))
    with pytest.raises(RollfleetError, match=r"checkpoint-1\.pt is damaged, or no checkpoint \(.+\); "):
        Learner(tmp_path).checkpoint.resume()


def test_no_code_of_a_file_runs(tmp_path: Path) -> None:
    class Hostile:
        def __reduce__(self) -> tuple[Any, ...]:
            return Path.touch, (tmp_path / "ran",)

    torch.save({"job": {}, "collector": {}, "parts": Hostile()}, tmp_path / "checkpoint-1.pt")
    with pytest.raises(RollfleetError, match=r"is damaged, or no checkpoint \(Weights only load failed\); "):
        read(tmp_path)
    assert names(tmp_path) == ["checkpoint-1.pt"]


@pytest.mark.parametrize("saved", [{"policy": {}}, torch.zeros(1)], ids=["weights", "tensor"])
def test_another_file_of_torch_is_no_checkpoint(saved: object, tmp_path: Path) -> None:
    torch.save(saved, tmp_path / "policy.pt")
    with pytest.raises(RollfleetError, match=r"policy\.pt is no checkpoint; write one in the learner: rollfleet"):
        read(tmp_path / "policy.pt")


def test_other_parts_are_an_error_before_any_is_loaded(tmp_path: Path) -> None:
    Learner(tmp_path).train(1)
    learner = Learner(tmp_path)
    before = learner.state()
    other = rollfleet.Checkpoint(tmp_path, learner.collector, {"policy": learner.policy})
    with pytest.raises(RollfleetError, match="has the parts policy, optimizer, not policy;"):
        other.resume()
    assert learner.state() == before


@pytest.mark.parametrize("compiled", [False, True])
def test_a_file_of_another_network_is_named_with_its_part(tmp_path: Path, compiled: bool) -> None:
    with rollfleet.Collector("CartPole-v1", frames_per_batch=8) as collector:
        rollfleet.Checkpoint(tmp_path, collector, {"critic": torch.nn.Linear(3, 2)}).save()
        other: Any = torch.nn.Linear(3, 4)
        other = torch.compile(other, backend="eager") if compiled else other
        cause = r"^\S+checkpoint-1\.pt: the part 'critic' does not fit: .*size mismatch for weight.*; make it as it was"
        with pytest.raises(RollfleetError, match=cause):
            rollfleet.Checkpoint(tmp_path, collector, {"critic": other}).resume()


def test_a_part_without_a_state_is_named(tmp_path: Path) -> None:
    with pytest.raises(JobInvalid, match=r"parts\['loss'\]: a float has no state_dict"):
        rollfleet.Checkpoint(tmp_path, Learner(tmp_path).collector, {"loss": 1.0})


KILLED = """
import sys
import gymnasium, rollfleet, torch
env = gymnasium.make("CartPole-v1")
policy = rollfleet.ActorCritic(env.observation_space, env.action_space)
ballast = torch.nn.Linear(1024, 2048).requires_grad_(False)  # 8 MiB: a save takes longer than a batch
with rollfleet.connect(policy=policy) as collector:
    checkpoint = rollfleet.Checkpoint(sys.argv[1], collector, {"policy": policy, "ballast": ballast})
    checkpoint.resume()
    print(collector.frames, flush=True)
    for batch in collector:
        ballast.weight.fill_(collector.frames)
        checkpoint.step()
        print(collector.frames, flush=True)
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_killed_learner_of_a_job_continues_from_a_whole_file(server: Server, tmp_path: Path) -> None:
    collect = {"framesPerBatch": 64, "totalFrames": 64 * 100}
    worker = server.start_worker(server.own(mode="Sync", collect=collect), 0)
    folder, environ = tmp_path / "volume", os.environ | server.address(Role.LEARNER).variables()
    moments, saved = random.Random(0), 0
    for life in range(5):
        with running(sys.executable, "-c", KILLED, str(folder), env=environ, stdout=subprocess.PIPE) as learner:
            assert learner.stdout is not None
            assert int(next(learner.stdout)) == saved, f"life {life} did not continue"
            if life == 4:
                frames = [int(line) for line in learner.stdout]
                assert learner.wait(60) == 0
                break
            for _ in range(moments.randint(3, 8)):
                reported = int(next(learner.stdout))
            time.sleep(moments.uniform(0.0, 0.05))  # it is killed at a random moment
        states = [read(path)[1] for path in folder.glob("*.pt")]
        assert len(states) in (2, 3)  # killed before it deleted the oldest
        for state in states:
            assert bool((state["parts"]["ballast"]["weight"] == state["collector"]["frames"]).all())
        saved = read(folder)[1]["collector"]["frames"]
        assert saved >= reported
    assert frames == list(range(saved + 64, 6401, 64))
    worker.join()
    assert worker.error is None
