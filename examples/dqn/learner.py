"""DQN on CartPole-v1: double, with n-step returns and prioritised replay of TorchRL.

`rollfleet run examples/dqn/job.yaml --learner examples/dqn/learner.py`; with `-- --resume`, from the newest checkpoint
on, with an empty buffer.
"""

import argparse
import copy
import time
from pathlib import Path

import gymnasium
import torch
import torch.nn.functional as F
from dqn_policy import QNetwork, make
from tensordict import TensorDict
from torchrl.data import LazyTensorStorage, TensorDictPrioritizedReplayBuffer
from torchrl.data.postprocs import MultiStep

import rollfleet

GAMMA, N_STEPS, LEARNING_RATE, MAX_GRADIENT_NORM = 0.99, 3, 2.3e-3, 10.0
BUFFER_FRAMES, SAMPLE_FRAMES, WARM_UP_FRAMES = 100_000, 64, 1000
PRIORITY, CORRECTION = 0.6, 0.4  # exponents of priorities, and of the weights that make up for them
# Workers wait until the learner takes their batches, so this alone decides how much is learned from a frame.
FRAMES_PER_UPDATE, UPDATES_PER_TARGET = 2, 128
EXPLORED_FRAMES, LAST_EPSILON = 8000, 0.04
STORED = ("observation", "action", "gamma", *(("next", key) for key in ("observation", "reward", "terminated")))

multi_step = MultiStep(GAMMA, N_STEPS)


def n_step(batch: TensorDict) -> TensorDict:
    """Make n-step frames of a batch `[envs, T]`: fewer steps at an episode's end and in a row's last frames.

    `MultiStep` moves the next observation and sums rewards, but leaves `terminated` at the first step.
    """
    moved = multi_step(batch)
    last = torch.arange(batch.shape[1]) + moved["steps_to_next_obs"] - 1
    moved["next", "terminated"] = batch["next", "terminated"].gather(1, last[..., None])
    return moved.select(*STORED)


class Dqn:
    """The policy, which is broadcast, its target network and the optimizer."""

    def __init__(self, policy: QNetwork) -> None:
        self.policy, self.target = policy, copy.deepcopy(policy).requires_grad_(False)
        self.optimizer = torch.optim.Adam(policy.parameters(), lr=LEARNING_RATE, fused=True)
        self.updates = 0

    def explore(self, frames: int) -> None:
        """Set the epsilon of the next version."""
        self.policy.epsilon.fill_(max(LAST_EPSILON, 1 - (1 - LAST_EPSILON) * frames / EXPLORED_FRAMES))

    def update(self, replay: TensorDictPrioritizedReplayBuffer) -> None:
        """Make one gradient step, and give the sampled frames their new priorities."""
        frames = replay.sample()
        following = frames["next", "observation"]
        with torch.no_grad():
            best = self.policy.values(following).argmax(-1, keepdim=True)
            next_value = self.target.values(following).gather(-1, best)[..., 0]
            # A truncated episode would have continued: only a terminated one has no value after its end.
            continues = (~frames["next", "terminated"][..., 0]).float()
            wanted = frames["next", "reward"][..., 0] + frames["gamma"] * continues * next_value
        value = self.policy.values(frames["observation"]).gather(-1, frames["action"][..., None])[..., 0]
        loss = (frames["priority_weight"] * F.smooth_l1_loss(value, wanted, reduction="none")).mean()
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.policy.parameters(), MAX_GRADIENT_NORM)
        self.optimizer.step()
        frames["td_error"] = (value.detach() - wanted).abs()
        replay.update_tensordict_priority(frames)
        self.updates += 1
        if self.updates % UPDATES_PER_TARGET == 0:
            self.target.load_state_dict(self.policy.state_dict())


def main(folder: Path, *, seed: int, resume: bool) -> None:
    """Train until the job's frames are used up."""
    torch.set_num_threads(1)  # for networks this small, threads cost more than they gain
    torch.manual_seed(seed)
    env = gymnasium.make("CartPole-v1")
    policy = make(env.observation_space, env.action_space)
    dqn = Dqn(policy)
    parts = {"policy": policy, "target": dqn.target, "optimizer": dqn.optimizer}
    replay = TensorDictPrioritizedReplayBuffer(
        alpha=PRIORITY, beta=CORRECTION, storage=LazyTensorStorage(BUFFER_FRAMES), batch_size=SAMPLE_FRAMES
    )
    began = time.monotonic()
    with rollfleet.connect(policy=policy, postproc=n_step, replay_buffer=replay) as collector:
        checkpoint = rollfleet.Checkpoint(folder, collector, parts, every=20, best="mean_return")
        if resume:
            checkpoint.resume()
        seen = collector.frames
        with rollfleet.LearningCurve(folder, title="DQN on CartPole-v1", after=seen) as curve:
            for _ in collector:  # the batch is in the replay buffer
                if len(replay) > WARM_UP_FRAMES:
                    for _ in range((collector.frames - seen) // FRAMES_PER_UPDATE):
                        dqn.update(replay)
                seen = collector.frames
                dqn.explore(seen)
                checkpoint.step()
                curve.add(frames=seen, mean_return=collector.mean_return, version=collector.version)
                if collector.batches % 20 == 0:
                    print(f"{seen:7,} frames  mean return {collector.mean_return or 0:6.1f}  eps {policy.epsilon:.2f}")
            print(f"learning curve: {curve.save()}; trained policy: {checkpoint.save()}")
    found = rollfleet.evaluate(policy, "CartPole-v1", episodes=20)
    print(f"without exploration: mean return {found.mean_return:.1f}; {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("runs/dqn"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--resume", action="store_true", help="continue from the newest checkpoint, if there is one")
    given = parser.parse_args()
    main(given.output, seed=given.seed, resume=given.resume)
