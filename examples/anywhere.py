"""One program in three places: this process, processes of this machine, or pods of a cluster.

`python examples/anywhere.py`, with `--workers 4`, or with `--workers 4 --namespace team-a`.
"""

import argparse
from typing import Any

import gymnasium
import torch
from tensordict import TensorDict
from torch import Tensor

import rollfleet

GAMMA, LAMBDA, CLIP, EPOCHS = 0.99, 0.95, 0.2, 8


def make_env(length: int) -> gymnasium.Env[Any, Any]:
    """Make CartPole with shorter episodes. On a cluster this function travels as source."""
    return gymnasium.make("CartPole-v1", max_episode_steps=length)


def advantages(batch: TensorDict, value: Tensor, following: Tensor) -> Tensor:
    """Compute generalised advantage estimates, float32 `[envs, T]`."""
    delta = batch["next", "reward"][..., 0] + GAMMA * following * ~batch["next", "terminated"][..., 0] - value
    keep, result = GAMMA * LAMBDA * ~batch["next", "done"][..., 0], torch.empty_like(delta)
    last = torch.zeros_like(delta[:, 0])
    for t in reversed(range(delta.shape[1])):
        last = result[:, t] = delta[:, t] + keep[:, t] * last
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
        log_prob, _, value = policy.evaluate(observation, action)
        ratio = (log_prob - old_log_prob).exp()
        gain = torch.min(ratio * advantage, ratio.clamp(1 - CLIP, 1 + CLIP) * advantage)
        loss = (value[..., 0] - target).square().mean() / 2 - gain.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def main(frames: int, workers: int, namespace: str | None) -> None:
    """Train a policy with PPO."""
    torch.manual_seed(0)
    env = make_env(200)
    policy = rollfleet.ActorCritic(env.observation_space, env.action_space)
    optimizer = torch.optim.Adam(policy.parameters(), lr=3e-3)
    cluster = rollfleet.Cluster(namespace=namespace, cpu="500m", memory="1Gi") if namespace else None
    with rollfleet.Collector(
        make_env,
        policy,
        env_kwargs={"length": 200},
        num_envs=8,
        frames_per_batch=512,
        total_frames=frames,
        workers=workers,
        cluster=cluster,
    ) as collector:
        for batch in collector:
            train(policy, optimizer, batch)
            print(f"{collector.frames:8,} frames  mean return {collector.mean_return or 0:6.1f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--frames", type=int, default=30_720)
    parser.add_argument("--workers", type=int, default=0, help="0: collect in this process")
    parser.add_argument("--namespace", help="run the workers as pods of the kubeconfig's cluster, in this namespace")
    arguments = parser.parse_args()
    main(arguments.frames, arguments.workers, arguments.namespace)
