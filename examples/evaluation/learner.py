"""PPO on CartPole-v1 that ends by its evaluations: whole episodes without exploration, beside the training.

`rollfleet run examples/evaluation/job.yaml --learner examples/evaluation/learner.py`
"""

import argparse
from pathlib import Path

import gymnasium
import torch
from tensordict import TensorDict

import rollfleet

GAMMA, LAMBDA, CLIP = 0.99, 0.95, 0.2
LEARNING_RATE, EPOCHS, MINIBATCH_FRAMES = 1e-3, 8, 256
SOLVED_RETURN = 475.0


def train(policy: rollfleet.ActorCritic, optimizer: torch.optim.Optimizer, batch: TensorDict) -> None:
    """Make one PPO update on one batch, TensorDict `[envs, T]`."""
    frames = batch.get(("collector", "mask"), torch.ones(batch.shape, dtype=torch.bool))  # the rest is padding
    reward, done, terminated = (batch["next", key][..., 0] for key in ("reward", "done", "terminated"))
    with torch.no_grad():
        value = policy.value(batch["observation"])[..., 0] * frames
        next_value = policy.value(batch["next", "observation"])[..., 0] * frames * ~terminated
    delta = reward + GAMMA * next_value - value
    advantage, following = torch.empty_like(delta), torch.zeros_like(delta[:, 0])
    for t in reversed(range(delta.shape[1])):
        following = delta[:, t] + GAMMA * LAMBDA * ~done[:, t] * following
        advantage[:, t] = following
    target, advantage = (advantage + value)[frames], advantage[frames]
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    observation, action, old_log_prob = (batch[key][frames] for key in ("observation", "action", "action_log_prob"))
    for _ in range(EPOCHS):
        for index in torch.randperm(len(target)).split(MINIBATCH_FRAMES):
            log_prob, _, new_value = policy.evaluate(observation[index], action[index])
            ratio = (log_prob - old_log_prob[index]).exp()
            gain = torch.min(ratio * advantage[index], ratio.clamp(1 - CLIP, 1 + CLIP) * advantage[index])
            loss = (new_value[..., 0] - target[index]).square().mean() / 2 - gain.mean()
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(policy.parameters(), 0.5)
            optimizer.step()


def main(folder: Path) -> None:
    """Train until an evaluation has solved CartPole. The curve in `folder` shows the evaluations."""
    torch.set_num_threads(1)  # for networks this small, threads cost more than they gain
    torch.manual_seed(0)
    env = gymnasium.make("CartPole-v1")
    policy = rollfleet.ActorCritic(env.observation_space, env.action_space)
    optimizer = torch.optim.Adam(policy.parameters(), lr=LEARNING_RATE)
    frames_at: dict[int, int] = {}  # frames that a version was trained on
    shown = 0
    with (
        rollfleet.connect(policy=policy) as collector,
        rollfleet.LearningCurve(folder, title="PPO on CartPole-v1, evaluated", after=collector.frames) as curve,
    ):
        checkpoint = rollfleet.Checkpoint(folder, collector, {"policy": policy, "optimizer": optimizer}, every=10)
        for batch in collector:
            frames_at[collector.version] = collector.frames - batch.numel()
            train(policy, optimizer, batch)
            checkpoint.step()
            for found in collector.evaluations:
                if found.version <= shown:
                    continue
                shown = found.version
                frames = frames_at.get(shown, 0)
                curve.add(frames=frames, mean_return=found.mean_return, version=shown)
                print(
                    f"version {shown:3}, {frames:7,} frames: {found.mean_return:5.1f} "
                    f"({found.min_return:.0f} to {found.max_return:.0f}) in {found.episodes} episodes; "
                    f"training: {collector.mean_return or 0:5.1f}"
                )
                if found.mean_return >= SOLVED_RETURN:
                    print(f"solved by version {shown}; learning curve: {curve.save()}")
                    checkpoint.save()
                    return
        checkpoint.save()
        raise SystemExit(f"not solved in {collector.frames:,} frames")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("runs/evaluation"))
    main(parser.parse_args().output)
