"""Batches of TorchRL's own collector from the seeds of a worker of ours, and a comparison bit by bit."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from tensordict import LazyStackedTensorDict, NonTensorData, NonTensorStack, TensorDict
from tests.sdk.places import Collect

from rollfleet.rollout.seeding import Seeds

T, BATCHES = 12, 3
OURS = ("policy_version",)


ACTIONS_DO_NOT_MATTER = ("images", "nested", "cut-at-random")
"""Kinds that TorchRL's `reset` cannot write into, or that draw from their own generator in it."""


def torchrls(
    make: Callable[[], Any], policy: Any = None, *, resets: bool = True, **keywords: Any
) -> Iterator[TensorDict]:
    """Yield batches of TorchRL's collector, from the seeds of our worker 0."""
    from torchrl.collectors import Collector as TorchRLCollector  # importing it warns

    seeds = Seeds.derive(0, worker=0, incarnation=0, num_envs=1)
    with torch.random.fork_rng():
        torch.manual_seed(seeds.torch)
        env = make()
        env.set_seed(seeds.envs[0])
        frames = T * math.prod(env.batch_size)
        collector = TorchRLCollector(env, policy, frames_per_batch=frames, total_frames=BATCHES * frames, **keywords)
        try:
            if resets:  # making the collector has drawn from torch's generator
                torch.manual_seed(seeds.torch)
                collector.env.set_seed(seeds.envs[0])
                collector.reset()
            for batch in collector:
                yield batch.clone()
        finally:
            collector.shutdown()


def assert_collects(
    collect: Collect, make: Callable[[], Any], policy: Any, expected: Sequence[TensorDict], **keywords: Any
) -> None:
    """Assert that a collector in one place yields these batches of TorchRL's."""
    envs = math.prod(expected[0].shape[:-1])
    frames = T * envs * collect.alone.get("workers", collect.workers)  # of two processes, the first has their seeds
    amounts = {"frames_per_batch": frames, "num_envs": envs, "total_frames": BATCHES * frames}
    with collect(make, policy, **collect.alone | keywords | amounts) as collector:
        for batch, theirs in zip(collector, expected, strict=True):
            assert_equal(batch[:envs], theirs.unsqueeze(0) if theirs.batch_dims == 1 else theirs)  # [envs, T]


def assert_equal(ours: Any, theirs: Any, path: tuple[str, ...] = ()) -> None:
    """Assert that two TensorDicts have the same keys, batch sizes, dtypes, shapes and values, and no others."""
    assert type(ours) is type(theirs), path
    assert ours.batch_size == theirs.batch_size, path
    if isinstance(ours, LazyStackedTensorDict):
        assert ours.stack_dim == theirs.stack_dim, path
        for index, (own, other) in enumerate(zip(ours.tensordicts, theirs.tensordicts, strict=True)):
            assert_equal(own, other, (*path, str(index)))
        return
    assert set(ours.keys()) - {*OURS} == set(theirs.keys()), path
    for name in list(theirs.keys()):
        own, other = ours.get(name), theirs.get(name)
        if name == "traj_ids":
            assert_renamed(own, other)
        elif isinstance(other, torch.Tensor):
            assert own.dtype == other.dtype, (*path, name)
            assert own.shape == other.shape, (*path, name)
            assert torch.equal(own, other) or torch.equal(own.isnan(), other.isnan()), (*path, name)
        elif isinstance(other, NonTensorData | NonTensorStack):
            assert own.tolist() == other.tolist(), (*path, name)
        else:
            assert_equal(own, other, (*path, name))


def assert_renamed(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    """Assert that trajectory ids part the frames in the same way: numbers of workers are in ours."""
    pairs = set(zip(ours.flatten().tolist(), theirs.flatten().tolist(), strict=True))
    assert len(pairs) == len({own for own, _ in pairs}) == len({other for _, other in pairs})
