"""What the operator keeps of a job between reconciliations."""

from dataclasses import replace

import pytest
from tests.control.pure.nats_in_memory import NatsInMemory
from tests.control.pure.scene import NOW_S, a_job, scene

from rollfleet_api.messages import LearnerPhase, LearnerStatus
from rollfleet_api.state.processes import Heartbeats
from rollfleet_operator.events import Event
from rollfleet_operator.job_memory import JobMemory, remembered
from rollfleet_operator.nats_port import JobKey


async def test_nats_is_left_while_a_job_does_not_need_it_and_forgets_an_ended_one() -> None:
    nats, memory, ended = NatsInMemory(), JobMemory(), scene().with_heartbeats(phase=LearnerPhase.COMPLETE).later(1).job
    for job, serves, known in ((a_job(), True, True), (a_job(), False, True), (ended, False, False)):
        assert await memory.read_heartbeats(nats, job, NOW_S, serves=serves) is None
        assert bool(nats.published) is known
        assert (memory.heartbeats.since_s == NOW_S) is serves


@pytest.mark.parametrize("wrong_s", [90.0, -90.0])
async def test_clock_of_another_machine_may_be_wrong(wrong_s: float) -> None:
    """A heartbeat that goes on is fresh, and one that stays is not."""
    nats, memory, found = NatsInMemory(), JobMemory(), scene().running(0, 1)
    for second in range(0, 60, 5):
        now_s = NOW_S + second
        beats = {0: found.beat(0, time_s=now_s + wrong_s), 1: found.beat(1, time_s=NOW_S + wrong_s)}
        learner = LearnerStatus(session=1, time_s=now_s + wrong_s)
        nats.beats[JobKey("lab", "cartpole")] = Heartbeats(workers=beats, learner=learner)
        await memory.read_heartbeats(nats, a_job(), now_s, serves=True)
    now = replace(found, heartbeats=memory.heartbeats, now_s=now_s).snapshot
    assert [beat.worker for beat in now.reporting] == [0]
    assert memory.heartbeats.learner
    assert memory.heartbeats.learner.time_s == pytest.approx(now_s, abs=5)


def test_memory_is_that_of_the_same_job_until_the_clock_is_set_back() -> None:
    memory = remembered(None, "1", NOW_S)
    assert remembered(memory, "1", NOW_S + 5) is memory
    assert remembered(memory, "2", NOW_S + 5) is not memory
    assert remembered(memory, "1", NOW_S) is not memory


def test_a_clock_that_was_set_back_holds_no_event_back() -> None:
    memory, found = remembered(None, "1", NOW_S), [Event("Warning", "WorkerCrashed", "worker 1 ...")]
    assert memory.throttle.admit(found, NOW_S) == found
    assert remembered(memory, "1", NOW_S - 3600).throttle.admit(found, NOW_S - 3600) == found
