"""PPO in the manner of CleanRL, in one file, with Rollfleet's workers in place of the loop over `envs.step`.

`python examples/cleanrl_ppo.py [FRAMES]`
"""

import sys

import torch
from torch import Tensor, nn
from torch.distributions import Categorical

import rollfleet

NUM_WORKERS, NUM_ENVS, NUM_STEPS = 2, 4, 128
LEARNING_RATE, GAMMA, GAE_LAMBDA = 1e-3, 0.98, 0.9
UPDATE_EPOCHS, NUM_MINIBATCHES, CLIP_COEF, ENT_COEF, VF_COEF, MAX_GRAD_NORM = 8, 4, 0.2, 0.0, 0.5, 0.5


def mlp(outputs: int) -> nn.Sequential:
    """Make a network for the four numbers that CartPole observes."""
    return nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs))


class Agent(nn.Module):
    """CartPole's actor, which runs on the workers, and its critic."""

    def __init__(self) -> None:
        super().__init__()
        self.actor, self.critic = mlp(2), mlp(1)

    def forward(self, obs: Tensor) -> dict[str, Tensor]:
        """Act for `obs` [envs, 4] on a worker. The batch has these outputs."""
        probs = Categorical(logits=self.actor(obs))
        action = probs.sample()
        return {"action": action, "action_log_prob": probs.log_prob(action), "state_value": self.critic(obs)}


def main(total_timesteps: int) -> None:
    """Train for this many frames."""
    torch.set_num_threads(1)  # for networks this small, threads cost more than they gain
    torch.manual_seed(1)
    agent = Agent()
    optimizer = torch.optim.Adam(agent.parameters(), lr=LEARNING_RATE, eps=1e-5)
    collector = rollfleet.Collector(
        "CartPole-v1",
        agent,
        workers=NUM_WORKERS,
        num_envs=NUM_ENVS,
        frames_per_batch=NUM_WORKERS * NUM_ENVS * NUM_STEPS,
        total_frames=total_timesteps,
    )
    with collector:
        for batch in collector:  # [NUM_WORKERS * NUM_ENVS, NUM_STEPS]
            rewards, dones, terminated = (batch["next", key][..., 0] for key in ("reward", "done", "terminated"))
            values = batch["state_value"][..., 0]
            mask = batch.get(("collector", "mask"), torch.ones_like(dones))  # the rest is padding
            with torch.no_grad():  # the true last observation of an episode is in the batch: no case for truncation
                next_values = agent.critic(batch["next", "observation"])[..., 0] * ~terminated * mask
            advantages, lastgaelam = torch.zeros_like(rewards), torch.zeros(len(rewards))
            for t in reversed(range(rewards.shape[1])):  # more than NUM_STEPS while a worker is away
                delta = rewards[:, t] + GAMMA * next_values[:, t] - values[:, t]
                advantages[:, t] = lastgaelam = delta + GAMMA * GAE_LAMBDA * ~dones[:, t] * lastgaelam
            returns = (advantages + values)[mask]
            b_obs, b_actions = batch["observation"][mask], batch["action"][mask]
            b_logprobs, b_advantages = batch["action_log_prob"][mask], advantages[mask]
            for _ in range(UPDATE_EPOCHS):
                for mb in torch.randperm(len(b_obs)).chunk(NUM_MINIBATCHES):
                    probs = Categorical(logits=agent.actor(b_obs[mb]))
                    ratio = (probs.log_prob(b_actions[mb]) - b_logprobs[mb]).exp()
                    adv = (b_advantages[mb] - b_advantages[mb].mean()) / (b_advantages[mb].std() + 1e-8)
                    pg_loss = -torch.min(ratio * adv, ratio.clamp(1 - CLIP_COEF, 1 + CLIP_COEF) * adv).mean()
                    v_loss = 0.5 * (agent.critic(b_obs[mb])[:, 0] - returns[mb]).square().mean()
                    optimizer.zero_grad()
                    (pg_loss - ENT_COEF * probs.entropy().mean() + VF_COEF * v_loss).backward()
                    nn.utils.clip_grad_norm_(agent.parameters(), MAX_GRAD_NORM)
                    optimizer.step()
            print(f"{collector.frames:7,} frames  mean return {collector.mean_return or 0:.1f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else 100_000)
