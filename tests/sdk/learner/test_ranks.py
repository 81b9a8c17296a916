"""Several processes of one learner share a job: each batch goes to one of them, and rank 0 leads.

Threads stand for the processes, and a barrier for the all-reduce of their steps; `test_torchrun` has real ones.
"""

from collections.abc import Sequence
from contextlib import suppress
from itertools import islice
from threading import Barrier
from typing import Any

import pytest
import torch
from tests.job_server import Connect, Server, actor_critic, join_all
from tests.sdk.batch_sender import Sender
from tests.sdk.concurrent_calls import PATIENCE_S, at_once, begin
from tests.sdk.nats.numbered_batches import fragment, values
from tests.waiting import wait_until

from rollfleet import Collector
from rollfleet.errors import JobInvalid, LearnerReplaced
from rollfleet.rollout.trajectory_ids import split
from rollfleet_api.messages import Control, LearnerPhase, LearnerStatus, WorkerState, pack
from rollfleet_api.ranks import Rank
from rollfleet_api.subjects import Ask
from rollfleet_api.transfers import BatchMeta

WORKERS = 4
ENV = {"id": "CartPole-v1", "numEnvs": 2}
SYNC: dict[str, Any] = {"mode": "Sync", "workers": WORKERS, "env": ENV, "collect": {"framesPerBatch": 64}}
ASYNC: dict[str, Any] = SYNC | {"mode": "Async", "collect": {"framesPerBatch": 16}}
SENT: dict[str, Any] = ASYNC | {"policy": {"random": {}}, "delivery": {"maxBatchesAhead": 8}}


def workers_in(batch: Any) -> set[int]:
    return {split(trajectory)[0] for trajectory in batch["collector", "traj_ids"].unique().tolist()}


def both(connect: Connect, ranks: int = 2, **more: Any) -> list[Collector]:
    """Return all ranks of a learner. The others connect before rank 0."""
    later = [connect(actor_critic(), rank=rank, ranks=ranks, **more) for rank in range(1, ranks)]
    return [connect(actor_critic(), rank=0, ranks=ranks, **more), *later]


def in_step(collectors: Sequence[Collector], batches: int | None = None) -> list[list[Any]]:
    """Return these batches of each rank, None: all. After each of them the ranks wait for each other."""
    step = Barrier(len(collectors))

    def go(collector: Collector) -> list[Any]:
        found = []
        for batch in islice(collector, batches):
            found.append(batch)
            step.wait(PATIENCE_S)
        return found

    return at_once(go, collectors)


def test_in_mode_sync_each_rank_gets_its_workers_fragments_of_every_round(connect: Connect, server: Server) -> None:
    workers = server.start_workers(**SYNC | {"collect": {"framesPerBatch": 64, "totalFrames": 64 * 20}})
    leader, other = in_step(both(connect))
    assert len(leader) == len(other) == 20
    for one, two in zip(leader, other, strict=True):
        assert (workers_in(one), workers_in(two)) == ({0, 2}, {1, 3})
        assert one.shape == two.shape == (4, 8)
        versions = {*one["collector", "policy_version"].unique().tolist()}
        assert versions == {*two["collector", "policy_version"].unique().tolist()}
    ids = [
        {*torch.cat([each["collector", "traj_ids"] for each in mine], 1).flatten().tolist()} for mine in (leader, other)
    ]
    assert not ids[0] & ids[1]
    join_all(workers)


def test_each_rank_goes_on_without_a_batch_that_cannot_be_read(connect: Connect, server: Server) -> None:
    server.own(**SENT | {"mode": "Sync", "collect": {"framesPerBatch": 24}})
    other, leader = (connect(rank=rank, ranks=2) for rank in (1, 0))
    controls, calls = server.hear_control(), [begin(next, leader), begin(next, other)]
    wait_until(lambda: controls and controls[-1].round)
    meta = BatchMeta(session=controls[-1].session, round=1, version=1, frames=6)
    sizes: list[dict[str, int]] = [{"steps": 5000}, {"envs": 5000, "steps": 1}, {}, {}]
    for worker, size in enumerate(sizes):  # the first of each rank sends too many frames
        server.worker_transport(worker).send(fragment(float(worker), **size), meta)
    assert [call.result(60)["observation"].unique().tolist() for call in calls] == [[2.0], [3.0]]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_drops_its_part_of_a_round_delays_no_other(rank: int, connect: Connect, server: Server) -> None:
    server.start_workers(**SYNC)
    given: list[Any] = []

    def postproc(batch: Any) -> Any:
        given.append(batch)
        if len(given) == 2:
            raise LookupError("mine")
        return batch

    step = Barrier(2)

    def go(collector: Collector) -> int:
        for _ in range(6):
            with suppress(LookupError):
                next(collector)
            step.wait(PATIENCE_S)
        return collector.stats().interrupted

    interrupted = [connect(actor_critic(), rank=rank, ranks=2, postproc=postproc)]
    collectors = [connect(actor_critic(), rank=1 - rank, ranks=2), *interrupted]
    assert at_once(go, collectors) == [0, 2]


def test_in_mode_async_each_batch_goes_to_its_workers_rank_and_rank_0_ends_at_its_share(
    connect: Connect, server: Server
) -> None:
    workers = server.start_workers(**ASYNC | {"collect": {"framesPerBatch": 16, "totalFrames": 16 * 100}})
    collectors = both(connect, ranks=3)
    of_ranks = at_once(list, collectors)
    assert [set.union(*map(workers_in, mine)) for mine in of_ranks] == [{0, 3}, {1}, {2}]
    assert len(of_ranks[0]) == len(collectors[0]) == 50  # it has two of four workers
    assert [collector.stats().missed for collector in collectors] == [0, 0, 0]
    join_all(workers)


def test_rank_0_alone_sends_versions(server: Server, connect: Connect) -> None:
    job = server.own(**ASYNC | {"weights": {"interval": 0, "maxLag": 1}})
    workers = [server.start_worker(job, index) for index in range(WORKERS)]
    leader, other = both(connect)
    controls = server.hear_control()
    assert other.update_policy_weights_() == 0
    next(leader)
    assert other.update_policy_weights_() == 1
    for worker in workers:
        worker.wait_for(WorkerState.WAITING_FOR_LEARNER)  # its batches so far are of version 1
    for _ in range(5):
        leader.update_policy_weights_()
    while other.update_policy_weights_() < 6:  # until it has received the control message
        pass
    with other.pause():
        pass
    other.set_seed(3)
    batch = next(other)
    assert workers_in(batch) <= {1, 3}
    assert batch["collector", "policy_version"].min() >= 5
    assert other.stats().stale > 0
    assert other.version == 6
    other.shutdown()
    assert next(leader).numel() > 0  # the job continues
    leader.shutdown()
    join_all(workers)
    assert {(control.session, control.seed) for control in controls} == {(controls[0].session, None)}
    for worker in workers:
        assert worker.transport.control is not None
        assert (worker.transport.control.session, worker.transport.control.seed) == (controls[0].session, None)


def test_a_replaced_rank_leaves_its_unacknowledged_batches_to_its_successor(server: Server, connect: Connect) -> None:
    server.own(**SENT)
    senders = [Sender(server, worker) for worker in range(WORKERS)]
    leader = connect(rank=0, ranks=2)
    first = connect(rank=1, ranks=2, acknowledge="manual")
    senders[1].send(1.0, 1.1, 1.2)
    senders[0].send(0.0)
    assert values(first, 1) == pytest.approx([1.0])
    first.ack()
    assert values(first, 2) == pytest.approx([1.1, 1.2])
    second = connect(rank=1, ranks=2)  # the earlier one may have died
    senders[3].send(3.0)
    assert sorted(values(second, 3)) == pytest.approx([1.1, 1.2, 3.0])
    with pytest.raises(LearnerReplaced, match="as rank 1 of 2, or with another number of ranks"):
        next(first)
    senders[2].send(2.0)
    assert sorted(values(leader, 2)) == pytest.approx([0.0, 2.0])


@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 3), (3, 2)])
def test_a_learner_with_another_number_of_ranks_replaces_all_and_gets_their_batches(
    before: int, after: int, server: Server, connect: Connect
) -> None:
    server.own(**SENT)
    senders = [Sender(server, worker) for worker in range(WORKERS)]
    replaced = [connect(rank=rank, ranks=before) for rank in range(before)]
    for worker, sender in enumerate(senders):
        sender.send(float(worker))
    taken = [value for collector in replaced for value in values(collector, 1)]
    wait_until(lambda: sum(sender.kept for sender in senders) == WORKERS - before)
    successors = [connect(rank=rank, ranks=after) for rank in range(after)]
    for worker, sender in enumerate(senders):
        sender.send(10.0 + worker)
    left = 2 * WORKERS - before
    found: list[float] = []
    for rank, collector in enumerate(successors):
        mine = [worker for worker in range(WORKERS) if worker % after == rank]
        expected = [value for worker in mine for value in (worker, 10 + worker) if value not in taken]
        found += sorted(values(collector, len(expected)))
        assert found[-len(expected) :] == sorted(expected)
    assert len(found) == left
    for collector in replaced:
        with pytest.raises(LearnerReplaced):
            list(collector)  # at most the batches that it had already


def test_new_workers_of_a_growing_job_send_to_their_ranks(server: Server, connect: Connect) -> None:
    server.own(**SENT | {"workers": 2})
    leader, other = [connect(rank=rank, ranks=2) for rank in range(2)]
    early = Sender(server, 3)
    early.send(3.0)  # before the learner knows the worker
    senders = [Sender(server, worker) for worker in range(2)]
    senders[1].send(1.0, 1.1)
    assert values(other, 2) == pytest.approx([1.0, 1.1])  # of the batches that came later
    server.own(**SENT | {"workers": 4})
    assert values(other, 1) == [3.0]
    early.send(3.5)
    Sender(server, 2).send(2.0)
    senders[0].send(0.0)
    assert sorted(values(leader, 2)) == [0.0, 2.0]
    assert values(other, 1) == [3.5]
    assert other.stats().missed == 0


def test_when_rank_0_starts_again_the_others_follow_it(connect: Connect, server: Server) -> None:
    workers = server.start_workers(**SYNC)
    leader, other = both(connect)
    in_step([leader, other], 3)
    leader.detach()
    leader = connect(actor_critic(), rank=0, ranks=2)
    batches = in_step([leader, other], 3)
    assert [workers_in(batch) for batch in batches[1]] == [{1, 3}] * 3
    assert other.version == leader.version
    leader.shutdown()
    assert list(other) == []
    join_all(workers)


def test_nats_may_be_killed_and_started_again_under_several_ranks(server: Server, connect: Connect) -> None:
    server.start_workers(**SYNC)
    collectors = both(connect)
    in_step(collectors, 3)
    server.restart()
    in_step(collectors, 5)
    assert [collector.frames for collector in collectors] == [8 * 32] * 2
    assert [collector.stats().missed for collector in collectors] == [0, 0]


def test_a_completed_job_does_not_end_ranks_that_come_before_the_next_rank_0(server: Server, connect: Connect) -> None:
    job = server.own(**SYNC)
    connect(actor_critic()).shutdown()
    of_other = server.learner_transport(rank=Rank(1, 2))
    other = Collector.over(of_other, job, actor_critic())
    leader = connect(actor_critic(), rank=0, ranks=2)
    running = begin(lambda each: in_step(each, 2), [other, leader])
    while (control := of_other.leader_control) and control.phase is LearnerPhase.COMPLETE:
        assert not running.done()
    for index in range(WORKERS):
        server.start_worker(job, index)
    assert [len(each) for each in running.result(PATIENCE_S)] == [2, 2]


def test_a_round_that_rank_0_has_left_is_not_waited_for(server: Server, connect: Connect) -> None:
    server.own(**SENT | {"mode": "Sync", "collect": {"framesPerBatch": 64}})
    admin, control = server.link(), Control(session=1, phase=LearnerPhase.RUN, round=3, version=1)
    admin.call(admin.on_ask(Ask.CONTROL, lambda: admin.publish(admin.subjects.control, pack(control))))
    collector, one, three = connect(rank=1, ranks=2), Sender(server, 1), Sender(server, 3)
    one.send(1.3, round_=3)
    one.send(1.4, round_=4)
    three.send(3.4, round_=4)
    assert next(collector)["observation"][::2].mean((1, 2)).tolist() == pytest.approx([1.4, 3.4])
    assert collector.stats().stale == 1


def test_rank_0_reports_the_frames_of_all_ranks(server: Server, connect: Connect) -> None:
    server.start_workers(**SYNC)
    leader, other = both(connect)
    in_step([leader, other], 3)
    assert (leader.frames, other.frames) == (96, 96)
    heard = server.hear(server.subjects.learner(0), LearnerStatus)
    wait_until(lambda: heard and (heard[-1].frames, heard[-1].batches) == (192, 3))


@pytest.mark.parametrize(
    ("spec", "ranks", "advice"),
    [
        ({"stragglers": {"threshold": 0.5}}, 2, r"`stragglers.threshold` 0\.5, .* remove it .* connect with `ranks=1`"),
        ({}, 5, r"`ranks` is 5, .* has 4 workers, .* write `ranks=4` or fewer, or .* `workers: 5` or more"),
    ],
    ids=["stragglers", "more ranks than workers"],
)
def test_ranks_that_a_job_cannot_have_are_refused_with_advice(
    spec: dict[str, Any], ranks: int, advice: str, server: Server, connect: Connect
) -> None:
    server.own(**SYNC | spec)
    with pytest.raises(JobInvalid, match=advice):
        connect(rank=1, ranks=ranks)
