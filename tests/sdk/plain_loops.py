"""Plain Gymnasium loops, without Rollfleet, to compare batches with: each number, bit for bit."""

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.vector import VectorEnv
from tensordict import TensorDict
from torch import Tensor

from rollfleet.envs.space_tree import SpaceTree

Key = tuple[str, ...]
Maker = Callable[[], gymnasium.Env[Any, Any]]
Columns = list[Tensor]

OUTCOME = ("reward", "terminated", "truncated")


def plain_loop(make: Maker, acts: Callable[[Any], Any], seed: int, frames: int) -> Columns:
    """Return the steps of one environment under the batch's keys: current and next values, reward, two flags."""
    env, rows = make(), []
    seen, acted = SpaceTree(env.observation_space), SpaceTree(env.action_space)
    observation, _ = env.reset(seed=seed)
    for _ in range(frames):
        now = [np.array(leaf) for leaf in seen.split(observation)]
        output = acts(seen.join([torch.from_numpy(leaf[None]) for leaf in now]))
        leaves = acted.split(output["action"] if isinstance(output, dict) else output)
        observation, reward, terminated, truncated, _ = env.step(acted.join([leaf[0].numpy() for leaf in leaves]))
        after = [np.array(leaf) for leaf in seen.split(observation)]
        rows.append([*now, *after, np.float32(reward), terminated, truncated])
        if terminated or truncated:
            observation, _ = env.reset()
    env.close()
    return [torch.from_numpy(np.stack(column)) for column in zip(*rows, strict=True)]


def vector_loop(env: VectorEnv[Any, Any, Any], first: Any, acts: Callable[[Any], Any], frames: int) -> list[Columns]:
    """Return such steps of each environment of a vector whose resets are steps of their own, without these."""
    rows: list[list[list[Any]]] = [[] for _ in first]
    seen, ended = first.copy(), np.zeros(len(first), np.bool_)
    while min(map(len, rows)) < frames:
        after, *outcome, _ = env.step(acts(seen))
        for lane in np.flatnonzero(~ended):
            rows[lane].append([seen[lane], after[lane].copy(), *(np.asarray(part)[lane] for part in outcome)])
        seen, ended = after.copy(), outcome[1] | outcome[2]
    env.close()
    return [[torch.from_numpy(np.stack(column)) for column in zip(*lane[:frames], strict=True)] for lane in rows]


def assert_same_frames(batch: TensorDict, loops: list[Columns], observed: Sequence[Key] = (("observation",),)) -> None:
    """Check each row of a batch against its loop, and that ids change where an episode ends."""
    keys = [*observed, *(("next", *key) for key in observed), *(("next", name) for name in OUTCOME)]
    for row, columns in zip(batch, loops, strict=True):
        for key, expected in zip(keys, columns, strict=True):
            assert row[key].dtype == expected.dtype, key
            assert torch.equal(row[key].reshape(expected.shape), expected), key
    ids, done = batch["collector", "traj_ids"], batch["next", "done"].squeeze(-1)
    assert torch.equal(ids[:, 1:] != ids[:, :-1], done[:, :-1])
    assert len(ids.unique()) == int(done[:, :-1].sum()) + len(ids)
