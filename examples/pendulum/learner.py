"""SAC on Pendulum-v1, with a replay buffer that workers fill while the learner trains.

`rollfleet run examples/pendulum/job.yaml --learner examples/pendulum/learner.py`
"""

import argparse
import copy
import time
from pathlib import Path

import gymnasium
import torch
from pendulum_policy import Actor, make
from tensordict import TensorDict
from torch import Tensor, nn

import rollfleet

GAMMA, TARGET_RATE, LEARNING_RATE = 0.99, 0.005, 1e-3
BUFFER_FRAMES, SAMPLE_FRAMES = 100_000, 256
# Workers wait until the learner takes their batches, so this alone decides how much is learned from a frame.
FRAMES_PER_UPDATE = 2
HIDDEN = 64
SOLVED_RETURN = -200.0


class Replay:
    """The newest frames, in memory that is allocated once."""

    def __init__(self, observation_size: int, action_size: int) -> None:
        self.observation = torch.zeros(BUFFER_FRAMES, observation_size)
        self.action = torch.zeros(BUFFER_FRAMES, action_size)
        self.reward = torch.zeros(BUFFER_FRAMES)
        self.next_observation = torch.zeros(BUFFER_FRAMES, observation_size)
        self.terminated = torch.zeros(BUFFER_FRAMES)
        self.added = 0

    def add(self, batch: TensorDict) -> None:
        """Copy a batch, TensorDict `[envs, T]`, over the oldest frames."""
        at = torch.arange(self.added, self.added + batch.numel()) % BUFFER_FRAMES
        self.observation[at] = batch["observation"].flatten(0, 1)
        self.action[at] = batch["action"].flatten(0, 1)
        self.reward[at] = batch["next", "reward"].flatten()
        self.next_observation[at] = batch["next", "observation"].flatten(0, 1)
        self.terminated[at] = batch["next", "terminated"].flatten().float()
        self.added += batch.numel()

    def sample(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Sample frames: observation [n, o], action [n, a], reward [n], next observation [n, o], terminated [n]."""
        at = torch.randint(min(self.added, BUFFER_FRAMES), (SAMPLE_FRAMES,))
        return self.observation[at], self.action[at], self.reward[at], self.next_observation[at], self.terminated[at]


class Critic(nn.Module):
    """Two independent estimates of an action's value, float32 [2, ...]."""

    def __init__(self, observation_size: int, action_size: int) -> None:
        super().__init__()
        self.towers = nn.ModuleList(
            nn.Sequential(
                nn.Linear(observation_size + action_size, HIDDEN),
                nn.ReLU(),
                nn.Linear(HIDDEN, HIDDEN),
                nn.ReLU(),
                nn.Linear(HIDDEN, 1),
            )
            for _ in range(2)
        )

    def forward(self, observation: Tensor, action: Tensor) -> Tensor:
        """Estimate the values of observations [..., o] and actions [..., a]."""
        inputs = torch.cat([observation, action], -1)
        return torch.stack([tower(inputs)[..., 0] for tower in self.towers])


class Sac:
    """The actor, which is broadcast, and the learner's critics and optimizers."""

    def __init__(self, actor: Actor, observation_size: int, action_size: int) -> None:
        self.actor = actor
        self.critic = Critic(observation_size, action_size)
        self.target = copy.deepcopy(self.critic).requires_grad_(False)
        self.log_temperature = torch.zeros((), requires_grad=True)
        self.target_entropy = -float(action_size)
        self.actor_optimizer = torch.optim.Adam(actor.parameters(), lr=LEARNING_RATE, fused=True)
        self.critic_optimizer = torch.optim.Adam(self.critic.parameters(), lr=LEARNING_RATE, fused=True)
        self.temperature_optimizer = torch.optim.Adam([self.log_temperature], lr=LEARNING_RATE, fused=True)

    def update(self, replay: Replay) -> None:
        """Make one gradient step for critic, actor and temperature."""
        observation, action, reward, next_observation, terminated = replay.sample()
        temperature = self.log_temperature.detach().exp()
        with torch.no_grad():
            next_action, next_log_prob = self.actor.sample(next_observation)
            next_value = self.target(next_observation, next_action).amin(0) - temperature * next_log_prob
            # A truncated episode would have continued: only a terminated one has no value after its end.
            wanted = reward + GAMMA * (1.0 - terminated) * next_value
        step(self.critic_optimizer, (self.critic(observation, action) - wanted).square().mean(-1).sum())

        new_action, log_prob = self.actor.sample(observation)
        self.critic.requires_grad_(False)
        step(self.actor_optimizer, (temperature * log_prob - self.critic(observation, new_action).amin(0)).mean())
        self.critic.requires_grad_(True)

        step(self.temperature_optimizer, -self.log_temperature * (log_prob.detach().mean() + self.target_entropy))
        with torch.no_grad():
            torch._foreach_lerp_(list(self.target.parameters()), list(self.critic.parameters()), TARGET_RATE)


def step(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    """Follow the gradient of a loss once."""
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def main(folder: Path, seed: int) -> None:
    """Train until Pendulum is solved."""
    torch.set_num_threads(1)  # for networks this small, threads cost more than they gain
    torch.manual_seed(seed)
    env = gymnasium.make("Pendulum-v1")
    assert env.observation_space.shape is not None
    assert env.action_space.shape is not None
    sizes = env.observation_space.shape[0], env.action_space.shape[0]
    actor = make(env.observation_space, env.action_space)
    sac, replay = Sac(actor, *sizes), Replay(*sizes)
    began = time.monotonic()
    with (
        rollfleet.connect(policy=actor) as collector,
        rollfleet.LearningCurve(folder, title="SAC on Pendulum-v1", after=collector.frames) as curve,
    ):
        checkpoint = rollfleet.Checkpoint(folder, collector, {"policy": actor}, every=50)
        warm_up = collector.job.spec.collect.init_random_frames
        for batch in collector:
            replay.add(batch)
            if replay.added > warm_up:  # a learner that was started again begins with an empty buffer
                for _ in range(batch.numel() // FRAMES_PER_UPDATE):
                    sac.update(replay)
            checkpoint.step()
            curve.add(frames=collector.frames, mean_return=collector.mean_return, version=collector.version)
            if collector.batches % 50 == 0:
                print(f"{collector.frames:8,} frames  mean return {collector.mean_return or 0:8.1f}")
            if len(collector.episode_returns) == 100 and (collector.mean_return or 0) > SOLVED_RETURN:
                print(
                    f"solved: mean return {collector.mean_return:.1f} after {collector.frames:,} frames "
                    f"and {time.monotonic() - began:.0f} s"
                )
                break
        else:
            print(f"learning curve: {curve.save()}; policy: {checkpoint.save()}")
            raise SystemExit(f"not solved in {collector.frames:,} frames")
        print(f"learning curve: {curve.save()}; trained policy: {checkpoint.save()}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("runs/pendulum"))
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    main(arguments.output, arguments.seed)
