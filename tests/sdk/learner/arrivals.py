"""Batches that have arrived, of a size that does not matter."""

import torch
from tensordict import TensorDict

from rollfleet.transports.learner_side import Arrival
from rollfleet_api.messages import BatchMeta

SESSION = 5


def arrival(
    sequence: int, *, worker: int = 0, incarnation: int = 0, version: int = 1, session: int = SESSION, round: int = 0
) -> Arrival:
    return Arrival(
        worker=worker,
        incarnation=incarnation,
        sequence=sequence,
        meta=BatchMeta(session=session, round=round, version=version, frames=8),
        batch=TensorDict({}, [2, 4]),
        episode_returns=torch.empty(0, dtype=torch.float64),
        episode_lengths=torch.empty(0, dtype=torch.int64),
        nbytes=100,
    )
