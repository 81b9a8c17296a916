"""Batches that carry a number, so that a test can recognise each one, and the specs of jobs that send them."""

from itertools import islice
from typing import Any

import torch
from tests.sdk.wire.joined_chunks import split

from rollfleet import Collector
from rollfleet.data.batch import EPISODES, Fragment
from rollfleet.nats.link import Link
from rollfleet.wire.chunks import Identity
from rollfleet.wire.fragment_message import pack_fragment
from rollfleet_api.transfers import BatchMeta
from rollfleet_api.versions import version_of


def fragment(value: float = 0.0, *, envs: int = 2, steps: int = 3, size: int = 4) -> Fragment:
    """Make a fragment in which no episode ends."""
    flags = torch.zeros(envs, steps, 1, dtype=torch.bool)
    return Fragment(
        steps={
            ("observation",): torch.full((envs, steps, size), value),
            ("action",): torch.zeros(envs, steps, dtype=torch.int64),
            ("next", "reward"): torch.ones(envs, steps, 1),
            ("next", "terminated"): flags,
            ("next", "truncated"): flags.clone(),
            ("collector", "traj_ids"): torch.zeros(envs, steps, dtype=torch.int64),
        },
        final={("observation",): torch.full((envs, size), value)},
        episodes={name: torch.empty(0, *shape, dtype=dtype) for name, (dtype, shape) in EPISODES.items()},
        version=1,
    )


META = BatchMeta(session=1, round=0, version=version_of(1, 1), frames=6)

ASYNC: dict[str, Any] = {
    "mode": "Async",
    "workers": 2,
    "env": {"id": "CartPole-v1", "numEnvs": 4},
    "collect": {"framesPerBatch": 32},
}
SYNC: dict[str, Any] = ASYNC | {"mode": "Sync"}


def publish(
    link: Link,
    value: float,
    identity: Identity,
    *,
    chunk_bytes: int = 1 << 16,
    chunks: slice = slice(None),
) -> None:
    """Publish these chunks of a batch, which no worker keeps. Wait until the server has them."""
    cut = split(pack_fragment(fragment(value), META), identity, max_chunk_bytes=chunk_bytes)
    for chunk in list(cut)[chunks]:
        link.call(link.publish(link.subjects.chunk(identity.worker), chunk), timeout_s=5)
    link.call(link.flush(), timeout_s=5)


def of(worker: int, sequence: int, incarnation: int = 0) -> Identity:
    return Identity(worker=worker, incarnation=incarnation, sequence=sequence)


def values(collector: Collector, count: int) -> list[float]:
    return [float(batch["observation"].mean()) for batch in islice(collector, count)]
