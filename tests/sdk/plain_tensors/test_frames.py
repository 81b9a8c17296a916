"""Frames on plain tensors are those of TorchRL's own path: keys, order, values, and all states afterwards."""

import copy
import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st
from tensordict import NonTensorData
from tensordict.nn import TensorDictModule
from tests.sdk.places import Collect
from tests.sdk.plain_tensors.environments import OBS, Varied, makers, single
from tests.sdk.plain_tensors.policies import ACTED, SEEN, policies
from tests.sdk.same_values import assert_same
from tests.waiting import wait_until
from torch import nn
from torchrl.data import Unbounded
from torchrl.envs import (
    BinarizeReward,
    ClipTransform,
    Compose,
    GymEnv,
    GymWrapper,
    InitTracker,
    NoopResetEnv,
    ObservationNorm,
    ParallelEnv,
    RewardScaling,
    RewardSum,
    SelectTransform,
    SerialEnv,
    StepCounter,
    TargetReturn,
    TensorDictPrimer,
    TimeMaxPool,
    TrajCounter,
    TransformedEnv,
    VecNormV2,
)

from rollfleet.envs.torchrl_env import TorchRLEnv
from rollfleet.exploration import Exploration
from rollfleet.plain_tensors.environments import translate_env
from rollfleet.plain_tensors.known import Untranslated
from rollfleet.rollout import tensordict_rollout
from rollfleet.rollout.seeding import Seeds, TorchStream
from rollfleet.rollout.tensordict_rollout import TensorDictRollout
from rollfleet.rollout.trajectory_ids import TrajectoryIds
from rollfleet_api.collection import CollectSpec

pytestmark = pytest.mark.filterwarnings("ignore")  # of TorchRL

Change = Callable[[Any, Any], object]
"""What a learner does to an environment and a policy between two batches."""


def policy() -> Any:
    torch.manual_seed(0)
    return TensorDictModule(nn.Linear(SEEN, ACTED), OBS, ["action"])


def rollout_of(env: Any, acting: Any, steps: int = 5, **options: Any) -> TensorDictRollout:
    spec = CollectSpec(frames_per_batch=steps * env.batch_size.numel(), **options)
    seeds, ids = Seeds.derive(0, 0, 0, env.batch_size.numel()), TrajectoryIds(0, 0)
    return TensorDictRollout(TorchRLEnv(env), acting, steps=steps, seeds=seeds, trajectories=ids, collect=spec)


def states(value: Any) -> Any:
    return {name: states(each) for name, each in value.items()} if hasattr(value, "items") else value


def collected(
    plain: bool,
    make: Any,
    acting: Any,
    change: Change | None = None,
    stops: int = 99,
    random: bool = False,
    **options: Any,
) -> tuple[list[Any], str | None]:
    """Return three batches, as much of them as `Fragment` has, states after each of them, and the path."""
    streams: list[TorchStream] = []

    class Noted(TorchStream):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            streams.append(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tensordict_rollout, "TorchStream", Noted)
        if not plain:
            patch.setattr(tensordict_rollout, "PlainFrames", None)
        torch.manual_seed(1)
        env, acting, found = make(), copy.deepcopy(acting), list[Any]()
        rollout = rollout_of(env, acting, **options)
        try:
            for number in range(3):
                stop = iter([*[False] * stops, *[True] * 100]).__next__
                fragment = rollout.collect(version=number, random_actions=random and not number, stop=stop)
                tensors = {key: value.clone() for key, value in fragment.steps.items()}
                found.append([tensors, fragment.structure, fragment.episodes])
                found.append([states(env.state_dict()), torch.get_rng_state()])
                found.append(states(acting.state_dict()) if isinstance(acting, nn.Module) else None)
                with streams[0].active():
                    found.append(torch.get_rng_state())
                if change is not None and not number:
                    change(env, acting)
        finally:
            path = rollout.path
            rollout.close()
    return found, path


def assert_paths_agree(make: Any, acting: Any, **keywords: Any) -> str | None:
    """Compare both paths, and return what was on plain tensors."""
    theirs, _ = collected(False, make, acting, **keywords)
    ours, path = collected(True, make, acting, **keywords)
    assert_same(ours, theirs)
    return path


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    make=makers(),
    acting=st.one_of(policies(), st.just(policy())),
    exploration=st.sampled_from(Exploration),
    options=st.fixed_dictionaries(
        {},
        optional={
            "max_frames_per_traj": st.just(3),
            "set_truncated": st.just(True),
            "reset_at_each_iter": st.just(True),
            "stops": st.integers(0, 4),
            "random": st.just(True),
        },
    )
    | st.just({"trajs_per_batch": 2}),
)
def test_composed_environments_and_policies_have_the_same_frames_on_both_paths(
    make: Any, acting: Any, exploration: Exploration, options: dict[str, Any]
) -> None:
    keywords = options | {"exploration": exploration}
    try:
        theirs, _ = collected(False, make, acting, **keywords)
    except Exception as error:  # TorchRL cannot combine these
        with pytest.raises(type(error)):
            collected(True, make, acting, **keywords)
        reject()
    ours, _ = collected(True, make, acting, **keywords)
    assert_same(ours, theirs)


def varied(*transforms: Callable[[], Any], kind: str = "box") -> Callable[[], Any]:
    return lambda: TransformedEnv(
        GymWrapper(Varied(kind, float, bool, False)), Compose(*(make() for make in transforms))
    )


def chain() -> Any:
    return varied(
        lambda: VecNormV2(OBS, decay=0.9),
        lambda: ObservationNorm(1.0, 2.0, OBS),
        lambda: ClipTransform(OBS, low=-1, high=1),
        lambda: RewardScaling(2.0, 3.0),
        RewardSum,
        StepCounter,
    )()


class Other(RewardScaling):  # type: ignore[misc]
    """A class of a user."""

    def __init__(self) -> None:
        super().__init__(1.0, 2.0)


PLAIN = "environment: plain tensors; policy: plain tensors"
CHANGES: dict[str, tuple[Change, str]] = {
    "weights": (lambda env, acting: acting.module.weight.data.fill_(0.5), PLAIN),
    "mode": (lambda env, acting: acting.eval(), PLAIN),
    "frozen statistics": (lambda env, acting: env.transform[0].freeze(), PLAIN),
    "loaded statistics": (lambda env, acting: env.load_state_dict(chain_after_a_reset().state_dict()), PLAIN),
    "decay": (lambda env, acting: setattr(env.transform[0], "decay", 0.5), PLAIN),
    "no decay": (lambda env, acting: setattr(env.transform[0], "decay", 1.0), "without state or decay"),
    "a buffer": (lambda env, acting: env.transform[1].scale.fill_(7.0), PLAIN),
    "another buffer": (lambda env, acting: setattr(env.transform[2], "low", torch.tensor(0.0)), PLAIN),
    "a limit": (lambda env, acting: setattr(env.transform[5], "max_steps", 2), PLAIN),
    "a transform more": (lambda env, acting: env.append_transform(RewardScaling(0.0, 2.0)), PLAIN),
    "a transform less": (lambda env, acting: env.transform.pop(3), PLAIN),
    "a class of its own": (lambda env, acting: env.append_transform(Other()), "transform Other"),
    "a method": (lambda env, acting: setattr(env.transform[3], "_apply_transform", torch.neg), "is overridden"),
    "skipped frames": (lambda env, acting: setattr(env.base_env, "wrapper_frame_skip", 2), PLAIN),
    "a simulator": (lambda env, acting: setattr(env.base_env, "_env", begun()), PLAIN),
    "a seed": (lambda env, acting: env.set_seed(3), PLAIN),
}


def chain_after_a_reset() -> Any:
    env = chain()
    env.set_seed(0)
    env.rollout(3)
    return env


def begun() -> Any:
    env = Varied("box", int, np.bool_, False)
    env.reset(seed=4)
    return env


@pytest.mark.parametrize("name", CHANGES)
def test_what_a_learner_changes_between_two_batches_counts(name: str) -> None:
    change, path = CHANGES[name]
    assert path in (assert_paths_agree(chain, policy(), change=change) or "")


class OtherEnv(GymEnv):  # type: ignore[misc]
    """A class of a user."""


@pytest.mark.parametrize(
    "make", [BinarizeReward, TrajCounter, partial(TargetReturn, 10.0, mode="reduce"), partial(TimeMaxPool, OBS, T=3)]
)
def test_transforms_that_act_by_their_own_code_are_stepped_on_plain_tensors(make: Any) -> None:
    assert assert_paths_agree(varied(make, StepCounter, RewardSum), policy()) == PLAIN


def with_method(env: Any) -> Any:
    env.read_action = lambda action: 0
    return env


def with_hook(env: Any) -> Any:
    env._post_step_mdp_hooks = lambda tensordict, following: (tensordict, following)  # noqa: SLF001 (TorchRL's hook)
    return env


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: OtherEnv("CartPole-v1"), "environment OtherEnv"),
        (lambda: with_method(GymEnv("CartPole-v1")), "GymEnv.read_action is overridden"),
        (lambda: GymEnv("CartPole-v1").set_info_dict_reader(lambda info, tensordict: tensordict), "info reader"),
        (lambda: GymEnv("CartPole-v1", num_envs=2), "a vector"),
        (lambda: with_hook(GymEnv("CartPole-v1")), "GymEnv._post_step_mdp_hooks is overridden"),
        (varied(partial(StepCounter, 5, update_done=False)), "StepCounter without update_done"),
        (lambda: TransformedEnv(GymEnv("CartPole-v1"), lambda tensordict: tensordict), "_CallableTransform"),
        (varied(Other), "transform Other"),
        (varied(lambda: VecNormV2(OBS, decay=1.0)), "without state or decay"),
        (lambda: TransformedEnv(varied(StepCounter)(), Other(), auto_unwrap=False), "transform Other"),
    ],
)
def test_near_misses_are_not_translated(make: Any, reason: str) -> None:
    env = make()
    found = translate_env(env)
    env.close()
    assert isinstance(found, Untranslated)
    assert reason in str(found)


def telling(tensordict: Any) -> Any:
    """Act, and write what is no tensor in every third call."""
    tensordict["action"] = torch.rand(2)
    if tensordict["step_count"] % 3 == 2:
        tensordict["text"] = NonTensorData("third")
    return tensordict


def private(tensordict: Any) -> Any:
    return tensordict.set("_own", torch.rand(3)).set("action", torch.rand(2))


@pytest.mark.parametrize("acting", [telling, private])
def test_a_policy_that_is_not_translated_acts_on_plain_environments(acting: Any) -> None:
    path = assert_paths_agree(varied(StepCounter, RewardSum), acting)
    assert path == "environment: plain tensors; policy: TorchRL's own (policy function)"


def test_a_translated_policy_acts_in_environments_that_are_not() -> None:
    path = assert_paths_agree(varied(Other, RewardSum), policy())
    assert path == "environment: TorchRL's own (transform Other); policy: plain tensors"


def in_processes(*chain: Callable[[], Any]) -> Any:
    return ParallelEnv(2, partial(single, "box", float, bool, False, 1, [*chain]), mp_start_method="fork")


def remembering() -> Any:
    """Return a policy that writes what its environments carry on to their next step."""
    torch.manual_seed(0)
    net = nn.Linear(SEEN + 2, ACTED + 2)
    return TensorDictModule(
        lambda seen, memo: net(torch.cat([seen, memo], -1)).split([ACTED, 2], -1),
        ["observation", "memo"],
        ["action", ("next", "memo")],
    )


def primer() -> Any:
    return TensorDictPrimer({"memo": Unbounded((2,))}, random=True, expand_specs=True)


@pytest.mark.parametrize(
    ("chain", "outer", "acting"),
    [
        ([], [InitTracker, StepCounter, RewardSum], policy()),
        ([partial(NoopResetEnv, 2), StepCounter], [RewardSum], policy()),
        ([Other, RewardSum], [StepCounter], policy()),
        ([primer], [RewardSum], remembering()),
        ([], [primer], remembering()),
    ],
)
@pytest.mark.parametrize("options", [{}, {"set_truncated": True, "stops": 3, "random": True}])
def test_a_parallel_env_in_transforms_is_stepped_on_plain_tensors_whatever_its_processes_run(
    chain: Any, outer: Any, acting: Any, options: Any
) -> None:
    path = assert_paths_agree(
        lambda: TransformedEnv(in_processes(*chain), Compose(*(make() for make in outer))), acting, **options
    )
    assert path is not None
    assert path.startswith("environment: plain tensors; ")


def test_a_primer_whose_value_was_dropped_is_left_out_as_torchrl_leaves_it() -> None:
    memo = varied(
        lambda: TensorDictPrimer({"memo": Unbounded((2,))}, random=True), lambda: SelectTransform("observation")
    )
    path = assert_paths_agree(lambda: TransformedEnv(SerialEnv(2, memo), StepCounter()), policy())
    assert path == "environment: plain tensors; policy: plain tensors"


def test_a_parallel_env_without_transforms_around_it_is_not_translated() -> None:
    path = assert_paths_agree(lambda: in_processes(StepCounter), policy())
    assert path == "environment: TorchRL's own (a ParallelEnv without transforms around it); policy: plain tensors"


def test_after_an_error_in_mid_batch_both_paths_go_on_alike() -> None:
    class Failing(Varied):
        calls = 0

        def step(self, action: Any) -> Any:
            self.calls += 1
            if self.calls == 8:
                raise OSError("broken")
            return super().step(action)

    def batches(plain: bool) -> list[Any]:
        with pytest.MonkeyPatch.context() as patch:
            if not plain:
                patch.setattr(tensordict_rollout, "PlainFrames", None)
            env = TransformedEnv(GymWrapper(Failing("box", float, bool, False)), StepCounter())
            rollout = rollout_of(env, policy())
            found = [rollout.collect(version=0).steps]
            with pytest.raises(OSError, match="broken"):
                rollout.collect(version=0)
            return [*found, rollout.collect(version=0).steps]

    assert_same(batches(True), batches(False))


def test_a_collectors_text_has_the_path_wherever_it_runs(collect: Collect) -> None:
    collector = collect(varied(StepCounter), policy(), frames_per_batch=8 * collect.workers)
    next(collector)
    wait_until(lambda: repr(collector).endswith(f", path={PLAIN!r})>"))


def test_the_path_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "rollfleet.plain_tensors"):
        collected(True, varied(StepCounter), policy())
    assert [record.getMessage() for record in caplog.records] == [PLAIN]
