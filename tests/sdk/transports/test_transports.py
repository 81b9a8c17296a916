"""The conformance suite that Rollfleet ships, over each of its transports; and facts of the inline transport alone."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import gymnasium
import pytest
from tests.sdk.transports.rigs import make_rig

from rollfleet.errors import NoWeights
from rollfleet.processes.inline import InlineTransport
from rollfleet.schemes import Whole
from rollfleet.testing import BACKGROUND_CHECKS, TRANSPORT_CHECKS, MakeRig, Marked, Rig, marked_workload, small_job
from rollfleet.testing.rig import receive, run, send
from rollfleet.testing.transport_checks import Check
from rollfleet.transports.hooks import Hooks
from rollfleet.transports.workload import Workload
from rollfleet_api.messages import LearnerPhase, WorkerState


def name_of(value: object) -> str:
    return str(getattr(value, "__name__", value))


@pytest.fixture
def make(kind: str, request: pytest.FixtureRequest) -> Iterator[MakeRig]:
    """Makes a rig of the test's kind; it is closed after the test."""
    server = request.getfixturevalue("server") if kind == "nats" else None
    with ExitStack() as stack:

        def make(workers: int = 2, **spec: Any) -> Rig:
            rig = make_rig(kind, server, workers, spec)
            stack.callback(rig.close)
            return rig

        yield make


@pytest.mark.parametrize("kind", ["inline", "processes", "nats"])
@pytest.mark.parametrize("check", TRANSPORT_CHECKS, ids=name_of)
def test_every_transport(check: Check, make: MakeRig) -> None:
    check(make)


@pytest.mark.parametrize("kind", ["processes", "nats"])
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


def test_inline_worker_raises_errors_of_environments_unchanged() -> None:
    class Broken(gymnasium.Wrapper[Any, Any, Any, Any]):
        def step(self, action: Any) -> Any:
            raise ArithmeticError("the simulator broke")

    def make_envs(_: int) -> Any:
        make = lambda: Broken(gymnasium.make("CartPole-v1"))  # noqa: E731
        return gymnasium.vector.SyncVectorEnv([make], autoreset_mode=gymnasium.vector.AutoresetMode.DISABLED)

    job = small_job(env={"id": "CartPole-v1", "numEnvs": 1})
    transport = InlineTransport(Workload(job=job, make_env=make_envs, make_policy=lambda *_: Marked(), scheme=Whole()))
    send(transport, 1)
    run(transport)
    with pytest.raises(ArithmeticError, match="the simulator broke"):
        transport.receive(timeout_s=0)
    transport.close()


def test_inline_worker_begins_new_episodes_after_the_error_of_a_hook() -> None:
    seen: list[Any] = []

    def broken_once(batch: Any) -> None:
        seen.append(batch)
        if len(seen) == 2:
            raise ArithmeticError("the hook broke")

    workload = replace(marked_workload(small_job()), make_hooks=lambda: Hooks(post_collect_hook=broken_once))
    transport = InlineTransport(workload)
    send(transport, 1)
    run(transport)
    receive(transport)
    with pytest.raises(ArithmeticError):
        transport.receive(timeout_s=0)
    (following,) = receive(transport)
    before = {number for batch in seen[:2] for number in batch["collector", "traj_ids"].unique().tolist()}
    assert before.isdisjoint(following.batch["collector", "traj_ids"].unique().tolist())
    transport.close()
