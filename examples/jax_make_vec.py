"""PPO in JAX, with its own loop over `envs.step`. One line differs: the environments step in servers, without JAX.

`pip install jax`, then `python examples/jax_make_vec.py [FRAMES]`
"""

import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium.wrappers.vector import RecordEpisodeStatistics

import rollfleet

NUM_ENVS, NUM_STEPS = 8, 128
LEARNING_RATE, GAMMA, GAE_LAMBDA = 1e-3, 0.98, 0.9
EPOCHS, NUM_MINIBATCHES, CLIP = 8, 4, 0.2

Params = Any  # weights and biases of actor and critic, a tree of arrays


def network(key: jax.Array, sizes: tuple[int, ...] = (4, 64, 64)) -> Params:
    """Make the weights of actor and critic."""
    shapes = [(a, b) for last in (2, 1) for a, b in zip(sizes, (*sizes[1:], last), strict=True)]
    keys = jax.random.split(key, len(shapes))
    layers = [(jax.random.normal(k, s) / np.sqrt(s[0]), jnp.zeros(s[1])) for k, s in zip(keys, shapes, strict=True)]
    return {"actor": layers[:3], "critic": layers[3:]}


def forward(layers: Params, values: jax.Array) -> jax.Array:
    """Apply layers."""
    for weights, bias in layers[:-1]:
        values = jnp.tanh(values @ weights + bias)
    return values @ layers[-1][0] + layers[-1][1]


@jax.jit
def act(params: Params, obs: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return actions, their log-probabilities, and values."""
    logits = jax.nn.log_softmax(forward(params["actor"], obs))
    action = jax.random.categorical(key, logits)
    return action, jnp.take_along_axis(logits, action[:, None], 1)[:, 0], forward(params["critic"], obs)[:, 0]


@jax.jit
def advantages_of(rewards: jax.Array, dones: jax.Array, values: jax.Array) -> jax.Array:
    """Estimate advantages [steps, envs]. `values` has a row more, of what follows."""
    deltas = rewards + GAMMA * values[1:] * (1 - dones) - values[:-1]

    def earlier(following: jax.Array, step: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        advantage = step[0] + GAMMA * GAE_LAMBDA * (1 - step[1]) * following
        return advantage, advantage

    found: jax.Array = jax.lax.scan(earlier, jnp.zeros_like(deltas[0]), (deltas, dones), reverse=True)[1]
    return found


def loss(params: Params, batch: dict[str, jax.Array]) -> jax.Array:
    """Return the loss of a minibatch."""
    logits = jax.nn.log_softmax(forward(params["actor"], batch["obs"]))
    log_prob = jnp.take_along_axis(logits, batch["action"][:, None], 1)[:, 0]
    ratio, advantage = jnp.exp(log_prob - batch["log_prob"]), batch["advantage"]
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    policy_loss = -jnp.minimum(ratio * advantage, jnp.clip(ratio, 1 - CLIP, 1 + CLIP) * advantage).mean()
    return policy_loss + 0.25 * jnp.square(forward(params["critic"], batch["obs"])[:, 0] - batch["return"]).mean()


@jax.jit
def train(state: tuple[Params, Params, Params, int], batch: dict[str, jax.Array]) -> tuple[Params, Params, Params, int]:
    """Take a step of Adam."""
    params, mean, square, count = state
    grads, count = jax.grad(loss)(params, batch), count + 1
    mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, mean, grads)
    square = jax.tree.map(lambda s, g: 0.999 * s + 0.001 * g * g, square, grads)
    rate = LEARNING_RATE * jnp.sqrt(1 - 0.999**count) / (1 - 0.9**count)
    params = jax.tree.map(lambda p, m, s: p - rate * m / (jnp.sqrt(s) + 1e-5), params, mean, square)
    return params, mean, square, count


def main(total_timesteps: int) -> None:
    """Train for this many frames."""
    # Instead of gymnasium.vector.SyncVectorEnv([...] * NUM_ENVS, autoreset_mode="SameStep"):
    envs = rollfleet.make_vec("CartPole-v1", num_envs=NUM_ENVS, workers=2, autoreset_mode="SameStep")
    recorded = RecordEpisodeStatistics(envs)
    key, shuffle = jax.random.key(1), np.random.default_rng(1)
    params = network(key)
    state = params, *[jax.tree.map(jnp.zeros_like, params)] * 2, 0
    obs, _ = recorded.reset(seed=1)
    for frames in range(NUM_STEPS * NUM_ENVS, total_timesteps + 1, NUM_STEPS * NUM_ENVS):
        steps = []
        for _ in range(NUM_STEPS):
            key, own = jax.random.split(key)
            action, log_prob, value = map(np.asarray, act(state[0], obs, own))
            following, reward, terminations, truncations, _ = recorded.step(action)
            steps.append((obs, action, log_prob, value, reward, terminations | truncations))
            obs = following
        stacked = [np.stack(each) for each in zip(*steps, strict=True)]
        values = np.concatenate([stacked[3], act(state[0], obs, key)[2][None]])
        advantage = advantages_of(stacked[4].astype(np.float32), stacked[5].astype(np.float32), values)
        names = ("obs", "action", "log_prob", "advantage", "return")
        found = (*stacked[:3], np.asarray(advantage), np.asarray(advantage) + values[:-1])
        batch = {name: each.reshape(-1, *each.shape[2:]) for name, each in zip(names, found, strict=True)}
        for _ in range(EPOCHS):
            for chosen in np.split(shuffle.permutation(NUM_STEPS * NUM_ENVS), NUM_MINIBATCHES):
                state = train(state, {name: each[chosen] for name, each in batch.items()})
        print(f"{frames:7,} frames  mean return {np.mean(recorded.return_queue or [0.0]):.1f}")
    recorded.close()


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else 100_000)
