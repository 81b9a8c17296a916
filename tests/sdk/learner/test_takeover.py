"""A learner takes over a job from another one, and is taken over itself."""

import math
from itertools import islice
from typing import Any

import pytest
from tests.job_server import Connect, Server, actor_critic, always, hearing
from tests.waiting import wait_until

from rollfleet import Collector
from rollfleet.errors import LearnerReplaced, NoWeights
from rollfleet.schemes import Whole
from rollfleet_api.job import CollectorJobStatus
from rollfleet_api.permissions import Role
from rollfleet_api.versions import version_of

ENV = {"id": "CartPole-v1", "numEnvs": 4}
SYNC: dict[str, Any] = {"mode": "Sync", "workers": 1, "env": ENV, "collect": {"framesPerBatch": 32}}


def test_a_learner_that_returns_with_older_weights_is_noticed(
    connect: Connect, caplog: pytest.LogCaptureFixture, server: Server
) -> None:
    server.start_workers(**SYNC)
    policy = actor_critic()
    first = connect(policy)
    next(first)
    state = first.state_dict()
    next(first)
    first.detach()

    second = connect(policy)
    next(second)
    second.detach()
    assert "weights" not in caplog.text  # it continues after the newest version

    third = connect(policy)
    third.load_state_dict(state)
    assert "restored version 1, but workers have had version 3 already" in caplog.text
    next(third)
    assert third.version == 4
    third.shutdown()


def test_a_replaced_learner_that_talks_on_drives_no_worker(server: Server, connect: Connect) -> None:
    (worker,) = server.start_workers(**SYNC)
    hears, transport = hearing(link := server.link(Role.LEARNER)), server.learner_transport(link)
    replaced = Collector.over(transport, transport.job, actor_critic())
    next(replaced)
    hears.clear()  # it was stopped before, and goes on
    successor = connect(actor_critic())
    next(successor)
    replaced.update_policy_weights_()
    with replaced.pause():
        pass
    list(islice(successor, 3))
    hears.set()
    with pytest.raises(LearnerReplaced):
        list(islice(replaced, 3))
    assert worker.transport.control is not None
    assert worker.transport.control.session > transport.resumed.session
    successor.shutdown()
    worker.join()


@pytest.mark.parametrize("interval", [0, 1])
@pytest.mark.parametrize("mode", ["Sync", "Async"])
def test_a_version_of_a_replaced_learner_is_never_taken_for_its_successors(
    mode: str, interval: int, server: Server, connect: Connect
) -> None:
    """The replaced learner sends a version after its successor has read the newest number."""
    collect = SYNC["collect"] | {"exploration": "Mode"}
    (worker,) = server.start_workers(**SYNC | {"mode": mode, "collect": collect, "weights": {"interval": interval}})
    hears, transport = hearing(link := server.link(Role.LEARNER)), server.learner_transport(link)
    replaced = Collector.over(transport, transport.job, always(actor_critic(), 0))
    next(replaced)
    hears.clear()
    policy = always(actor_critic(), 1)
    successor = connect(policy)
    newest = successor.version + 1
    weights = Whole().select(always(actor_critic(), 0))
    transport.send_weights(version_of(transport.resumed.session, newest), Whole().layout(weights), weights)
    wait_until(lambda: worker.status and worker.status.version == newest)
    own: float = newest if interval else math.inf  # the successor's first version
    actions: set[tuple[bool, int]] = set()
    while (True, 1) not in actions or successor.batches < 4:
        if not interval and successor.batches == 1:
            own = successor.update_policy_weights_(policy)
        batch = next(successor)
        versions = batch["collector", "policy_version"].flatten() >= own
        actions |= set(zip(versions.tolist(), batch["action"].flatten().tolist(), strict=True))
    assert actions <= {(False, 0), (True, 1)}
    successor.shutdown()
    worker.join()


def test_weights_for_one_worker_are_not_what_a_successor_waits_for_from_all(server: Server, connect: Connect) -> None:
    server.start_workers(**SYNC | {"workers": 2, "weights": {"interval": 0}})
    first = connect(actor_critic())
    next(first)
    assert first.update_policy_weights_(worker_ids=[0]) == 2
    next(first)
    first.detach()
    second = connect(actor_critic())
    assert next(second)["collector", "policy_version"][:, 0].tolist() == 4 * [2] + 4 * [1]
    assert second.update_policy_weights_() == 3
    second.load_state_dict(second.state_dict())  # the policy is due
    assert (next(second)["collector", "policy_version"] == 4).all()
    second.shutdown()


def test_total_frames_count_over_all_successive_learners_of_a_job(server: Server, connect: Connect) -> None:
    frames = SYNC["collect"]["framesPerBatch"]
    (worker,) = server.start_workers(**SYNC | {"collect": {"framesPerBatch": frames, "totalFrames": 5 * frames}})
    first = connect(actor_critic())
    assert [batch.numel() for batch in islice(first, 3)] == 3 * [frames]
    with pytest.raises(ArithmeticError), first:
        raise ArithmeticError("the learner crashed")
    second = connect(actor_critic())
    assert (second.frames, second.batches) == (3 * frames, 3)
    assert [batch.numel() for batch in second] == 2 * [frames]
    assert second.frames == 5 * frames
    worker.join()
    job = second.job.model_copy(update={"status": CollectorJobStatus(frames=5 * frames)})
    server.own_job(job)  # its status is what is left
    assert list(connect(actor_critic())) == []  # the job is complete: it waits for no one


def test_a_worker_that_begins_after_a_learner_was_replaced_gets_the_weights_of_its_successor(
    server: Server, connect: Connect
) -> None:
    """With interval 0 it sends none by itself, and those of the learner before it are gone."""
    (worker,) = server.start_workers(**SYNC | {"weights": {"interval": 0}})
    first = connect(actor_critic())
    next(first)
    first.detach()
    second = connect(actor_critic())
    assert (next(second)["collector", "policy_version"] == 1).all()
    worker.leave()
    worker.join()
    server.start_worker(second.job, 0)
    assert (next(second)["collector", "policy_version"] == 2).all()
    second.shutdown()


def test_without_a_policy_the_successor_is_told_to_send_weights(server: Server, connect: Connect) -> None:
    (worker,) = server.start_workers(**SYNC | {"weights": {"interval": 0}})
    first = connect(actor_critic())
    next(first)
    first.detach()
    second = connect()
    next(second)
    worker.leave()
    worker.join()
    server.start_worker(second.job, 0)
    with pytest.raises(NoWeights, match=r"worker 0 waits for weights, .*: call update_policy_weights_\(\)"):
        next(second)
    second.update_policy_weights_(actor_critic())
    assert (next(second)["collector", "policy_version"] == 2).all()
    second.shutdown()
