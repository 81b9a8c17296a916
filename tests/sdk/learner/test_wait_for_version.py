"""Which version each worker has applied, and the wait for one."""

from pathlib import Path

import pytest
from tests.job_server import Connect, Server
from tests.sdk.counting import OPTIONS, VERSION, Learned, WaitsForFile, showing
from tests.sdk.places import Collect
from tests.waiting import wait_until

from rollfleet.errors import Timeout
from rollfleet_api.messages import WorkerState


def test_a_learner_of_one_thread_waits_for_a_version_between_two_batches(collect: Collect) -> None:
    """Workers that wait for the next round apply weights; the first batch has not been asked for.

    In pytorch/rl#3759, versions() were those sent.
    """
    collector = collect("CartPole-v1", Learned(), weights_interval=0, **OPTIONS)
    for version in (1, 2, 3):
        assert collector.update_policy_weights_(showing(version)) == version
        collector.wait_for_version(version, timeout_s=20)
        assert collector.versions() == dict.fromkeys(range(collect.workers), version)
        if version == 2:
            assert (next(collector)["shown"] == 2).all()
    batch = next(collector)
    assert (batch["shown"] == 3).all()
    assert (batch[VERSION] == 3).all()
    assert collector.stats().stale == 0


def test_the_learners_own_policy_has_each_version_at_once(here: Collect) -> None:
    collector = here("CartPole-v1", Learned(), weights_interval=0, **OPTIONS)
    next(collector)
    collector.wait_for_version(collector.update_policy_weights_(), timeout_s=0)


def test_in_mode_async_workers_that_wait_for_the_learner_apply_weights(apart: Collect) -> None:
    collector = apart("CartPole-v1", Learned(), weights_interval=0, mode="async", **OPTIONS)
    next(collector)
    for version in (2, 3):
        collector.update_policy_weights_(showing(version))
        collector.wait_for_version(version, timeout_s=20)
    assert collector.versions() == dict.fromkeys(range(apart.workers), 3)


def test_in_a_pause_workers_apply_weights(apart: Collect) -> None:
    collector = apart("CartPole-v1", Learned(), weights_interval=0, **OPTIONS)
    next(collector)
    with collector.pause():
        collector.update_policy_weights_(showing(2))
        collector.wait_for_version(2, timeout_s=20)
    assert (next(collector)["shown"] == 2).all()


def test_a_timeout_for_a_version_names_the_workers_that_are_behind(apart: Collect, tmp_path: Path) -> None:
    go = tmp_path / "go"
    env_kwargs = {"step": 1, "file": go}
    collector = apart(WaitsForFile, Learned(), mode="async", weights_interval=0, env_kwargs=env_kwargs, **OPTIONS)
    collector.update_policy_weights_()
    collector.wait_for_version(1, timeout_s=20)
    wait_until(lambda: {each.state for each in collector.stats().workers.values()} == {WorkerState.COLLECTING})
    collector.update_policy_weights_()
    with pytest.raises(Timeout, match=r"workers \[0, 1\] have not applied version 2 within 0.1 s"):
        collector.wait_for_version(2, timeout_s=0.1)
    go.touch()
    collector.wait_for_version(2, timeout_s=20)


def test_a_version_that_was_not_sent_is_no_workers_fault(here: Collect) -> None:
    collector = here("CartPole-v1", Learned(), **OPTIONS)
    next(collector)
    with pytest.raises(Timeout, match=r"version 5 was not sent within 0\.1 s; the newest is 1"):
        collector.wait_for_version(5, timeout_s=0.1)


@pytest.mark.parametrize("call", ["pause", "wait_for_version"])
def test_a_successor_may_pause_or_wait_before_its_first_round(call: str, connect: Connect, server: Server) -> None:
    """Workers collect nothing for the last round of the learner before."""
    server.start_workers(workers=1, policy={"random": {}})
    first = connect()
    next(first)
    first.detach()
    successor = connect()
    if call == "pause":
        with successor.pause():
            pass
    else:
        successor.wait_for_version(0, timeout_s=20)
    next(successor)
    next(successor)
    assert successor.stats().stale == 0
    successor.shutdown()
