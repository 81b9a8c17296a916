"""PPO, from top to bottom: it iterates over the batches of a job, trains, and sends weights to the workers.

`rollfleet run job.yaml --learner learner.py`; with `-- --resume`, from the newest checkpoint on. With `-- --until 475`
it ends as soon as CartPole-v1 is solved.
"""

import argparse
import math
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor

import rollfleet

GAMMA, LAMBDA = 0.99, 0.95
LEARNING_RATE, EPOCHS, MINIBATCH_FRAMES = 1e-3, 8, 256
CLIP, VALUE_WEIGHT, MAX_GRADIENT_NORM = 0.2, 0.5, 0.5


def advantages(batch: TensorDict, value: Tensor, next_value: Tensor) -> Tensor:
    """Compute generalised advantage estimates, float32 `[envs, T]`; only terminated frames are not bootstrapped."""
    reward, done = batch["next", "reward"][..., 0], batch["next", "done"][..., 0]
    delta = reward + GAMMA * next_value * (~batch["next", "terminated"][..., 0]).float() - value
    keep = GAMMA * LAMBDA * (~done).float()
    result, following = torch.empty_like(delta), torch.zeros_like(delta[:, 0])
    for t in reversed(range(delta.shape[1])):
        following = delta[:, t] + keep[:, t] * following
        result[:, t] = following
    return result


def train(policy: Any, optimizer: torch.optim.Optimizer, batch: TensorDict) -> None:
    """Make one PPO update on one batch, TensorDict `[envs, T]`."""
    # The rest is padding: a worker that leaves in the middle of a batch sends fewer frames than the others.
    frames = batch.get(("collector", "mask"), torch.ones(batch.shape, dtype=torch.bool))
    with torch.no_grad():
        value = policy.value(batch["observation"])[..., 0] * frames
        advantage = advantages(batch, value, policy.value(batch["next", "observation"])[..., 0] * frames)
    target, advantage = (advantage + value)[frames], advantage[frames]
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    observation, action, old_log_prob = (batch[key][frames] for key in ("observation", "action", "action_log_prob"))
    for _ in range(EPOCHS):
        for index in torch.randperm(len(target)).split(MINIBATCH_FRAMES):
            log_prob, _entropy, new_value = policy.evaluate(observation[index], action[index])
            ratio = (log_prob - old_log_prob[index]).exp()
            gain = torch.min(ratio * advantage[index], ratio.clamp(1 - CLIP, 1 + CLIP) * advantage[index])
            loss = VALUE_WEIGHT * (new_value[..., 0] - target[index]).square().mean() - gain.mean()
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(policy.parameters(), MAX_GRADIENT_NORM)
            optimizer.step()


def main(collector: rollfleet.Collector, folder: Path, *, seed: int, until: float, resume: bool) -> None:
    """Train until the job's `collect.totalFrames`, or a mean return. The last checkpoint in `folder` has the policy."""
    torch.set_num_threads(1)  # for networks this small, threads cost more than they gain
    torch.manual_seed(seed)
    spec = collector.job.spec
    env = rollfleet.make_env(spec.env)
    policy: Any = rollfleet.make_policy(spec.policy, env.single_observation_space, env.single_action_space)
    env.close()
    optimizer = torch.optim.Adam(policy.parameters(), lr=LEARNING_RATE)
    checkpoint = rollfleet.Checkpoint(folder, collector, {"policy": policy, "optimizer": optimizer}, every=10)
    if resume:
        checkpoint.resume()
    with rollfleet.LearningCurve(folder, title=f"PPO, {collector.job.key}", after=collector.frames) as curve:
        collector.update_policy_weights_(policy)  # workers wait for the first weights
        total_frames = collector.total_frames or math.inf
        for batch in collector:
            optimizer.param_groups[0]["lr"] = LEARNING_RATE * max(0.1, 1 - collector.frames / total_frames)
            train(policy, optimizer, batch)
            collector.update_policy_weights_(policy)
            checkpoint.step()
            mean_return = collector.mean_return or 0.0
            curve.add(frames=collector.frames, mean_return=collector.mean_return, version=collector.version)
            if collector.batches % 10 == 0:
                print(f"{collector.frames:8,} frames  mean return {mean_return:6.1f}")
            if len(collector.episode_returns) == 100 and mean_return >= until:
                break
        print(f"trained: {checkpoint.save()}, mean return {collector.mean_return or 0:.1f}")
        print(f"see it act: rollfleet play {folder} --gif play.gif")
        if collector.mean_return is not None:
            print(f"learning curve: {curve.save()}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, help="default: `runs/` and the job's name")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--until", type=float, default=math.inf, help="end at this mean return of 100 episodes")
    parser.add_argument("--resume", action="store_true", help="continue from the newest checkpoint, if there is one")
    given = parser.parse_args()
    with rollfleet.connect() as connected:
        output = given.output or Path("runs", connected.job.metadata.name)
        main(connected, output, seed=given.seed, until=given.until, resume=given.resume)
