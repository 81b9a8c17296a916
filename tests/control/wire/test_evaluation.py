"""An evaluation worker with the identity that the operator mints."""

import asyncio
import threading
from typing import TYPE_CHECKING

import gymnasium
from tests.waiting import wait_until

import rollfleet
from rollfleet.nats.link import Link
from rollfleet.nats.worker_transport import NatsWorkerTransport
from rollfleet.transports.workload import Workload
from rollfleet.worker.evaluation import EvaluationWorker
from rollfleet_api.permissions import Role

if TYPE_CHECKING:
    from tests.control.wire.jwt_nats import Site


async def test_an_evaluation_workers_result_reaches_the_learner(site: "Site") -> None:
    job = site.job(policy={"mlp": {}}, evaluation={"every": 1, "episodes": 2})
    spec = job.spec.evaluation
    assert spec is not None
    await site.nats.provision(job)
    env = gymnasium.make(job.spec.env.id or "")
    policy = rollfleet.ActorCritic(env.observation_space, env.action_space)

    def work() -> None:
        address = site.address(job, Role.LEARNER)
        with rollfleet.connect(job, policy, address=address.url, credentials=address.credentials) as collector:
            link = Link(site.address(job, Role.WORKER), role=Role.WORKER)
            transport = NatsWorkerTransport(link, 0, spec)
            worker = EvaluationWorker(transport, Workload.of(job), 0)
            thread = threading.Thread(target=worker.run, daemon=True)
            thread.start()
            collector.update_policy_weights_()
            wait_until(lambda: collector.evaluations)
            assert [(each.version, each.episodes) for each in collector.evaluations] == [(1, 2)]
            assert link.refusals == 0
        thread.join(20)  # the end of the job ends it
        assert not thread.is_alive()
        worker.close()
        transport.close()

    await asyncio.to_thread(work)
