"""A learner's view of a job: real workers and a real nats-server, with threads in place of processes."""

import asyncio
from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING, Any

import gymnasium
import pytest
import torch
from torch import Tensor, nn

import rollfleet
from rollfleet import ActorCritic, Collector, CollectorJob
from rollfleet.errors import JobEnded, JobInvalid, LearnerReplaced, MessageTooLarge, NoWeights, WeightMismatch
from rollfleet.nats.streams import deprovision
from rollfleet.rollout.trajectory_ids import split

if TYPE_CHECKING:
    from tests.job_server import Server, WorkerThread

Connect = Callable[..., Collector]
StartWorker = Callable[[CollectorJob, int], "WorkerThread"]

CARTPOLE = gymnasium.make("CartPole-v1")
SYNC: dict[str, Any] = {
    "mode": "Sync",
    "workers": 2,
    "env": {"id": "CartPole-v1", "numEnvs": 4},
    "collect": {"framesPerBatch": 64, "exploration": "Mode"},
}
ASYNC: dict[str, Any] = SYNC | {"mode": "Async", "collect": {"framesPerBatch": 32, "exploration": "Mode"}}


def actor_critic() -> ActorCritic:
    return ActorCritic(CARTPOLE.observation_space, CARTPOLE.action_space)


def always(policy: ActorCritic, action: int) -> ActorCritic:
    """Return parameters with which the policy takes this action on every observation, under `exploration: Mode`."""
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.zero_()
        head = policy.actor[-1]
        assert isinstance(head, nn.Linear)
        head.bias[action] = 1.0
    return policy


def workers_of(batch: Any) -> list[int]:
    """Return the worker that collected each row of a batch."""
    return [split(int(row[0]))[0] for row in batch["collector", "traj_ids"]]


def start_all(job: CollectorJob, start_worker: StartWorker) -> "list[WorkerThread]":
    return [start_worker(job, index) for index in range(job.spec.workers)]


def test_sync_joins_all_workers_fragments_in_order_and_on_one_version(
    server: "Server", connect: Connect, start_worker: StartWorker
) -> None:
    start_all(server.provision(**SYNC), start_worker)
    with connect(actor_critic()) as collector:
        for number, batch in enumerate(islice(collector, 5), start=1):
            assert batch.shape == (8, 8)
            assert batch.names == [None, "time"]
            assert workers_of(batch) == [0, 0, 0, 0, 1, 1, 1, 1]
            assert (batch["collector", "policy_version"] == number).all()
        assert collector.frames == 5 * 64
        assert collector.stats().stale == collector.stats().repeated == collector.stats().missed == 0


def test_async_yields_one_workers_batch_at_a_time_from_all_workers(
    server: "Server", connect: Connect, start_worker: StartWorker
) -> None:
    start_all(server.provision(**ASYNC), start_worker)
    seen = set()
    with connect(actor_critic()) as collector:
        for batch in islice(collector, 20):
            assert batch.shape == (4, 8)
            (worker,) = set(workers_of(batch))
            seen.add(worker)
    assert seen == {0, 1}


@pytest.mark.parametrize("spec", [SYNC, ASYNC], ids=["sync", "async"])
def test_iteration_ends_at_total_frames_and_the_workers_leave(
    spec: dict[str, Any], server: "Server", connect: Connect, start_worker: StartWorker
) -> None:
    job = server.provision(**spec | {"collect": spec["collect"] | {"totalFrames": 256}})
    workers = start_all(job, start_worker)
    collector = connect(actor_critic())
    assert sum(batch.numel() for batch in collector) == collector.total_frames == collector.frames == 256
    with pytest.raises(StopIteration):
        next(collector)
    for worker in workers:
        worker.join()
        assert worker.error is None


@pytest.mark.parametrize("spec", [SYNC, ASYNC], ids=["sync", "async"])
def test_zeroed_weights_change_every_workers_actions_at_its_next_batch(
    spec: dict[str, Any], server: "Server", connect: Connect, start_worker: StartWorker
) -> None:
    job = server.provision(**spec | {"weights": {"interval": 0, "maxLag": 0}})
    start_all(job, start_worker)
    policy = always(actor_critic(), 1)
    with connect(policy) as collector:
        assert collector.update_policy_weights_() == 1
        for batch in islice(collector, 4):
            assert (batch["action"] == 1).all()
        with torch.no_grad():
            for parameter in policy.parameters():
                parameter.zero_()
        assert collector.update_policy_weights_() == 2
        for batch in islice(collector, 4):  # maxLag 0 drops batches collected before
            assert (batch["action"] == 0).all()
            assert (batch["collector", "policy_version"] == 2).all()
        assert collector.versions() == {0: 2, 1: 2}


class Shifted(nn.Module):
    """Acts by a buffer alone, as a module that normalises observations would."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self.register_buffer("shift", torch.zeros((), dtype=torch.int64))

    def forward(self, observation: Tensor) -> dict[str, Tensor]:
        return {"action": self.shift.expand(len(observation)).clone()}

    shift: Tensor


def make_shifted(observation_space: object, action_space: object) -> Shifted:
    return Shifted()


def test_buffers_are_broadcast_with_the_parameters(
    server: "Server", connect: Connect, start_worker: StartWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rollfleet.policies.factory.load", lambda *_, **__: make_shifted)
    start_all(server.provision(**SYNC | {"policy": {"entrypoint": "anything:make"}}), start_worker)
    policy = Shifted()
    with connect(policy) as collector:
        for value in (0, 1, 0, 1):
            policy.shift.fill_(value)
            assert (next(collector)["action"] == value).all()


def test_weights_interval_counts_batches(server: "Server", connect: Connect, start_worker: StartWorker) -> None:
    start_all(server.provision(**SYNC | {"weights": {"interval": 3}}), start_worker)
    with connect(actor_critic()) as collector:
        versions = [int(batch["collector", "policy_version"][0, 0]) for batch in islice(collector, 7)]
    assert versions == [1, 1, 1, 2, 2, 2, 3]


def test_a_worker_that_joins_late_acts_on_the_newest_weights(
    server: "Server", connect: Connect, start_worker: StartWorker
) -> None:
    job = server.provision(**ASYNC | {"weights": {"interval": 0}})
    first = start_worker(job, 0)
    policy = actor_critic()
    with connect(policy) as collector:
        for _ in range(3):
            collector.update_policy_weights_(policy)
        collector.update_policy_weights_(always(policy, 1))
        next(collector)
        start_worker(job, 1)
        late = next(batch for batch in collector if workers_of(batch)[0] == 1)
        assert (late["collector", "policy_version"] == 4).all()
        assert (late["action"] == 1).all()
    first.join()


def test_weights_for_some_workers_reach_these_alone_also_those_that_join_later(
    server: "Server", connect: Connect, start_worker: StartWorker
) -> None:
    job = server.provision(**SYNC | {"weights": {"interval": 0}})
    start_worker(job, 0)
    with connect() as collector:
        assert collector.update_policy_weights_(always(actor_critic(), 0)) == 1
        assert collector.update_policy_weights_(always(actor_critic(), 1), worker_ids=[1]) == 2
        start_worker(job, 1)
        batch = next(collector)
        fragments = batch["collector", "policy_version"].split(4)
        assert [set(fragment.flatten().tolist()) for fragment in fragments] == [{1}, {2}]
        assert [set(fragment.flatten().tolist()) for fragment in batch["action"].split(4)] == [{0}, {1}]
        assert collector.update_policy_weights_(always(actor_critic(), 1)) == 3
        assert (next(collector)["collector", "policy_version"] == 3).all()


def test_workers_without_weights_wait_and_an_endless_wait_raises_no_weights(
    server: "Server", connect: Connect, start_worker: StartWorker
) -> None:
    start_all(server.provision(**ASYNC | {"weights": {"interval": 0}}), start_worker)
    with connect() as collector:
        with pytest.raises(NoWeights, match="update_policy_weights_"):
            next(collector)
        assert set(collector.versions().values()) == {0}
        collector.update_policy_weights_(actor_critic())
        assert next(collector).shape == (4, 8)


def test_a_policy_without_weights_needs_none(server: "Server", connect: Connect, start_worker: StartWorker) -> None:
    start_all(server.provision(**SYNC | {"policy": {"random": {}}}), start_worker)
    with connect() as collector:
        batch = next(collector)
        assert set(batch["action"].flatten().tolist()) == {0, 1}
        with pytest.raises(NoWeights):
            collector.update_policy_weights_()


def test_weights_that_do_not_fit_name_the_parameter_on_both_sides(
    server: "Server", connect: Connect, start_worker: StartWorker
) -> None:
    worker = start_worker(server.provision(**ASYNC | {"workers": 1}), 0)
    wider = ActorCritic(CARTPOLE.observation_space, CARTPOLE.action_space, hidden=(64, 32))
    collector = connect(wider)
    collector.update_policy_weights_()
    with pytest.raises(WeightMismatch, match=r"actor\.2\.weight: it was float32 \[32, 64\].* now float32 \[64, 64\]"):
        collector.update_policy_weights_(actor_critic())
    worker.join()
    assert isinstance(worker.error, WeightMismatch)
    assert "actor.2.weight: the learner has float32 [32, 64], the policy here has float32 [64, 64]" in str(worker.error)


def test_stale_batches_are_dropped_and_counted(server: "Server", connect: Connect, start_worker: StartWorker) -> None:
    start_worker(server.provision(**ASYNC | {"workers": 1, "weights": {"interval": 0, "maxLag": 2}}), 0)
    with connect(actor_critic()) as collector:
        collector.update_policy_weights_()
        next(collector)
        for _ in range(20):
            collector.update_policy_weights_()
        for batch in islice(collector, 5):
            assert (batch["collector", "policy_version"] >= 19).all()
        assert collector.stats().stale > 0


def test_the_first_frames_are_random_if_the_job_asks_for_it(
    server: "Server", connect: Connect, start_worker: StartWorker
) -> None:
    collect = {**SYNC["collect"], "initRandomFrames": 128}
    start_all(server.provision(**SYNC | {"collect": collect}), start_worker)
    with connect(always(actor_critic(), 1)) as collector:
        actions = [set(batch["action"].flatten().tolist()) for batch in islice(collector, 4)]
    assert actions == [{0, 1}, {0, 1}, {1}, {1}]


def test_batches_are_put_on_the_named_device(server: "Server", connect: Connect, start_worker: StartWorker) -> None:
    start_all(server.provision(**SYNC), start_worker)
    with connect(actor_critic(), device="meta") as collector:
        batch = next(collector)
    assert {tensor.device.type for tensor in batch.values(include_nested=True, leaves_only=True)} == {"meta"}


def test_a_collector_works_inside_a_running_event_loop(
    server: "Server", connect: Connect, start_worker: StartWorker
) -> None:
    start_all(server.provision(**SYNC), start_worker)

    async def cell() -> int:
        with connect(actor_critic()) as collector:
            return sum(batch.numel() for batch in islice(collector, 3))

    assert asyncio.run(cell()) == 192


def test_a_second_learner_takes_over_and_the_first_raises_learner_replaced(
    server: "Server", connect: Connect, start_worker: StartWorker
) -> None:
    start_all(server.provision(**ASYNC), start_worker)
    first = connect(actor_critic())
    next(first)
    with connect(actor_critic()) as second:
        with pytest.raises(LearnerReplaced):
            for _ in first:
                pass
        assert next(second)["collector", "policy_version"].min() >= 1
        assert second.version > first.version


@pytest.mark.parametrize(
    ("keywords", "words"),
    [
        ({"device": "gpu"}, "`device`: 'gpu' is not a torch device"),
        ({"no_cuda_sync": True}, "name a device, or remove it"),
    ],
)
def test_an_unknown_device_is_refused(connect: Connect, keywords: dict[str, Any], words: str) -> None:
    with pytest.raises(JobInvalid, match=words):
        connect(**keywords)


def test_an_invalid_job_name_is_refused(connect: Connect) -> None:
    with pytest.raises(JobInvalid, match=r"My\.Job"):
        rollfleet.connect("My.Job", address="nats://127.0.0.1:1")


def test_weights_with_too_many_parameters_are_refused(
    server: "Server", connect: Connect, start_worker: StartWorker
) -> None:
    server.provision(**SYNC)
    collector = connect()
    collector.update_policy_weights_({f"layer{number}.weight": torch.zeros(1) for number in range(20_000)})
    with pytest.raises(MessageTooLarge, match="20,000 parameters"):
        next(collector)


def test_a_learner_of_a_deleted_job_raises_job_ended(
    server: "Server", connect: Connect, start_worker: StartWorker
) -> None:
    start_all(server.provision(**ASYNC), start_worker)
    collector = connect(actor_critic())
    next(collector)
    admin = server.link()
    admin.call(deprovision(admin), timeout_s=5)
    with pytest.raises(JobEnded, match="default/test was deleted"):
        for _ in collector:
            pass


@pytest.mark.parametrize("spec", [SYNC, ASYNC], ids=["sync", "async"])
def test_a_returning_learner_continues_with_the_next_version_and_the_same_workers(
    spec: dict[str, Any], server: "Server", connect: Connect, start_worker: StartWorker
) -> None:
    workers = start_all(server.provision(**spec), start_worker)

    def crash() -> None:
        with connect(actor_critic()) as collector:
            for batch in collector:
                if collector.batches == 5:
                    raise RuntimeError("the learner crashed")
                assert batch.numel()

    with pytest.raises(RuntimeError):
        crash()
    with connect(actor_critic()) as collector:
        while next(collector)["collector", "policy_version"].max() < 6:  # batches of version 5 may be on their way
            pass
    assert collector.version >= 6
    for worker in workers:
        worker.join()
        assert worker.transport.incarnation == 0


def test_a_collector_after_shutdown_raises_job_ended(
    server: "Server", connect: Connect, start_worker: StartWorker
) -> None:
    start_all(server.provision(**SYNC), start_worker)
    with connect(actor_critic()) as collector:
        next(collector)
    collector.shutdown()
    with pytest.raises(JobEnded):
        next(collector)


def test_mean_return_covers_the_episodes_in_the_batches(
    server: "Server", connect: Connect, start_worker: StartWorker
) -> None:
    start_all(server.provision(**SYNC | {"collect": {"framesPerBatch": 512}}), start_worker)
    with connect(actor_critic()) as collector:
        assert collector.mean_return is None
        batch = next(collector)
        lengths = [
            int((batch["collector", "traj_ids"] == trajectory).sum())
            for trajectory in batch["collector", "traj_ids"][batch["next", "done"][..., 0]]
        ]
        assert sorted(lengths) == sorted(collector.episode_lengths)
        assert collector.mean_return == pytest.approx(sum(lengths) / len(lengths))
