"""`Collector` of `rollfleet.torchrl` in this process, beside TorchRL's own."""

from typing import Any

import pytest
import torch
from tensordict import TensorDict
from tests.sdk.torchrl.programs import constant, linear, pendulum, running, two_pendulums
from tests.waiting import wait_until
from torchrl.data import LazyTensorStorage, ReplayBuffer
from torchrl.envs import GymEnv, InitTracker, TransformedEnv
from torchrl.envs.utils import ExplorationType

from rollfleet.errors import JobInvalid
from rollfleet.torchrl import Collector, RandomPolicy, SyncDataCollector
from rollfleet.torchrl.arguments import elsewhere

pytestmark = pytest.mark.filterwarnings("ignore")  # of TorchRL


def batches(kind: Any, make: Any, policy: Any = None, **keywords: Any) -> list[TensorDict]:
    torch.manual_seed(0)
    keywords = {"frames_per_batch": 20, "total_frames": 60} | keywords
    collector = kind(make, policy, **keywords)
    try:
        return [batch if batch is None else batch.clone() for batch in collector]
    finally:
        collector.shutdown()


@pytest.mark.parametrize(
    "keywords",
    [
        {},
        {"create_env_kwargs": {"seed": 5}, "max_frames_per_traj": 0},
        {"init_random_frames": 20, "set_truncated": True},
        {"storing_device": "cpu", "compact_obs": True},
        {"device": "cpu", "split_trajs": True},
        {"track_traj_ids": False, "exploration_type": ExplorationType.MODE},
        {"trajs_per_batch": 2, "traj_format": "padded"},
        {"trajs_per_batch": 2, "traj_format": "cat"},
        {"reset_at_each_iter": True},
        {"reset_at_each_iter": True, "trajs_per_batch": 2},
    ],
    ids=lambda keywords: "-".join(keywords) or "defaults",
)
def test_batches_are_those_of_torchrls_collector_bit_by_bit(keywords: dict[str, Any]) -> None:
    from torchrl.collectors import Collector as Theirs

    keywords = {"create_env_kwargs": {"seed": 3}} | keywords
    found, expected = (batches(kind, pendulum, linear(), **keywords) for kind in (Collector, Theirs))
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        assert [*ours.keys(True, True)] == [*theirs.keys(True, True)]
        assert (ours.batch_size, ours.names, ours.device) == (theirs.batch_size, theirs.names, theirs.device)
        assert (ours == theirs).all()


def test_the_text_of_a_collector_says_what_runs_on_plain_tensors_and_what_does_not() -> None:
    collector = Collector(pendulum, lambda tensordict: linear()(tensordict), frames_per_batch=20, total_frames=60)
    next(iter(collector))
    assert repr(collector).startswith("Collector(<Collector('...', workers=1, mode='sync', frames=20, batches=1")
    assert 'path="environment: plain tensors; policy: TorchRL\'s own (policy function)"' in repr(collector)
    collector.shutdown()


def test_a_batch_has_the_batch_size_of_the_environment() -> None:
    assert [tuple(batch.shape) for batch in batches(Collector, two_pendulums)] == [(2, 10)] * 3
    assert [tuple(batch.shape) for batch in batches(Collector, pendulum())] == [(20,)] * 3


def test_max_frames_per_traj_adds_step_count_and_changes_nothing_of_the_environment_that_was_passed() -> None:
    env = TransformedEnv(GymEnv("Pendulum-v1"), InitTracker())
    for _ in range(2):
        batch, *_ = batches(Collector, env, max_frames_per_traj=5)
        assert int(batch["next", "step_count"].max()) == 5
    assert "step_count" not in set(env.observation_spec.keys())


def test_reset_drops_the_trajectories_of_a_loop_and_postproc_and_hooks_see_its_frames() -> None:
    seen: list[str] = []
    collector = Collector(
        pendulum,
        frames_per_batch=21,
        trajs_per_batch=2,
        traj_format="cat",
        postproc=lambda batch: (seen.append("postproc"), batch)[1],  # type: ignore[func-returns-value]
        post_collect_hook=lambda batch: seen.append("after"),
    )
    loop = iter(collector)
    before = next(loop)
    collector.reset()
    after = next(loop)
    collector.shutdown()
    assert before.shape == after.shape == (14,)
    assert int(before["collector", "traj_ids"].max()) + 1 < int(after["collector", "traj_ids"].min())
    assert seen == ["postproc", "after"] * (len(seen) // 2)


@pytest.mark.parametrize("index", [0, [1], [True, False]])
def test_a_reset_of_some_environments_is_refused_and_a_mask_of_all_resets_them(index: Any) -> None:
    with running(Collector(two_pendulums, frames_per_batch=4)) as collector:
        loop = iter(collector)
        next(loop)
        with pytest.raises(NotImplementedError, match="remove the index"):
            collector.reset(index)
        assert (next(loop)["step_count"][:, 0] == 2).all()
        collector.reset(torch.tensor([True, True]))
        assert (next(loop)["step_count"][:, 0] == 0).all()


def test_a_seed_of_set_seed_repeats_an_episode() -> None:
    first = []
    for _ in range(2):
        collector = Collector(pendulum, constant(0.0), frames_per_batch=7, total_frames=7, reset_at_each_iter=True)
        collector.set_seed(4)
        first.append(next(iter(collector))["observation"])
        collector.shutdown()
    assert torch.equal(*first)


def test_the_policys_new_weights_act_at_once_and_other_weights_are_loaded_into_it() -> None:
    policy = constant(0.0)
    collector = Collector(pendulum, policy, frames_per_batch=5, total_frames=-1, track_policy_version=True)
    iterator = iter(collector)
    assert (next(iterator)["action"] == 0).all()
    with torch.no_grad():
        policy.module.bias.fill_(1.0)
    assert (next(iterator)["action"] == 1).all()
    collector.update_policy_weights_(TensorDict.from_module(constant(2.0)))
    batch = next(iterator)
    assert (batch["action"] == 2).all()
    assert (batch["policy_version"] == 1).all()
    assert collector.policy_version == 1
    assert float(policy.module.bias) == 2.0
    collector.shutdown()


@pytest.mark.parametrize("keyword", ["device", "policy_device"])
def test_a_policy_that_is_on_its_device_by_another_name_is_shared(keyword: str) -> None:
    """As `cuda` and `cuda:0`: a copy would act with its first weights for ever."""
    collector = Collector(pendulum, policy := constant(0.0), frames_per_batch=5, **{keyword: "cpu:0"})
    iterator = iter(collector)
    next(iterator)
    torch.nn.init.constant_(policy.module.bias, 1.0)
    assert (next(iterator)["action"] == 1).all()
    collector.shutdown()


def test_a_compiled_policy_acts_with_the_callers_parameters() -> None:
    policy = constant(3.0)
    (batch,) = batches(Collector, pendulum, policy, total_frames=20, compile_policy={"backend": "eager"})
    assert (batch["action"] == 3).all()
    assert policy._compiled_call_impl is None  # noqa: SLF001 (torch's)


def test_a_function_is_compiled() -> None:
    compiled = []

    def backend(graph: Any, _: object) -> Any:
        compiled.append(graph)
        return graph

    def push(tensordict: TensorDict) -> TensorDict:
        return tensordict.set("action", tensordict["observation"][..., :1] * 0 + 2)

    (batch,) = batches(Collector, pendulum, push, total_frames=20, compile_policy={"backend": backend})
    assert (batch["action"] == 2).all()
    assert compiled


@pytest.mark.parametrize("ndim", [1, 2])
def test_a_replay_buffer_gets_batches_as_torchrls_collector_writes_them(ndim: int) -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(100, ndim=ndim), batch_size=8)
    assert batches(Collector, two_pendulums, replay_buffer=buffer) == [None] * 3
    assert len(buffer) == (6 if ndim == 1 else 60)


def test_start_fills_a_replay_buffer_in_the_background() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(100), batch_size=8)
    collector = Collector(pendulum, frames_per_batch=10, total_frames=50, replay_buffer=buffer)
    collector.start()
    wait_until(lambda: not collector.is_running())
    collector.async_shutdown()
    assert buffer.write_count == 50


def test_the_error_that_ends_a_background_fill_is_raised_once_and_everything_is_closed() -> None:
    def fail(batch: TensorDict) -> None:
        raise ZeroDivisionError

    env, buffer = pendulum(), ReplayBuffer(storage=LazyTensorStorage(100))
    collector = Collector(env, frames_per_batch=10, replay_buffer=buffer, post_collect_hook=fail)
    for call in (collector.update_policy_weights_, collector.async_shutdown):
        collector.start()
        wait_until(lambda: not collector.is_running())
        with pytest.raises(ZeroDivisionError):
            call()
    collector.shutdown()
    assert env.is_closed


def test_shutdown_leaves_an_environment_open_if_asked_to() -> None:
    env = pendulum()
    for close_env in (False, True):
        collector = Collector(env, frames_per_batch=5, total_frames=5)
        assert len(list(collector)) == 1
        collector.shutdown(close_env=close_env)
        assert env.is_closed is close_env


def test_a_collector_of_this_process_refuses_a_place_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    class Mine(Collector): ...

    def direct(*args: Any, **keywords: Any) -> Any:
        return Collector(*args, backend="direct", **keywords)

    for kind in (Mine, direct):
        with pytest.raises(JobInvalid, match="`job` asks for other processes"):
            kind(pendulum, frames_per_batch=5, job="team/none")
    monkeypatch.setitem(elsewhere, "workers", 2)
    with pytest.raises(JobInvalid, match="`workers` asks for other processes"):
        Mine(pendulum, frames_per_batch=5)


def test_postproc_and_hooks_are_called_and_hooks_can_be_replaced() -> None:
    seen: list[str] = []
    collector = Collector(
        pendulum,
        frames_per_batch=5,
        total_frames=-1,
        postproc=lambda batch: (seen.append("postproc"), batch)[1],  # type: ignore[func-returns-value]
        pre_collect_hook=lambda: seen.append("before"),
    )
    iterator = iter(collector)
    next(iterator)
    collector.set_post_collect_hook(lambda batch: seen.append("after"))
    next(iterator)
    collector.shutdown()
    assert seen == ["before", "postproc", "before", "postproc", "after"]


def test_a_restored_collector_counts_on() -> None:
    collector = Collector(pendulum, linear(), frames_per_batch=20, total_frames=60)
    next(iter(collector))
    state = collector.state_dict()
    collector.shutdown()
    restored = Collector(pendulum, constant(0.0), frames_per_batch=20, total_frames=60)
    restored.load_state_dict(state)
    assert restored.stats()["frames"] == 20
    assert len(list(restored)) == 2
    assert torch.equal(restored.policy.module.weight, linear().module.weight)
    restored.shutdown()


def test_attributes_are_those_of_torchrl() -> None:
    env = TransformedEnv(pendulum(), InitTracker())
    collector = SyncDataCollector(env, RandomPolicy(), frames_per_batch=20, total_frames=100)
    assert collector.env is env
    assert collector.getattr_env("batch_size") == torch.Size([])
    assert collector.getattr_policy("action_key") == "action"
    assert collector.get_model("policy") is collector.policy
    with pytest.raises(ValueError, match="no model 'value_net'"):
        collector.get_model("value_net")
    with pytest.raises(TypeError):
        len(Collector(env, frames_per_batch=20, total_frames=-1))
    assert (len(collector), collector.frames_per_batch, collector.total_frames) == (5, 20, 100)
    assert collector.map_fn("set_seed", [(1,), (2,)]) == [pendulum().set_seed(1), pendulum().set_seed(2)]
    assert "is_init" in next(iter(collector))
    collector.shutdown()


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"cudagraph_policy": True}, "cudagraph_policy"),
        ({"weight_updater": object()}, "weight_updater"),
        ({"traj_format": "cat"}, "trajs_per_batch"),
        ({"trajs_per_batch": 2, "track_traj_ids": False}, "track_traj_ids=True"),
        ({"frames": 3}, "frames"),
        ({"max_frames_per_traj": 5}, "step_count"),  # the environment has one
    ],
)
def test_an_unavailable_argument_is_an_error_with_its_name(keywords: dict[str, Any], message: str) -> None:
    if "cudagraph_policy" in keywords and torch.cuda.is_available():
        pytest.skip("here it can be had")
    with pytest.raises((TypeError, ValueError), match=message):
        Collector(pendulum, frames_per_batch=10, **keywords)


def test_none_and_false_of_unavailable_arguments_are_accepted() -> None:
    keywords = {"cudagraph_policy": False, "compile_policy": None, "interruptor": None, "use_buffers": True}
    assert len(batches(Collector, pendulum, trust_policy=True, return_same_td=False, **keywords)) == 3


@pytest.mark.parametrize(
    ("name", "value"),
    [("exploration_type", ExplorationType.MEAN), ("init_random_frames", 5), ("reset_at_each_iter", True)],
)
def test_an_attribute_that_would_have_no_effect_cannot_be_set(name: str, value: Any) -> None:
    with running(Collector(pendulum, linear(), frames_per_batch=5, total_frames=10)) as collector:
        with pytest.raises(AttributeError, match=f"`{name}` stays as it was"):
            setattr(collector, name, value)
        setattr(collector, name, getattr(collector, name))
