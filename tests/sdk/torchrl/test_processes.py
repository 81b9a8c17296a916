"""Collectors of `rollfleet.torchrl` whose workers are processes: shapes, weights, seeds and calls as in TorchRL."""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import cloudpickle  # type: ignore[import-untyped]
import psutil
import pytest
import torch
from tensordict import TensorDict
from tests.sdk.torchrl.programs import constant, pendulum, running, two_pendulums
from torchrl.data import LazyTensorStorage, ReplayBuffer
from torchrl.envs import GymEnv, ObservationNorm, ParallelEnv, RewardSum, SerialEnv, StepCounter, TransformedEnv

from rollfleet.torchrl import (
    Collector,
    DistributedCollector,
    DistributedSyncCollector,
    MultiAsyncCollector,
    MultiCollector,
    MultiSyncCollector,
    RayCollector,
)
from rollfleet.torchrl.distributed import pod_resources

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("forked")]  # warnings of TorchRL


@pytest.mark.parametrize(
    ("cat_results", "single", "batched"),
    [("stack", (2, 10), (2, 2, 5)), (None, (2, 10), (2, 2, 5)), (0, (20,), (4, 5)), (-1, (20,), (2, 10))],
)
def test_cat_results_joins_the_batches_of_workers(
    cat_results: Any, single: tuple[int, ...], batched: tuple[int, ...]
) -> None:
    for make, shape in ((pendulum, single), (two_pendulums, batched)):
        sync = MultiSyncCollector([make] * 2, frames_per_batch=20, total_frames=40, cat_results=cat_results)
        with running(sync) as collector:
            batches = list(collector)
        assert [tuple(batch.shape) for batch in batches] == [shape] * 2
        assert batches[0].names[-1] == "time"
        assert batches[0]["collector", "traj_ids"].unique().numel() > 1


def test_a_batch_of_an_async_collector_is_of_one_worker() -> None:
    with running(MultiAsyncCollector([pendulum] * 2, frames_per_batch=10, total_frames=40)) as collector:
        assert [tuple(batch.shape) for batch in collector] == [(10,)] * 4


def test_an_environment_whose_processes_run_can_be_sent() -> None:
    env = TransformedEnv(ParallelEnv(2, pendulum), RewardSum())
    env.set_seed(0)
    with running(MultiSyncCollector([env] * 2, frames_per_batch=8, total_frames=8)) as collector:
        assert [tuple(batch.shape) for batch in collector] == [(2, 2, 2)]
        cloudpickle.dumps(env)  # as to a new interpreter


@pytest.mark.parametrize("given", [True, False])
def test_weights_are_sent_when_update_policy_weights_is_called(given: bool) -> None:
    policy = constant(0.0)
    sync = MultiSyncCollector([pendulum] * 2, policy, frames_per_batch=20, track_policy_version=True)
    with running(sync) as collector:
        iterator = iter(collector)
        assert (next(iterator)["action"] == 0).all()
        with torch.no_grad():
            policy.module.bias.fill_(1.0)
        assert (next(iterator)["action"] == 0).all()
        collector.update_policy_weights_(TensorDict.from_module(constant(1.0)) if given else None)
        batch = next(iterator)
    assert (batch["action"] == 1).all()
    assert (batch["policy_version"] == 1).all()


@pytest.mark.parametrize(
    ("kind", "keywords"),
    [
        (DistributedSyncCollector, {}),
        (DistributedCollector, {"sync": True, "update_interval": 2}),
        (RayCollector, {"sync": True, "max_weight_update_interval": 0}),
    ],
)
def test_a_collector_with_an_interval_of_updates_sends_the_policys_weights(kind: Any, keywords: dict[str, Any]) -> None:
    policy, acted = constant(0.0), []
    with running(kind([pendulum], policy, frames_per_batch=10, total_frames=30, **keywords)) as collector:
        for batch in collector:
            acted += batch["action"].unique().tolist()
            with torch.no_grad():
                policy.module.bias += 1
    assert acted == [0.0, 1.0, 2.0]


def test_workers_seed_their_environments_one_after_the_other_and_answer_calls() -> None:
    with running(MultiSyncCollector([pendulum] * 2, constant(0.0), frames_per_batch=14)) as collector:
        end = collector.set_seed(5)
        first = next(iter(collector))
        assert collector.set_seed(5) == end != 5
        assert torch.equal(next(iter(collector))["observation"], first["observation"])
        assert not torch.equal(first["observation"][0], first["observation"][1])
        assert collector.set_seed(5, static_seed=True) == 5
        assert collector.getattr_env("batch_size") == []
        with pytest.raises(AttributeError):
            collector.getattr_env("no_such_attribute")
        assert collector.getattr_policy("out_keys") == ["action"]
        with pytest.raises(AttributeError):
            collector.getattr_policy("no_such_attribute")
        assert collector.get_model("policy.module") is collector.policy.module
        assert collector.get_policy_version() is None
        assert collector.stats("both")["workers"] == 2
        state = collector.state_dict()
        assert {"worker0", "worker1", "frames", "iter"} <= state.keys()


def test_a_reset_repeats_no_random_actions_of_workers() -> None:
    with running(MultiSyncCollector([pendulum], frames_per_batch=7)) as collector:
        iterator, actions = iter(collector), []
        for _ in range(2):
            collector.reset()
            actions.append(next(iterator)["action"])
    assert not torch.equal(*actions)


def test_a_list_of_the_states_of_workers_is_loaded() -> None:
    state = {"frames": 20, "iter": 1, "policy_state_dict": constant(1.0).state_dict()}
    ray = RayCollector(pendulum, constant(0.0), num_collectors=1, sync=True, frames_per_batch=10)
    with running(ray) as collector:
        collector.load_state_dict([state])
        assert (next(iter(collector))["action"] == 1).all()
        assert collector.stats()["frames"] == 30


def test_each_workers_batch_is_written_into_the_replay_buffer() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(100))
    sync = MultiSyncCollector([pendulum] * 2, frames_per_batch=20, total_frames=40, replay_buffer=buffer)
    with running(sync) as collector:
        assert list(collector) == [None, None]
    assert buffer.write_count == 40


class Slow(GymEnv):  # type: ignore[misc]
    def _step(self, tensordict: Any) -> Any:
        time.sleep(0.02)
        return super()._step(tensordict)


def slow_pendulum() -> Any:
    return TransformedEnv(Slow("Pendulum-v1"), StepCounter(max_steps=7))


def test_the_padding_of_a_preempted_worker_is_not_written_into_the_replay_buffer() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(400))
    keywords: dict[str, Any] = {"preemptive_threshold": 0.5, "replay_buffer": buffer}
    with running(MultiSyncCollector([pendulum, slow_pendulum], frames_per_batch=400, **keywords)) as collector:
        next(iter(collector))
        assert 200 <= buffer.write_count == collector.stats()["frames"] < 400


def test_environments_of_a_preempted_worker_are_joined_with_padding() -> None:
    keywords: dict[str, Any] = {"preemptive_threshold": 0.5, "cat_results": 0}
    makes = [two_pendulums, lambda: SerialEnv(2, slow_pendulum)]
    with running(MultiSyncCollector(makes, frames_per_batch=400, **keywords)) as collector:
        batch = next(iter(collector))
    assert batch.shape == (4, 100)
    assert batch["collector", "mask"].all(-1).tolist() == [True, True, False, False]


def test_the_buffers_of_a_workers_transforms_are_loaded() -> None:
    def normalised() -> Any:
        return TransformedEnv(GymEnv("Pendulum-v1"), ObservationNorm(0.0, 1.0, ["observation"]))

    with running(MultiSyncCollector([normalised], frames_per_batch=10)) as collector:
        state = collector.state_dict()
        state["worker0"]["env_state_dict"]["loc"] += 5
        collector.load_state_dict(state)
        assert collector.state_dict()["worker0"]["env_state_dict"]["loc"] == 5


def test_a_constructor_that_raises_leaves_no_process(started: Callable[..., list[psutil.Process]]) -> None:
    def broken() -> Any:
        raise ValueError("no simulator")

    with pytest.raises(RuntimeError, match="no simulator") as caught:
        MultiSyncCollector([pendulum, broken], frames_per_batch=10)
    assert caught.tb  # it holds the collector, as a notebook's does
    assert not started()


def test_an_error_of_an_environment_is_a_runtime_error_with_its_traceback() -> None:
    class Broken(GymEnv):  # type: ignore[misc]
        _step = None

    sync = MultiSyncCollector([partial(Broken, "Pendulum-v1")], frames_per_batch=10)
    with running(sync) as collector, pytest.raises(RuntimeError, match="NoneType"):
        next(iter(collector))


@pytest.mark.parametrize(
    ("keywords", "kind"),
    [
        ({"num_collectors": 2, "sync": True}, MultiSyncCollector),
        ({"num_collectors": 1}, MultiAsyncCollector),
        ({"backend": "ray", "num_collectors": 1}, RayCollector),
        ({"backend": "distributed", "backend_options": {"launcher": "mp"}}, DistributedCollector),
    ],
)
def test_the_generic_collector_dispatches_as_torchrls(keywords: dict[str, Any], kind: Any) -> None:
    made: Any = Collector(pendulum, frames_per_batch=10, total_frames=10, **keywords)
    assert type(made) is not Collector
    with running(made) as collector:
        assert sum(batch.numel() for batch in collector) >= 10
        assert type(collector) is kind


def test_sync_of_a_multi_collector_names_its_class() -> None:
    with running(MultiCollector([pendulum], sync=False, frames_per_batch=10, total_frames=10)) as collector:
        assert type(collector) is MultiAsyncCollector


@pytest.mark.parametrize(
    ("keywords", "error"),
    [
        ({"backend": "direct", "num_collectors": 2}, ValueError),
        ({"num_collectors": 0}, ValueError),
        ({"num_collectors": True}, ValueError),
        ({"backend": "process", "backend_options": {"sync": True}}, TypeError),
        ({"backend": "nowhere"}, ValueError),
    ],
)
def test_a_dispatch_that_contradicts_itself_is_refused(keywords: dict[str, Any], error: type) -> None:
    with pytest.raises(error):
        Collector(pendulum, frames_per_batch=10, **keywords)


def test_workers_per_collector_are_a_dimension_of_the_batch_and_ray_collectors_can_be_added() -> None:
    keywords = {"num_workers_per_collector": 2, "collector_class": MultiSyncCollector}
    node = DistributedCollector([pendulum], sync=True, frames_per_batch=20, total_frames=20, **keywords)
    with running(node) as collector:
        assert [tuple(batch.shape) for batch in collector] == [(1, 2, 10)]
    ray = RayCollector(pendulum, num_collectors=1, sync=True, frames_per_batch=10, total_frames=-1)
    with running(ray) as collector:
        assert next(iter(collector)).shape == (1, 10)
        collector.add_collectors([pendulum])
        assert collector.remote_collectors == [0, 1]


def test_the_default_class_of_distributed_collectors_is_single_also_in_the_place_of_torchrls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("torchrl.collectors.Collector", Collector)  # as `python -m rollfleet.torchrl` does
    with running(DistributedSyncCollector([pendulum] * 2, frames_per_batch=32, total_frames=32)) as collector:
        assert [tuple(batch.shape) for batch in collector] == [(2, 16)]


def test_an_unknown_argument_in_collector_kwargs_is_refused() -> None:
    with pytest.raises(ValueError, match="frame_per_batch"):
        DistributedCollector([pendulum], frames_per_batch=10, collector_kwargs={"frame_per_batch": 20})


def test_calls_that_are_refused_stop_nothing() -> None:
    with running(MultiAsyncCollector([pendulum], frames_per_batch=10, total_frames=10)) as collector:
        with pytest.raises(NotImplementedError, match="fake_tensordict is available for a Collector in this process"):
            collector.fake_tensordict()
        with pytest.raises(RuntimeError, match="without closing"):
            collector.shutdown(close_env=False)
        assert len(list(collector)) == 1


def test_remote_configs_are_the_resources_of_a_pod() -> None:
    assert pod_resources({"num_cpus": 0.5, "num_gpus": 2}) == {"cpu": 0.5, "gpu": 2}
    with pytest.raises(ValueError, match="whole GPUs"):
        pod_resources({"num_gpus": 0.2})
