"""The conformance suite that Rollfleet ships, over each of its transports; and facts of the inline transport alone."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from tests.sdk.transports.rigs import NATS_RIGS, make_rig

from rollfleet import Collector
from rollfleet.errors import NoWeights
from rollfleet.testing import BACKGROUND_CHECKS, TRANSPORT_CHECKS, CountingEnv, MakeRig, Rig
from rollfleet.testing.rig import receive, run, send
from rollfleet.testing.transport_checks import Check
from rollfleet_api.messages import LearnerPhase, WorkerState


def name_of(value: object) -> str:
    return str(getattr(value, "__name__", value))


@pytest.fixture
def make(kind: str, request: pytest.FixtureRequest) -> Iterator[MakeRig]:
    """Makes a rig of the test's kind; it is closed after the test."""
    server = request.getfixturevalue("server") if kind in NATS_RIGS else None
    with ExitStack() as stack:

        def make(workers: int = 2, **spec: Any) -> Rig:
            rig = make_rig(kind, server, workers, spec)
            stack.callback(rig.close)
            return rig

        yield make


NATS = ["nats", *(pytest.param(kind, marks=pytest.mark.slow) for kind in NATS_RIGS if kind != "nats")]


@pytest.mark.parametrize("kind", ["inline", "processes", *NATS])
@pytest.mark.parametrize("check", TRANSPORT_CHECKS, ids=name_of)
def test_every_transport(check: Check, make: MakeRig) -> None:
    check(make)


@pytest.mark.parametrize("kind", ["processes", *NATS])
@pytest.mark.parametrize("check", BACKGROUND_CHECKS, ids=name_of)
def test_transport_with_background_workers(check: Check, make: MakeRig) -> None:
    check(make)


# The inline transport: its one worker collects inside `receive`.

inline = pytest.mark.parametrize("kind", ["inline"])


@inline
def test_inline_worker_collects_one_batch_per_round_inside_receive(make: MakeRig) -> None:
    transport = make(mode="Sync").transport
    assert transport.receive(timeout_s=0) is None  # no control yet
    send(transport, 1)
    run(transport, round=1)
    assert transport.workers()[0].state is WorkerState.STARTING
    (arrival,) = receive(transport)
    assert (arrival.meta.round, arrival.sequence) == (1, 0)
    assert transport.receive(timeout_s=0) is None
    run(transport, round=2)
    assert receive(transport)[0].sequence == 1
    run(transport, round=3, phase=LearnerPhase.COMPLETE)
    assert transport.receive(timeout_s=0) is None
    assert transport.members() == {0}


@inline
def test_inline_worker_without_weights_raises_at_once(make: MakeRig) -> None:
    transport = make().transport
    run(transport)
    with pytest.raises(NoWeights, match=r"call update_policy_weights_\(\) before iterating"):
        transport.receive(timeout_s=0)
    send(transport, 1)
    assert receive(transport)[0].meta.version == 1


def test_in_this_process_an_error_of_an_environment_is_raised_unchanged(here: Callable[..., Collector]) -> None:
    with pytest.raises(ArithmeticError, match="the simulator broke"):
        list(here(CountingEnv, frames_per_batch=16, env_kwargs={"breaks_at": 20}))


def test_in_this_process_new_episodes_begin_after_the_error_of_a_hook(here: Callable[..., Collector]) -> None:
    seen: list[Any] = []

    def broken_once(batch: Any) -> None:
        seen.append(batch)
        if len(seen) == 2:
            raise ArithmeticError("the hook broke")

    collector = here(CountingEnv, num_envs=2, frames_per_batch=8, post_collect_hook=broken_once)
    next(collector)
    with pytest.raises(ArithmeticError):
        next(collector)
    following = next(collector)
    before = {number for batch in seen[:2] for number in batch["collector", "traj_ids"].unique().tolist()}
    assert before.isdisjoint(following["collector", "traj_ids"].unique().tolist())
