"""Ranks other than 0 join the fragments of a round, and rank 0 adds up their reports."""

from itertools import islice
from typing import Any

import pytest
from tests.job_server import Connect, Server, actor_critic, deafen
from tests.sdk.batch_sender import Sender
from tests.sdk.concurrent_calls import at_once
from tests.waiting import wait_until

from rollfleet import Collector
from rollfleet.errors import JobEnded
from rollfleet.learner import following
from rollfleet.nats.state import read_state
from rollfleet_api.messages import Control, LearnerPhase, LearnerStatus, pack

ENV = {"id": "CartPole-v1", "numEnvs": 2}
SYNC: dict[str, Any] = {"mode": "Sync", "workers": 4, "env": ENV, "collect": {"framesPerBatch": 64}}
SENT: dict[str, Any] = SYNC | {"policy": {"random": {}}, "delivery": {"maxBatchesAhead": 8}}


def say(server: Server, session: int, round_: int, phase: LearnerPhase = LearnerPhase.RUN) -> None:
    """Publish a control message as rank 0 would."""
    admin = server.link()
    control = Control(session=session, phase=phase, round=round_, version=1)
    admin.call(admin.js.publish(admin.subjects.control, pack(control)))


def rank_1(server: Server, connect: Connect, *, session: int = 1, round_: int = 3) -> tuple[Collector, Sender, Sender]:
    """Return rank 1 of 2, whose leader is in this session and round, and its workers, 1 and 3."""
    server.provision(**SENT)
    say(server, session, round_)
    return connect(rank=1, ranks=2), Sender(server, 1), Sender(server, 3)


def values(collector: Collector) -> list[float]:
    batch = next(collector)
    return [float(value) for value in batch["observation"][::2].mean((1, 2))]


def test_fragments_of_one_round_are_joined_while_a_worker_is_a_round_ahead(server: Server, connect: Connect) -> None:
    collector, one, three = rank_1(server, connect)
    one.send(1.3, round_=3)
    one.send(1.4, round_=4)
    three.send(3.3, round_=3)
    assert values(collector) == pytest.approx([1.3, 3.3])
    three.send(3.4, round_=4)
    assert values(collector) == pytest.approx([1.4, 3.4])
    assert collector.stats().stale == collector.stats().repeated == 0


def test_a_worker_without_a_fragment_of_a_round_does_not_delay_it(server: Server, connect: Connect) -> None:
    collector, one, three = rank_1(server, connect)
    one.send(1.3, round_=3)
    three.send(3.4, round_=4)  # it has just returned
    assert values(collector) == pytest.approx([1.3])


def test_fragments_for_an_earlier_session_are_dropped(server: Server, connect: Connect) -> None:
    collector, *senders = rank_1(server, connect, session=2, round_=9)
    for number, sender in enumerate(senders, 1):
        sender.send(0.0, session=1, round_=8)
        sender.send(float(number), session=2, round_=9)
    assert values(collector) == [1.0, 2.0]
    assert collector.stats().stale == 2


def test_a_fragment_collected_twice_is_yielded_once(server: Server, connect: Connect) -> None:
    collector, one, three = rank_1(server, connect)
    one.send(1.0, 1.1, round_=3)
    three.send(3.0, round_=3)
    assert values(collector) == [1.0, 3.0]
    one.send(1.2, round_=3)
    one.send(1.4, round_=4)
    three.send(3.4, round_=4)
    assert values(collector) == pytest.approx([1.4, 3.4])
    assert (collector.stats().repeated, collector.stats().stale) in ((1, 1), (0, 2))  # before or after it was yielded


def test_a_rank_that_missed_every_message_continues_from_stored_ones(server: Server, connect: Connect) -> None:
    job = server.provision(**SYNC | {"collect": {"framesPerBatch": 64, "totalFrames": 64 * 2}})
    other, leader = [connect(actor_critic(), rank=rank, ranks=2) for rank in (1, 0)]
    transport: Any = other._transport
    deafen(transport._link)
    for index in range(4):
        server.start_worker(job, index)
    of_leader, of_other = at_once(lambda each: len(list(each)), [leader, other])
    assert 0 < of_leader <= 4
    assert of_other <= of_leader


def test_rank_0_reports_the_totals_of_all_ranks(server: Server, connect: Connect) -> None:
    server.start_workers(**SYNC)
    other, leader = [connect(actor_critic(), rank=rank, ranks=2) for rank in (1, 0)]
    other.load_state_dict(other.state_dict() | {"frames": 1000, "batches": 10})
    at_once(lambda each: list(islice(each, 3)), [leader, other])
    assert (leader.frames, other.frames) == (96, 1096)
    admin = server.link()

    def reported() -> tuple[int, int, int] | None:
        leader._gatherer.check_workers()
        status = admin.call(read_state(admin, admin.subjects.learner, LearnerStatus))
        return (status.session, status.frames, status.batches) if status else None

    wait_until(lambda: reported() == (1, 1192, 16))


def test_ranks_of_a_complete_job_stop_waiting_for_rank_0_after_a_timeout(
    server: Server, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "LEADER_TIMEOUT_S", 0.1)
    server.provision(**SYNC)
    say(server, 1, 3, LearnerPhase.COMPLETE)
    with pytest.raises(JobEnded, match=r"complete when rank 1 of 2 connected, and no rank 0 connected within 0\.1 s"):
        next(connect(rank=1, ranks=2))
