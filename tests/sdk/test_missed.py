"""A worker that was not told: what it waits for is stored, and it looks there."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import gymnasium

from rollfleet import ActorCritic, Collector, CollectorJob
from rollfleet.link import Link
from rollfleet_api.messages import WorkerState

if TYPE_CHECKING:
    from tests.sdk.conftest import Server, WorkerThread

CARTPOLE = gymnasium.make("CartPole-v1")
SPEC: dict[str, Any] = {
    "mode": "Sync",
    "workers": 1,
    "env": {"id": "CartPole-v1", "numEnvs": 4},
    "policy": {"mlp": {}},
    "collect": {"framesPerBatch": 32},
}


def deafen(link: Link) -> None:
    """Take away all that a worker listens to, but the answers to what it asks."""

    async def unsubscribe() -> None:
        for subscription in list(link.client._subs.values()):
            if subscription.subject.startswith(link.subjects.prefix):
                await subscription.unsubscribe()

    link.call(unsubscribe())


def test_a_worker_that_missed_every_message_goes_on_by_what_is_stored(
    server: "Server", connect: Callable[..., Collector], start_worker: "Callable[[CollectorJob, int], WorkerThread]"
) -> None:
    worker = start_worker(server.provision(**SPEC), 0)
    worker.wait_for(WorkerState.WAITING_FOR_LEARNER)
    deafen(worker.port._link)
    collector = connect(ActorCritic(CARTPOLE.observation_space, CARTPOLE.action_space))
    assert next(collector).batch_size == (4, 8)
    collector.update_policy_weights_()
    assert next(collector)["collector", "policy_version"].unique().tolist() == [2]
