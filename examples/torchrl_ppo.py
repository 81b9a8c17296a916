"""TorchRL's PPO loss and advantages on batches of Rollfleet's workers, without a conversion.

`pip install torchrl`, then `python examples/torchrl_ppo.py [FRAMES]`
"""

import sys

import torch
from tensordict.nn import TensorDictModule
from torch import nn
from torch.distributions import Categorical
from torchrl.modules import ProbabilisticActor, ValueOperator
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE

import rollfleet

NUM_WORKERS, NUM_ENVS, NUM_STEPS = 2, 4, 128
LEARNING_RATE, GAMMA, LAMBDA, EPOCHS, MINIBATCH_FRAMES, MAX_GRADIENT_NORM = 1e-3, 0.98, 0.9, 8, 256, 0.5


def mlp(outputs: int) -> nn.Sequential:
    """Make a network for the four numbers that CartPole observes."""
    return nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs))


def main(total_frames: int) -> None:
    """Train for this many frames."""
    torch.set_num_threads(1)  # for networks this small, threads cost more than they gain
    torch.manual_seed(1)
    actor = ProbabilisticActor(
        TensorDictModule(mlp(2), in_keys=["observation"], out_keys=["logits"]),
        in_keys=["logits"],
        distribution_class=Categorical,
        return_log_prob=True,
        log_prob_key="action_log_prob",
    )
    critic = ValueOperator(mlp(1), in_keys=["observation"])
    advantage = GAE(gamma=GAMMA, lmbda=LAMBDA, value_network=critic, average_gae=True)
    loss = ClipPPOLoss(actor, critic, entropy_coeff=0.0)
    optimizer = torch.optim.Adam(loss.parameters(), lr=LEARNING_RATE)
    collector = rollfleet.Collector(
        "CartPole-v1",
        actor,
        workers=NUM_WORKERS,
        num_envs=NUM_ENVS,
        frames_per_batch=NUM_WORKERS * NUM_ENVS * NUM_STEPS,
        total_frames=total_frames,
    )
    with collector:
        for batch in collector:
            with torch.no_grad():
                advantage(batch)
            frames = batch.reshape(-1)
            for _ in range(EPOCHS):
                for index in torch.randperm(len(frames)).split(MINIBATCH_FRAMES):
                    terms = loss(frames[index])
                    optimizer.zero_grad()
                    (terms["loss_objective"] + terms["loss_critic"]).backward()
                    nn.utils.clip_grad_norm_(loss.parameters(), MAX_GRADIENT_NORM)
                    optimizer.step()
            print(f"{collector.frames:7,} frames  mean return {collector.mean_return or 0:.1f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else 100_000)
