"""PPO on CartPole-v1: the shortest learner that solves it, from top to bottom.

`rollfleet run examples/cartpole/job.yaml --learner examples/cartpole/learner.py`
"""

import argparse
import time
from pathlib import Path

import gymnasium
import torch
from tensordict import TensorDict
from torch import Tensor

import rollfleet

GAMMA, LAMBDA = 0.99, 0.95
LEARNING_RATE, EPOCHS, MINIBATCH_FRAMES = 1e-3, 8, 256
CLIP, ENTROPY_WEIGHT, VALUE_WEIGHT, MAX_GRADIENT_NORM = 0.2, 0.0, 0.5, 0.5
SOLVED_RETURN = 475.0


def advantages(batch: TensorDict, value: Tensor, next_value: Tensor) -> Tensor:
    """Compute generalised advantage estimates, float32 `[envs, T]`; only terminated frames are not bootstrapped."""
    reward, done = batch["next", "reward"][..., 0], batch["next", "done"][..., 0]
    continues = (~batch["next", "terminated"][..., 0]).float()
    delta = reward + GAMMA * next_value * continues - value
    keep = GAMMA * LAMBDA * (~done).float()
    result, following = torch.empty_like(delta), torch.zeros_like(delta[:, 0])
    for t in reversed(range(delta.shape[1])):
        following = delta[:, t] + keep[:, t] * following
        result[:, t] = following
    return result


def train(policy: rollfleet.ActorCritic, optimizer: torch.optim.Optimizer, batch: TensorDict) -> None:
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
            log_prob, entropy, new_value = policy.evaluate(observation[index], action[index])
            ratio = (log_prob - old_log_prob[index]).exp()
            gain = torch.min(ratio * advantage[index], ratio.clamp(1 - CLIP, 1 + CLIP) * advantage[index])
            value_loss = (new_value[..., 0] - target[index]).square().mean()
            loss = -gain.mean() - ENTROPY_WEIGHT * entropy.mean() + VALUE_WEIGHT * value_loss
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(policy.parameters(), MAX_GRADIENT_NORM)
            optimizer.step()


def main(folder: Path, seed: int, *, resume: bool) -> None:
    """Train until CartPole is solved. The last checkpoint in `folder` has the policy that solved it."""
    torch.set_num_threads(1)  # for networks this small, threads cost more than they gain
    torch.manual_seed(seed)
    env = gymnasium.make("CartPole-v1")
    policy = rollfleet.ActorCritic(env.observation_space, env.action_space)
    optimizer = torch.optim.Adam(policy.parameters(), lr=LEARNING_RATE)
    began = time.monotonic()
    with (
        rollfleet.connect(policy=policy) as collector,
        rollfleet.LearningCurve(folder, title="PPO on CartPole-v1") as curve,
    ):
        parts = {"policy": policy, "optimizer": optimizer}
        checkpoint = rollfleet.Checkpoint(folder, collector, parts, every=10)
        if resume:
            checkpoint.resume()
        for batch in collector:
            progress = collector.frames / collector.total_frames
            optimizer.param_groups[0]["lr"] = LEARNING_RATE * max(0.1, 1 - 4 * progress)
            train(policy, optimizer, batch)
            checkpoint.step()
            curve.add(frames=collector.frames, mean_return=collector.mean_return, version=collector.version)
            if collector.batches % 10 == 0:
                print(f"{collector.frames:8,} frames  mean return {collector.mean_return or 0:6.1f}")
            if len(collector.episode_returns) == 100 and (collector.mean_return or 0) >= SOLVED_RETURN:
                print(
                    f"solved: mean return {collector.mean_return:.1f} after {collector.frames:,} frames "
                    f"and {time.monotonic() - began:.0f} s"
                )
                break
        else:
            raise SystemExit(f"not solved in {collector.frames:,} frames")
        print(f"learning curve: {curve.save()}; trained policy: {checkpoint.save()}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("runs/cartpole"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--resume", action="store_true", help="continue from the newest checkpoint, if there is one")
    arguments = parser.parse_args()
    main(arguments.output, arguments.seed, resume=arguments.resume)
