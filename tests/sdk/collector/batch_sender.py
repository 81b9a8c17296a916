"""A worker that sends batches on demand."""

from typing import TYPE_CHECKING

import torch

from rollfleet.data.batch import Fragment
from rollfleet.nats.worker_transport import NatsWorkerTransport
from rollfleet_api.messages import BatchMeta
from rollfleet_api.permissions import Role

if TYPE_CHECKING:
    from tests.job_server import Server

ENVS, STEPS = 2, 3


class Sender:
    """One incarnation of a worker."""

    def __init__(self, server: "Server", worker: int) -> None:
        self._transport = NatsWorkerTransport(server.link(Role.WORKER), worker)

    def send(self, *values: float, session: int = 1, round_: int = 0) -> None:
        """Send a batch for each value, whose observations all have that value. Wait until NATS has stored them."""
        meta = BatchMeta(session=session, round=round_, version=1, frames=ENVS * STEPS)
        for value in values:
            self._transport.send(_fragment(value), meta).stored.result(10)


def _fragment(value: float) -> Fragment:
    flags = torch.zeros(ENVS, STEPS, 1, dtype=torch.bool)
    return Fragment(
        steps={
            ("observation",): torch.full((ENVS, STEPS, 4), value),
            ("action",): torch.zeros(ENVS, STEPS, dtype=torch.int64),
            ("next", "reward"): torch.ones(ENVS, STEPS, 1),
            ("next", "terminated"): flags,
            ("next", "truncated"): flags.clone(),
            ("collector", "traj_ids"): torch.zeros(ENVS, STEPS, dtype=torch.int64),
        },
        final={("observation",): torch.full((ENVS, 4), value)},
        episode_returns=torch.empty(0, dtype=torch.float64),
        episode_lengths=torch.empty(0, dtype=torch.int64),
        version=1,
    )
