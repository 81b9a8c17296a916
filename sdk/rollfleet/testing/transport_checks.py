"""The conformance suite of transports: the facts that the collector relies on, one function each.

```python
@pytest.mark.parametrize("check", [*TRANSPORT_CHECKS, *BACKGROUND_CHECKS], ids=lambda check: check.__name__)
def test_my_transport(check: Check) -> None:
    with ExitStack() as stack:

        def make(workers: int = 2, **spec: Any) -> MyRig:
            rig = MyRig(small_job(workers=workers + 1, **spec), workers)
            stack.callback(rig.close)
            return rig

        check(make)
```
"""

import time
from collections.abc import Callable
from typing import Final

import torch

from rollfleet.errors import RollfleetError
from rollfleet.testing.rig import ENVS, STEPS, TIMEOUT_S, MakeRig, Marked, receive, run, send, wait_for
from rollfleet.weights.layout import POLICY, WeightLayout, state_of
from rollfleet_api.messages import LearnerPhase, WorkerState

Check = Callable[[MakeRig], None]


def the_first_learner_finds_no_past(make: MakeRig) -> None:
    """`resumed` is a session without a version."""
    resumed = make(1).transport.resumed
    assert resumed.session > 0
    assert (resumed.version, resumed.frames) == (0, 0)


def batches_of_a_worker_come_in_order_without_gaps(make: MakeRig) -> None:
    """Sequence numbers of each worker count from 0."""
    transport = make().transport
    send(transport, 1)
    run(transport)
    arrivals = receive(transport, 12)
    for worker in {arrival.worker for arrival in arrivals}:
        sequences = [arrival.sequence for arrival in arrivals if arrival.worker == worker]
        assert sequences == list(range(len(sequences)))
    assert {arrival.incarnation for arrival in arrivals} == {0}


def a_batch_matches_its_meta(make: MakeRig) -> None:
    """The batch has the version, the frames and the episodes that its arrival names."""
    transport = make(1).transport
    send(transport, 3, mark=0.5)
    run(transport, version=3, round=0)
    (arrival,) = receive(transport)
    meta, session = arrival.meta, transport.resumed.session
    assert (meta.version, meta.session, meta.frames) == (3, session, ENVS * STEPS)
    assert arrival.batch.shape == (ENVS, STEPS)
    assert arrival.batch["mark"].unique().tolist() == [0.5]
    assert arrival.batch["collector", "policy_version"].unique().tolist() == [3]
    assert arrival.nbytes > arrival.batch["observation"].nbytes
    assert arrival.episodes["returns"].dtype is torch.float64
    assert arrival.episodes["lengths"].shape == arrival.episodes["returns"].shape


def a_batch_keeps_its_values_while_its_worker_continues(make: MakeRig) -> None:
    """The learner owns the memory of a batch."""
    transport = make(1).transport
    send(transport, 1)
    run(transport)
    (first,) = receive(transport)
    before = first.batch.clone()
    assert receive(transport, 6)[-1].sequence == 6
    assert (first.batch == before).all()


def workers_run_the_newest_of_several_versions(make: MakeRig) -> None:
    """Versions that were replaced before control started a batch are never used."""
    transport = make().transport
    for version in (1, 2, 3):
        send(transport, version)
    run(transport, version=3)
    for arrival in receive(transport, 4):
        assert arrival.meta.version == 3
        assert arrival.batch["mark"].unique().tolist() == [3.0]


def weights_arrive_before_the_control_that_asks_for_them(make: MakeRig) -> None:
    """Each round runs on the version sent just before it."""
    transport = make(1, mode="Sync").transport
    for round_ in range(1, 30):
        send(transport, round_)
        run(transport, version=round_, round=round_)
        (arrival,) = receive(transport)
        assert (arrival.meta.round, arrival.meta.version) == (round_, round_)
        assert arrival.batch["mark"].unique().tolist() == [float(round_)]


def a_version_that_was_sent_stays_as_it_was(make: MakeRig) -> None:
    """The learner changes its tensors as soon as `send_weights` has returned."""
    transport = make(1).transport
    policy = Marked()
    models = {POLICY: state_of(policy)}
    layout = WeightLayout(models)
    for version in (1, 2, 3):
        torch.nn.init.constant_(policy.mark, version)
        transport.send_weights(version, layout, models)
    torch.nn.init.constant_(policy.mark, 9)
    run(transport, version=3)
    (arrival,) = receive(transport)
    assert arrival.batch["mark"].unique().tolist() == [3.0]


def a_pause_stops_workers_and_loses_no_batch(make: MakeRig) -> None:
    """Batches that were begun before a pause arrive, and the sequence continues after it."""
    rig = make(1)
    transport = rig.transport
    send(transport, 1)
    run(transport)
    before = receive(transport, 3)
    run(transport, phase=LearnerPhase.PAUSE)
    while arrival := transport.receive(timeout_s=0.5):  # begun before the pause
        transport.take(arrival)
        before.append(arrival)
    if rig.in_background:
        wait_for(transport, 0, WorkerState.PAUSED)
    assert transport.receive(timeout_s=0.3) is None
    run(transport)
    after = receive(transport, 3)
    assert [arrival.sequence for arrival in before + after] == list(range(len(before) + 3))


def closing_twice_is_harmless(make: MakeRig) -> None:
    """A closed transport still answers `members`."""
    transport = make(1).transport
    send(transport, 1)
    run(transport)
    receive(transport)
    transport.close()
    transport.close()
    assert transport.members()


TRANSPORT_CHECKS: Final[tuple[Check, ...]] = (
    the_first_learner_finds_no_past,
    batches_of_a_worker_come_in_order_without_gaps,
    a_batch_matches_its_meta,
    a_batch_keeps_its_values_while_its_worker_continues,
    workers_run_the_newest_of_several_versions,
    weights_arrive_before_the_control_that_asks_for_them,
    a_version_that_was_sent_stays_as_it_was,
    a_pause_stops_workers_and_loses_no_batch,
    closing_twice_is_harmless,
)
"""Facts of every transport."""


def no_batch_begins_on_a_version_older_than_control_asks_for(make: MakeRig) -> None:
    """Workers wait for the version that control names."""
    transport = make().transport
    run(transport, version=0)
    for worker in (0, 1):
        wait_for(transport, worker, WorkerState.WAITING_FOR_WEIGHTS)
    send(transport, 1)
    receive(transport, 2)
    run(transport, version=9)
    for worker in (0, 1):
        wait_for(transport, worker, WorkerState.WAITING_FOR_WEIGHTS, drain=True)
    send(transport, 9)
    newest = [arrival for arrival in receive(transport, 8) if arrival.meta.version == 9]
    assert newest
    assert all(arrival.batch["mark"].unique().tolist() == [9.0] for arrival in newest)


def a_late_worker_gets_the_newest_weights_and_control(make: MakeRig) -> None:
    """Its first batch runs on the newest version."""
    rig = make(1)
    transport = rig.transport
    for version in (1, 2):
        send(transport, version)
    run(transport, version=2)
    receive(transport, 2)
    late = rig.join()
    while (first := receive(transport)[0]).worker != late:
        pass
    assert (first.sequence, first.meta.version) == (0, 2)
    assert first.batch["mark"].unique().tolist() == [2.0]


def a_worker_waits_with_one_batch_ahead(make: MakeRig) -> None:
    """`delivery.maxBatchesAhead: 1` bounds the batches that the learner has not taken."""
    _check_worker_waits(make, ahead=1)


def a_worker_waits_with_three_batches_ahead(make: MakeRig) -> None:
    """`delivery.maxBatchesAhead: 3` bounds the batches that the learner has not taken."""
    _check_worker_waits(make, ahead=3)


def _check_worker_waits(make: MakeRig, *, ahead: int) -> None:
    transport = make(1, delivery={"maxBatchesAhead": ahead}).transport
    send(transport, 1)
    run(transport)
    wait_for(transport, 0, WorkerState.WAITING_FOR_LEARNER, batches=ahead + 1)
    time.sleep(0.3)  # time enough for one batch more
    assert transport.workers()[0].batches == ahead + 1


def take_lets_a_worker_continue_and_receive_does_not(make: MakeRig) -> None:
    """A batch that the learner has received but not taken still counts as waiting."""
    transport = make(1).transport
    send(transport, 1)
    run(transport)
    wait_for(transport, 0, WorkerState.WAITING_FOR_LEARNER, batches=2)
    (first,) = receive(transport, take=False)
    second = transport.receive(timeout_s=0.3)  # a transport may bring it, or wait for `take`
    assert transport.workers()[0].batches == 2
    transport.take(first)
    wait_for(transport, 0, WorkerState.WAITING_FOR_LEARNER, batches=3)
    others = [second, *receive(transport)] if second else receive(transport, 2)
    assert [arrival.sequence for arrival in others] == [1, 2]


def closing_a_round_cuts_its_unfinished_batches_short(make: MakeRig) -> None:
    """A worker sends the frames that it has when control closes its round."""
    frames = 2_000_000
    transport = make(1, mode="Sync", collect={"framesPerBatch": frames}).transport
    send(transport, 1)
    run(transport, round=1)
    wait_for(transport, 0, WorkerState.COLLECTING)
    run(transport, round=1, closed=1)
    (arrival,) = receive(transport)
    assert arrival.meta.round == 1
    assert 0 < arrival.batch.numel() < frames // 2


def workers_of_a_complete_job_end(make: MakeRig) -> None:
    """They report the state Complete."""
    transport = make().transport
    send(transport, 1)
    run(transport)
    receive(transport, 2)
    run(transport, phase=LearnerPhase.COMPLETE)
    while arrival := transport.receive(timeout_s=0.2):
        transport.take(arrival)
    for worker in (0, 1):
        wait_for(transport, worker, WorkerState.COMPLETE)


def members_are_the_workers_that_should_run(make: MakeRig) -> None:
    """A worker that joins is a member. Whether it is one before depends on who starts workers."""
    rig = make(2)
    expected = {0, 1, 2} if rig.joins_as_member else {0, 1}
    assert rig.transport.members() == frozenset(expected)
    rig.join()
    assert rig.transport.members() == {0, 1, 2}


def every_call_after_a_background_error_raises_it(make: MakeRig) -> None:
    """The next call raises it, and so do all later calls. `receive` first returns the batches that came before."""
    rig = make(1)
    transport = rig.transport
    send(transport, 1)
    run(transport)
    receive(transport)
    expected = rig.break_down()
    until = time.monotonic() + TIMEOUT_S
    while not _raises(lambda: run(transport), expected):
        assert time.monotonic() < until, f"no call raised {expected.__name__}"
        time.sleep(0.01)
    assert _raises(lambda: send(transport, 2), expected)
    assert _raises(lambda: receive(transport, 100), expected)


def _raises(call: Callable[[], object], expected: type[RollfleetError]) -> bool:
    try:
        call()
    except expected:
        return True
    return False


BACKGROUND_CHECKS: Final[tuple[Check, ...]] = (
    no_batch_begins_on_a_version_older_than_control_asks_for,
    a_late_worker_gets_the_newest_weights_and_control,
    a_worker_waits_with_one_batch_ahead,
    a_worker_waits_with_three_batches_ahead,
    take_lets_a_worker_continue_and_receive_does_not,
    closing_a_round_cuts_its_unfinished_batches_short,
    workers_of_a_complete_job_end,
    members_are_the_workers_that_should_run,
    every_call_after_a_background_error_raises_it,
)
"""Further facts of transports whose workers collect while the learner is outside `receive`."""
