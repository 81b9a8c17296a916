"""CleanRL's PPO for Atari, with its own loop over `envs.step`. One line differs: the games run in servers.

`pip install ale-py opencv-python-headless`, then `python examples/cleanrl_atari_make_vec.py [FRAMES]`
"""

import sys
from collections import deque
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.wrappers import AtariPreprocessing, ClipReward, FrameStackObservation, RecordEpisodeStatistics
from torch import Tensor, nn
from torch.distributions import Categorical

import rollfleet

NUM_ENVS, NUM_STEPS = 8, 128
LEARNING_RATE, GAMMA, GAE_LAMBDA = 2.5e-4, 0.99, 0.95
UPDATE_EPOCHS, NUM_MINIBATCHES, CLIP_COEF = 4, 4, 0.1
ENT_COEF, VF_COEF, MAX_GRAD_NORM = 0.01, 0.5, 0.5


def make_env() -> gymnasium.Env[Any, Any]:
    """Make Pong as the papers play it: a stack of four grey images of 84 x 84, and an action for four frames."""
    env = gymnasium.make("ale_py:ALE/Pong-v5", frameskip=1, repeat_action_probability=0)
    env = AtariPreprocessing(RecordEpisodeStatistics(env), noop_max=30, frame_skip=4, screen_size=84)
    return FrameStackObservation(ClipReward(env, -1, 1), 4)


def layer(module: nn.Linear | nn.Conv2d, std: float = 2**0.5) -> nn.Module:
    """Set the first weights of a layer."""
    nn.init.orthogonal_(module.weight, std)
    return module


class Agent(nn.Module):
    """Actor and critic on one convolutional network."""

    def __init__(self, actions: int) -> None:
        super().__init__()
        self.network = nn.Sequential(
            *(layer(nn.Conv2d(4, 32, 8, stride=4)), nn.ReLU(), layer(nn.Conv2d(32, 64, 4, stride=2)), nn.ReLU()),
            *(layer(nn.Conv2d(64, 64, 3)), nn.ReLU(), nn.Flatten(), layer(nn.Linear(3136, 512)), nn.ReLU()),
        )
        self.actor, self.critic = layer(nn.Linear(512, actions), 0.01), layer(nn.Linear(512, 1), 1.0)

    def forward(self, obs: Tensor) -> tuple[Categorical, Tensor]:
        """Return the distribution of actions, and values, for uint8 images [envs, 4, 84, 84]."""
        hidden = self.network(obs / 255.0)
        return Categorical(logits=self.actor(hidden)), self.critic(hidden)[:, 0]


def main(total_timesteps: int) -> None:
    """Train for this many frames."""
    torch.manual_seed(1)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    # Instead of gymnasium.vector.AsyncVectorEnv([make_env] * NUM_ENVS, autoreset_mode="SameStep"):
    envs = rollfleet.make_vec(make_env, num_envs=NUM_ENVS, workers=2, autoreset_mode="SameStep")
    assert isinstance(envs.single_action_space, gymnasium.spaces.Discrete)
    agent, returns = Agent(int(envs.single_action_space.n)).to(device), deque[float](maxlen=100)
    optimizer = torch.optim.Adam(agent.parameters(), lr=LEARNING_RATE, eps=1e-5)
    obs = torch.zeros(NUM_STEPS, NUM_ENVS, 4, 84, 84, dtype=torch.uint8, device=device)
    actions, logprobs, rewards, dones, values = torch.zeros(5, NUM_STEPS, NUM_ENVS, device=device)
    next_obs = torch.as_tensor(envs.reset(seed=1)[0], device=device)
    for frames in range(NUM_STEPS * NUM_ENVS, total_timesteps + 1, NUM_STEPS * NUM_ENVS):
        optimizer.param_groups[0]["lr"] = LEARNING_RATE * (1 - (frames - NUM_STEPS * NUM_ENVS) / total_timesteps)
        for step in range(NUM_STEPS):
            obs[step] = next_obs
            with torch.no_grad():
                probs, values[step] = agent(next_obs)
            actions[step] = action = probs.sample()
            logprobs[step] = probs.log_prob(action)
            found, reward, terminations, truncations, infos = envs.step(action.cpu().numpy())
            next_obs, rewards[step] = torch.as_tensor(found, device=device), torch.from_numpy(reward)
            dones[step] = torch.from_numpy(terminations | truncations)
            if "final_info" in infos:
                returns.extend(infos["final_info"]["episode"]["r"][infos["_final_info"]])
        with torch.no_grad():
            next_value, lastgaelam, advantages = agent(next_obs)[1], 0, torch.zeros_like(rewards)
            for t in reversed(range(NUM_STEPS)):
                delta = rewards[t] + GAMMA * next_value * (1 - dones[t]) - values[t]
                advantages[t] = lastgaelam = delta + GAMMA * GAE_LAMBDA * (1 - dones[t]) * lastgaelam
                next_value = values[t]
        b_obs, b_actions, b_logprobs = obs.flatten(0, 1), actions.flatten(), logprobs.flatten()
        b_advantages, b_returns = advantages.flatten(), (advantages + values).flatten()
        for _ in range(UPDATE_EPOCHS):
            for mb in torch.randperm(len(b_obs)).chunk(NUM_MINIBATCHES):
                probs, newvalue = agent(b_obs[mb])
                ratio = (probs.log_prob(b_actions[mb]) - b_logprobs[mb]).exp()
                adv = (b_advantages[mb] - b_advantages[mb].mean()) / (b_advantages[mb].std() + 1e-8)
                pg_loss = -torch.min(ratio * adv, ratio.clamp(1 - CLIP_COEF, 1 + CLIP_COEF) * adv).mean()
                v_loss = 0.5 * (newvalue - b_returns[mb]).square().mean()
                optimizer.zero_grad()
                (pg_loss - ENT_COEF * probs.entropy().mean() + VF_COEF * v_loss).backward()
                nn.utils.clip_grad_norm_(agent.parameters(), MAX_GRAD_NORM)
                optimizer.step()
        print(f"{frames:9,} frames  points {rewards.sum():.0f}  mean return {np.mean(returns or [0.0]):.1f}")
    envs.close()


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else 10_000_000)
