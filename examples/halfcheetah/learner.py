"""PPO on HalfCheetah-v5, with a policy that normalises its observations.

`rollfleet run examples/halfcheetah/job.yaml --learner examples/halfcheetah/learner.py`
"""

import argparse
import math
import time
from pathlib import Path

import gymnasium
import torch
from halfcheetah_policy import NormalisedActorCritic, make
from tensordict import TensorDict
from torch import Tensor

import rollfleet

GAMMA, LAMBDA = 0.99, 0.95
LEARNING_RATE, EPOCHS, MINIBATCH_FRAMES = 3e-4, 10, 128
CLIP, VALUE_WEIGHT, MAX_GRADIENT_NORM = 0.2, 0.5, 0.5
REWARD_SCALE = 0.1  # scales the critic's targets to about 1 to 10


def advantages(reward: Tensor, done: Tensor, terminated: Tensor, value: Tensor, next_value: Tensor) -> Tensor:
    """Compute generalised advantage estimates, all `[envs, T]`; only terminated frames are not bootstrapped."""
    delta = reward + GAMMA * next_value * (~terminated).float() - value
    keep = GAMMA * LAMBDA * (~done).float()
    result, following = torch.empty_like(delta), torch.zeros_like(delta[:, 0])
    for t in reversed(range(delta.shape[1])):
        following = delta[:, t] + keep[:, t] * following
        result[:, t] = following
    return result


def train(policy: NormalisedActorCritic, optimizer: torch.optim.Optimizer, batch: TensorDict) -> None:
    """Make one PPO update on one batch, TensorDict `[envs, T]`."""
    networks = policy.actor_critic
    # The rest is padding: a worker that leaves in the middle of a batch sends fewer frames than the others.
    frames = batch.get(("collector", "mask"), torch.ones(batch.shape, dtype=torch.bool))
    observation = policy.norm(batch["observation"])
    with torch.no_grad():
        value = networks.value(observation)[..., 0] * frames
        next_value = networks.value(policy.norm(batch["next", "observation"]))[..., 0] * frames
        reward, done, terminated = (batch["next", key][..., 0] for key in ("reward", "done", "terminated"))
        advantage = advantages(REWARD_SCALE * reward, done, terminated, value, next_value)
    target, advantage = (advantage + value)[frames], advantage[frames]
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    observation, action, old_log_prob = observation[frames], batch["action"][frames], batch["action_log_prob"][frames]
    for _ in range(EPOCHS):
        for index in torch.randperm(len(target)).split(MINIBATCH_FRAMES):
            log_prob, _, new_value = networks.evaluate(observation[index], action[index])
            ratio = (log_prob - old_log_prob[index]).exp()
            gain = torch.min(ratio * advantage[index], ratio.clamp(1 - CLIP, 1 + CLIP) * advantage[index])
            value_loss = (new_value[..., 0] - target[index]).square().mean()
            loss = -gain.mean() + VALUE_WEIGHT * value_loss
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(networks.parameters(), MAX_GRADIENT_NORM)
            optimizer.step()
    # After training: the log-probabilities in the batch belong to the statistics that the workers acted on.
    policy.norm.update(batch["observation"][frames])


def main(folder: Path, *, seed: int, resume: bool) -> None:
    """Train until the job's frames are used up."""
    torch.set_num_threads(1)  # for networks this small, threads cost more than they gain
    torch.manual_seed(seed)
    env = gymnasium.make("HalfCheetah-v5")
    policy = make(env.observation_space, env.action_space)
    optimizer = torch.optim.Adam(policy.parameters(), lr=LEARNING_RATE, fused=True)
    began = time.monotonic()
    with rollfleet.connect(policy=policy) as collector:
        checkpoint = rollfleet.Checkpoint(folder, collector, {"policy": policy, "optimizer": optimizer}, every=50)
        if resume:
            checkpoint.resume()
        with rollfleet.LearningCurve(folder, title="PPO on HalfCheetah-v5", after=collector.frames) as curve:
            total_frames = collector.total_frames or math.inf
            for batch in collector:
                optimizer.param_groups[0]["lr"] = LEARNING_RATE * max(0.0, 1 - collector.frames / total_frames)
                train(policy, optimizer, batch)
                checkpoint.step()
                curve.add(frames=collector.frames, mean_return=collector.mean_return, version=collector.version)
                if collector.batches % 10 == 0:
                    print(f"{collector.frames:9,} frames  mean return {collector.mean_return or 0:7.1f}")
            print(
                f"mean return {collector.mean_return or 0:.1f} after {collector.frames:,} frames "
                f"and {time.monotonic() - began:.0f} s"
            )
            print(f"learning curve: {curve.save()}; trained policy: {checkpoint.save()}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("runs/halfcheetah"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--resume", action="store_true", help="continue from the newest checkpoint, if there is one")
    arguments = parser.parse_args()
    main(arguments.output, seed=arguments.seed, resume=arguments.resume)
