"""PPO on Atari's Pong from stacked images, with a convolutional policy.

`rollfleet run examples/atari/job.yaml --learner examples/atari/learner.py`
"""

import argparse
import math
import time
from pathlib import Path

import torch
from atari_policy import ConvolutionalActorCritic, make
from tensordict import TensorDict
from torch import Tensor

import rollfleet

GAMMA, LAMBDA = 0.99, 0.95
LEARNING_RATE, EPOCHS, MINIBATCH_FRAMES = 1e-3, 6, 512
CLIP, ENTROPY_WEIGHT, VALUE_WEIGHT, MAX_GRADIENT_NORM = 0.2, 0.01, 0.5, 0.5
SOLVED_RETURN = 18.0  # of 21 points


def advantages(batch: TensorDict, next_value: Tensor) -> Tensor:
    """Compute generalised advantage estimates, float32 `[envs, T]`. A point ends a rally: no value crosses it."""
    reward, done, terminated = (batch["next", key][..., 0] for key in ("reward", "done", "terminated"))
    point = reward != 0  # of Pong; other games may go on after a reward
    delta = reward + GAMMA * next_value * ~(terminated | point) - batch["state_value"][..., 0]
    keep = GAMMA * LAMBDA * ~(done | point)
    result, following = torch.empty_like(delta), torch.zeros_like(delta[:, 0])
    for t in reversed(range(delta.shape[1])):
        following = result[:, t] = delta[:, t] + keep[:, t] * following
    return result


def train(policy: ConvolutionalActorCritic, optimizer: torch.optim.Optimizer, batch: TensorDict) -> None:
    """Make one PPO update on one batch, TensorDict `[envs, T]`."""
    # The rest is padding: a worker that leaves in the middle of a batch sends fewer frames than the others.
    frames = batch.get(("collector", "mask"), torch.ones(batch.shape, dtype=torch.bool))
    with torch.no_grad():
        _, next_value = policy.evaluate(batch["next", "observation"].flatten(0, 1))
    advantage = advantages(batch, next_value.view(batch.shape) * frames)
    target, advantage = (advantage + batch["state_value"][..., 0])[frames], advantage[frames]
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    observation, action, old_log_prob = (batch[key][frames] for key in ("observation", "action", "action_log_prob"))
    for _ in range(EPOCHS):
        for index in torch.randperm(len(target)).split(MINIBATCH_FRAMES):
            distribution, value = policy.evaluate(observation[index])
            ratio = (distribution.log_prob(action[index]) - old_log_prob[index]).exp()
            gain = torch.min(ratio * advantage[index], ratio.clamp(1 - CLIP, 1 + CLIP) * advantage[index])
            loss = VALUE_WEIGHT * (value - target[index]).square().mean() - gain.mean()
            optimizer.zero_grad()
            (loss - ENTROPY_WEIGHT * distribution.entropy().mean()).backward()
            torch.nn.utils.clip_grad_norm_(policy.parameters(), MAX_GRADIENT_NORM)
            optimizer.step()


def main(folder: Path, *, seed: int, resume: bool) -> None:
    """Train until Pong is solved, or the job's frames are used up."""
    torch.manual_seed(seed)
    began = time.monotonic()
    with rollfleet.connect() as collector:
        env = rollfleet.make_env(collector.job.spec.env)
        policy = make(env.single_observation_space, env.single_action_space)
        env.close()
        optimizer = torch.optim.Adam(policy.parameters(), lr=LEARNING_RATE, eps=1e-5, fused=True)
        checkpoint = rollfleet.Checkpoint(folder, collector, {"policy": policy, "optimizer": optimizer}, every=50)
        if resume:
            checkpoint.resume()
        with rollfleet.LearningCurve(folder, title="PPO on Pong", after=collector.frames) as curve:
            total_frames = collector.total_frames or math.inf
            collector.update_policy_weights_(policy)  # workers wait for the first weights
            for batch in collector:
                optimizer.param_groups[0]["lr"] = LEARNING_RATE * max(0.1, 1 - collector.frames / total_frames)
                train(policy, optimizer, batch)
                collector.update_policy_weights_(policy)
                checkpoint.step()
                curve.add(frames=collector.frames, mean_return=collector.mean_return, version=collector.version)
                if collector.batches % 10 == 0:
                    print(f"{collector.frames:9,} frames  mean return {collector.mean_return or 0:6.1f}")
                if len(collector.episode_returns) == 100 and (collector.mean_return or 0) >= SOLVED_RETURN:
                    break
            took = time.monotonic() - began
            print(f"mean return {collector.mean_return or 0:.1f} after {collector.frames:,} frames and {took:.0f} s")
            print(f"learning curve: {curve.save()}; trained policy: {checkpoint.save()}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("runs/atari"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--resume", action="store_true", help="continue from the newest checkpoint, if there is one")
    arguments = parser.parse_args()
    main(arguments.output, seed=arguments.seed, resume=arguments.resume)
