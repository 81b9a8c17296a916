"""A job on NATS, from the operator's side."""

from collections.abc import Callable

from tests.control.pure.nats_in_memory import NatsInMemory
from tests.control.pure.scene import NOW_S

from rollfleet_api.job import CollectorJob
from rollfleet_api.messages import LearnerStatus
from rollfleet_operator.errors import NatsFull
from rollfleet_operator.job_memory import OnNats
from rollfleet_operator.jobs_on_nats import JobsOnNats
from rollfleet_operator.nats_port import Heartbeats, JobKey


class Full(NatsInMemory):
    async def provision(self, job: CollectorJob, *, renewed_s: float = 0.0) -> None:
        raise NatsFull("no space")


async def test_heartbeats_are_read_although_nats_has_no_space_for_an_edit(job: Callable[..., CollectorJob]) -> None:
    nats, memory, learner = Full(), OnNats(), LearnerStatus(session=1, time_s=NOW_S - 100)
    nats.beats[JobKey("lab", "cartpole")] = Heartbeats(learner=learner)
    assert isinstance(await JobsOnNats(nats).refresh(job(), memory, NOW_S, publishable=True), NatsFull)
    assert (memory.heartbeats.learner, memory.heartbeats.since_s, memory.published) == (learner, NOW_S, None)
