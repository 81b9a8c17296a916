"""CleanRL's DQN, with its own loop over `envs.step`. One line differs: the environments step in servers.

`python examples/cleanrl_dqn_make_vec.py [FRAMES]`
"""

import copy
import sys

import numpy as np
import torch
from gymnasium.wrappers.vector import RecordEpisodeStatistics
from torch import Tensor, nn

import rollfleet

NUM_ENVS, BUFFER_SIZE, LEARNING_STARTS, BATCH_SIZE = 8, 50_000, 512, 128
LEARNING_RATE, GAMMA, TARGET_FREQUENCY = 1e-3, 0.99, 64
START_E, END_E, EXPLORATION_FRAMES = 1.0, 0.05, 4096


class Buffer:
    """The newest transitions."""

    def __init__(self) -> None:
        self.obs, self.next_obs = torch.zeros(2, BUFFER_SIZE, 4)
        self.rewards, self.terminations = torch.zeros(2, BUFFER_SIZE)
        self.actions = torch.zeros(BUFFER_SIZE, dtype=torch.int64)
        self.added = 0

    def add(self, obs: Tensor, next_obs: Tensor, action: Tensor, reward: Tensor, termination: Tensor) -> None:
        """Add a transition of each environment, in place of the oldest."""
        at = torch.arange(self.added, self.added + len(obs)) % BUFFER_SIZE
        self.obs[at], self.next_obs[at], self.actions[at] = obs, next_obs, action
        self.rewards[at], self.terminations[at] = reward.float(), termination.float()
        self.added += len(obs)

    def sample(self) -> Tensor:
        """Draw indices of a minibatch."""
        return torch.randint(min(self.added, BUFFER_SIZE), (BATCH_SIZE,))


def main(total_timesteps: int) -> None:
    """Train for this many frames."""
    torch.set_num_threads(1)  # for networks this small, threads cost more than they gain
    torch.manual_seed(1)
    # Instead of gymnasium.vector.SyncVectorEnv([...] * NUM_ENVS, autoreset_mode="SameStep"):
    envs = rollfleet.make_vec("CartPole-v1", num_envs=NUM_ENVS, workers=2, autoreset_mode="SameStep")
    recorded = RecordEpisodeStatistics(envs)
    q_network = nn.Sequential(nn.Linear(4, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 2))
    target_network = copy.deepcopy(q_network)
    optimizer = torch.optim.Adam(q_network.parameters(), lr=LEARNING_RATE)
    buffer = Buffer()
    obs = torch.from_numpy(recorded.reset(seed=1)[0])
    for frames in range(NUM_ENVS, total_timesteps + 1, NUM_ENVS):
        epsilon = max(END_E, START_E + (END_E - START_E) * frames / EXPLORATION_FRAMES)
        with torch.no_grad():
            greedy = q_network(obs).argmax(1)
        actions = torch.where(torch.rand(NUM_ENVS) < epsilon, torch.randint(2, (NUM_ENVS,)), greedy)
        found, rewards, terminations, truncations, infos = recorded.step(actions.numpy())
        real_next_obs = found.copy()  # of an episode that ended, `found` has the first of the next one
        for i in np.flatnonzero(terminations | truncations):
            real_next_obs[i] = infos["final_obs"][i]
        following, gained, ended = map(torch.from_numpy, (real_next_obs, rewards, terminations))
        buffer.add(obs, following, actions, gained, ended)
        obs = torch.from_numpy(found)
        if frames >= LEARNING_STARTS:
            mb = buffer.sample()
            with torch.no_grad():
                target_max = target_network(buffer.next_obs[mb]).amax(1)
                td_target = buffer.rewards[mb] + GAMMA * target_max * (1 - buffer.terminations[mb])
            old_val = q_network(buffer.obs[mb]).gather(1, buffer.actions[mb, None])[:, 0]
            optimizer.zero_grad()
            nn.functional.mse_loss(old_val, td_target).backward()
            optimizer.step()
        if frames // NUM_ENVS % TARGET_FREQUENCY == 0:
            target_network.load_state_dict(q_network.state_dict())
        if frames % 1024 == 0:
            print(f"{frames:7,} frames  mean return {np.mean(recorded.return_queue or [0.0]):.1f}")
    recorded.close()


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else 50_000)
