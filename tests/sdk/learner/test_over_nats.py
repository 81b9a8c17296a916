"""A learner's view of a job: real workers and a real nats-server, with threads in place of processes."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.job_server import Connect, Server, actor_critic, always

from rollfleet.errors import MessageTooLarge, NoWeights

ENV, COLLECT = {"id": "CartPole-v1", "numEnvs": 4}, {"framesPerBatch": 64, "exploration": "Mode"}
SYNC: dict[str, Any] = {"mode": "Sync", "workers": 2, "env": ENV, "collect": COLLECT}
ASYNC: dict[str, Any] = SYNC | {"mode": "Async", "collect": COLLECT | {"framesPerBatch": 32}}


def test_weights_for_some_workers_reach_these_alone_also_those_that_join_later(
    server: Server, connect: Connect
) -> None:
    job = server.own(**SYNC | {"weights": {"interval": 0}})
    server.start_worker(job, 0)
    with connect() as collector:
        assert collector.update_policy_weights_(always(actor_critic(), 0)) == 1
        assert collector.update_policy_weights_(always(actor_critic(), 1), worker_ids=[1]) == 2
        server.start_worker(job, 1)
        batch = next(collector)
        fragments = batch["collector", "policy_version"].split(4)
        assert [set(fragment.flatten().tolist()) for fragment in fragments] == [{1}, {2}]
        assert [set(fragment.flatten().tolist()) for fragment in batch["action"].split(4)] == [{0}, {1}]
        assert collector.update_policy_weights_(always(actor_critic(), 1)) == 3
        assert (next(collector)["collector", "policy_version"] == 3).all()


def test_workers_without_weights_wait_and_an_endless_wait_raises_no_weights(connect: Connect, server: Server) -> None:
    server.start_workers(**ASYNC | {"weights": {"interval": 0}})
    with connect() as collector:
        with pytest.raises(NoWeights, match="update_policy_weights_"):
            next(collector)
        assert set(collector.versions().values()) == {0}
        collector.update_policy_weights_(actor_critic(), worker_ids=[0])
        with pytest.raises(NoWeights, match="worker 1 waits"):
            list(collector)
        collector.update_policy_weights_(actor_critic())
        assert next(collector).shape == (4, 8)


@pytest.mark.parametrize("interval", [0, 1])
@pytest.mark.parametrize("mode", [SYNC, ASYNC])
def test_a_learner_that_forgets_its_policy_is_an_error_unless_the_entrypoints_weights_are_meant(
    connect: Connect, server: Server, mode: Any, interval: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each worker acted with first weights of its own, all of version 0, to the end."""
    (tmp_path / "own_policy.py").write_text("from rollfleet import ActorCritic as make\n")
    monkeypatch.syspath_prepend(tmp_path)
    server.start_workers(**mode | {"policy": {"entrypoint": "own_policy:make"}, "weights": {"interval": interval}})
    with connect() as collector:
        if not interval:
            assert (next(collector)["collector", "policy_version"] == 0).all()
            return
        with pytest.raises(NoWeights, match=r"pass `policy=`; if workers are to act .* `weights.interval: 0`"):
            next(collector)


def test_weights_with_too_many_parameters_are_refused(server: Server, connect: Connect) -> None:
    server.own(**SYNC)
    collector = connect()
    collector.update_policy_weights_({f"layer{number}.weight": torch.zeros(1) for number in range(20_000)})
    with pytest.raises(MessageTooLarge, match="20,000 parameters"):
        next(collector)
