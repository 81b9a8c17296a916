"""CleanRL's PPO, with its own loop over `envs.step`. One line differs: the environments step in servers.

`python examples/cleanrl_make_vec.py [FRAMES]`
"""

import sys

import numpy as np
import torch
from gymnasium.wrappers.vector import RecordEpisodeStatistics
from torch import Tensor, nn
from torch.distributions import Categorical

import rollfleet

NUM_ENVS, NUM_STEPS = 8, 128
LEARNING_RATE, GAMMA, GAE_LAMBDA = 1e-3, 0.98, 0.9
UPDATE_EPOCHS, NUM_MINIBATCHES, CLIP_COEF, VF_COEF, MAX_GRAD_NORM = 8, 4, 0.2, 0.5, 0.5


def mlp(outputs: int) -> nn.Sequential:
    """Make a network for the four numbers that CartPole observes."""
    return nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs))


def main(total_timesteps: int) -> None:
    """Train for this many frames."""
    torch.set_num_threads(1)  # for networks this small, threads cost more than they gain
    torch.manual_seed(1)
    # Instead of gymnasium.vector.SyncVectorEnv([...] * NUM_ENVS, autoreset_mode="SameStep"):
    envs = rollfleet.make_vec("CartPole-v1", num_envs=NUM_ENVS, workers=2, autoreset_mode="SameStep")
    recorded = RecordEpisodeStatistics(envs)
    actor, critic = mlp(2), mlp(1)
    parameters = [*actor.parameters(), *critic.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=LEARNING_RATE, eps=1e-5)
    obs = torch.zeros(NUM_STEPS, NUM_ENVS, 4)
    actions, (logprobs, rewards, dones, values) = obs.new_zeros(obs.shape[:2]), obs.new_zeros(4, *obs.shape[:2])
    next_obs: Tensor = torch.from_numpy(recorded.reset(seed=1)[0])
    for frames in range(NUM_STEPS * NUM_ENVS, total_timesteps + 1, NUM_STEPS * NUM_ENVS):
        for step in range(NUM_STEPS):
            obs[step] = next_obs
            with torch.no_grad():
                probs, values[step] = Categorical(logits=actor(next_obs)), critic(next_obs)[:, 0]
            actions[step] = action = probs.sample()
            logprobs[step] = probs.log_prob(action)
            found, reward, terminations, truncations, _ = recorded.step(action.numpy())
            next_obs, rewards[step] = torch.from_numpy(found), torch.from_numpy(reward)
            dones[step] = torch.from_numpy(terminations | truncations)
        with torch.no_grad():
            next_value, lastgaelam, advantages = (
                critic(next_obs)[:, 0],
                torch.zeros(NUM_ENVS),
                torch.zeros_like(rewards),
            )
            for t in reversed(range(NUM_STEPS)):
                delta = rewards[t] + GAMMA * next_value * (1 - dones[t]) - values[t]
                advantages[t] = lastgaelam = delta + GAMMA * GAE_LAMBDA * (1 - dones[t]) * lastgaelam
                next_value = values[t]
        b_obs, b_actions, b_logprobs = obs.flatten(0, 1), actions.flatten(), logprobs.flatten()
        b_advantages, b_returns = advantages.flatten(), (advantages + values).flatten()
        for _ in range(UPDATE_EPOCHS):
            for mb in torch.randperm(len(b_obs)).chunk(NUM_MINIBATCHES):
                ratio = (Categorical(logits=actor(b_obs[mb])).log_prob(b_actions[mb]) - b_logprobs[mb]).exp()
                adv = (b_advantages[mb] - b_advantages[mb].mean()) / (b_advantages[mb].std() + 1e-8)
                pg_loss = -torch.min(ratio * adv, ratio.clamp(1 - CLIP_COEF, 1 + CLIP_COEF) * adv).mean()
                v_loss = 0.5 * (critic(b_obs[mb])[:, 0] - b_returns[mb]).square().mean()
                optimizer.zero_grad()
                (pg_loss + VF_COEF * v_loss).backward()
                nn.utils.clip_grad_norm_(parameters, MAX_GRAD_NORM)
                optimizer.step()
        print(f"{frames:7,} frames  mean return {np.mean(recorded.return_queue or [0.0]):.1f}")
    recorded.close()


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else 100_000)
