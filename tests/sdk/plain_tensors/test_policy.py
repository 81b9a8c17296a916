"""A policy on plain tensors does what it does to a TensorDict: values, order, draws, state."""

import copy
from collections.abc import Callable
from functools import wraps
from operator import setitem
from typing import Any

import pytest
import tensordict
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from tensordict import TensorDict
from tensordict.nn import (
    NormalParamExtractor,
    TensorDictModule,
    TensorDictSequential,
    set_interaction_type,
    set_skip_existing,
)
from tests.sdk.plain_tensors.alike import assert_alike, first, translated
from tests.sdk.plain_tensors.policies import ACTED, BOX, HOW, SEEN, policies
from torch import nn
from torch.nn.modules.module import register_module_forward_hook
from torchrl.data import Bounded, OneHot
from torchrl.modules import (
    Actor,
    AdditiveGaussianModule,
    EGreedyModule,
    IndependentNormal,
    OrnsteinUhlenbeckProcessModule,
    ProbabilisticActor,
    QValueActor,
    TanhNormal,
)

from rollfleet.data.tensor_tree import nested
from rollfleet.plain_tensors import known
from rollfleet.plain_tensors.policy import PlainPolicy

pytestmark = pytest.mark.filterwarnings("ignore")  # of TorchRL


@given(policies(), st.sampled_from([(), (1,), (5,)]), st.sampled_from([*HOW, None]), st.integers(0, 99))
@settings(max_examples=80, suppress_health_check=[*HealthCheck])
def test_a_policy_does_the_same_to_plain_tensors(policy: Any, sizes: Any, how: Any, seed: int) -> None:
    like = copy.deepcopy(policy)
    plain = PlainPolicy(policy)
    with set_interaction_type(how):
        try:
            with torch.no_grad():
                copy.deepcopy(policy)(TensorDict(nested(first(torch.Size(sizes), seed)), batch_size=sizes))
        except Exception:
            assume(False)
        for batch in range(2):
            assert_alike(plain, policy, like, torch.Size(sizes), seed + batch)


def q_actor() -> Any:
    net = nn.Sequential(nn.Linear(SEEN, 8), nn.ReLU(), nn.Linear(8, ACTED))
    value = QValueActor(net, in_keys=["observation"], spec=OneHot(ACTED))
    return TensorDictSequential(value, EGreedyModule(value.spec, eps_init=0.8, eps_end=0.1, annealing_num_steps=9))


def drawing_actor(**keywords: Any) -> Any:
    net = nn.Sequential(nn.Linear(SEEN, 2 * ACTED), nn.Dropout(0.5), NormalParamExtractor())
    first = TensorDictModule(net, ["observation"], ["loc", "scale"])
    given = {"distribution_class": TanhNormal, "return_log_prob": True} | keywords
    return ProbabilisticActor(first, ["loc", "scale"], distribution_kwargs={"low": -torch.ones(ACTED)}, **given)


def noisy_actor() -> Any:
    noise = AdditiveGaussianModule(BOX, sigma_init=0.9, sigma_end=0.1, annealing_num_steps=9)
    return TensorDictSequential(
        Actor(nn.Linear(SEEN, ACTED)), noise, OrnsteinUhlenbeckProcessModule(BOX, annealing_num_steps=9)
    )


def replace_first(policy: Any) -> None:
    policy.module[0] = TensorDictModule(nn.Linear(SEEN, ACTED), ["observation"], ["action"])


def optimize(policy: Any) -> None:
    for each in policy.parameters():
        each.data += torch.randn(each.shape)


def normal(policy: Any) -> None:
    policy[1].distribution_class = IndependentNormal
    policy[1].distribution_kwargs = {}


def drawing_hook(module: object, inputs: object, output: torch.Tensor) -> torch.Tensor:
    return output + torch.rand(())


def first_action(value: torch.Tensor) -> torch.Tensor:
    return torch.eye(ACTED, dtype=torch.long)[0].expand(value.shape)


def last_action(shape: tuple[int, ...] = ()) -> torch.Tensor:
    return torch.eye(ACTED, dtype=torch.long)[-1].expand(*shape, ACTED)


def trace_of(layer: nn.Module) -> Any:
    return torch.jit.trace(layer, torch.zeros(SEEN))


CHANGES: dict[str, tuple[Callable[[], Any], Callable[[Any], object]]] = {
    "layer": (q_actor, lambda policy: setitem(policy[0][0].module, 0, nn.Linear(SEEN, 8))),
    "parameter": (
        q_actor,
        lambda policy: setattr(policy[0][0].module[2], "weight", nn.Parameter(torch.ones(ACTED, 8))),
    ),
    "optimizer": (q_actor, optimize),
    "hook of a layer": (q_actor, lambda policy: policy[0][0].module[1].register_forward_hook(drawing_hook)),
    "mask": (q_actor, lambda policy: policy[1].spec["action"].update_mask(torch.tensor([False, True]))),
    "epsilon": (q_actor, lambda policy: policy[1].step(5)),
    "no noise": (q_actor, lambda policy: policy.module.pop(1)),
    "keys": (q_actor, lambda policy: policy.select_out_keys("action")),
    "strictness": (q_actor, lambda policy: setattr(policy[0][1], "strict_shape", False)),
    "mode": (drawing_actor, lambda policy: policy.eval()),
    "bounds": (drawing_actor, lambda policy: policy[1].distribution_kwargs["low"].fill_(-3.0)),
    "options": (drawing_actor, lambda policy: policy[1].distribution_kwargs.update(tanh_loc=True)),
    "log-probability": (drawing_actor, lambda policy: setattr(policy[1], "return_log_prob", False)),
    "distribution": (drawing_actor, normal),
    "generator": (drawing_actor, lambda policy: setattr(policy[1], "_generator", torch.Generator().manual_seed(3))),
    "attribute of a layer": (drawing_actor, lambda policy: setattr(policy[0].module[2], "scale_lb", 2.0)),
    "first part": (drawing_actor, replace_first),  # TorchRL goes on to use the old one
    "sigma": (noisy_actor, lambda policy: policy[1].step(5)),
    "process": (noisy_actor, lambda policy: setattr(policy[2].ou, "theta", 0.5)),
    "first of a sequence": (noisy_actor, replace_first),
    "action map": (q_actor, lambda policy: policy[0][1].action_func_mapping.update(one_hot=first_action)),
    "a method of the spec": (q_actor, lambda policy: setattr(policy[1].spec["action"], "rand", last_action)),
    "a traced layer": (q_actor, lambda policy: setitem(policy[0][0].module, 0, trace_of(nn.Linear(SEEN, 8)))),
    "spec": (noisy_actor, lambda policy: setattr(policy[1], "spec", Bounded(-0.1, 0.1, (ACTED,)))),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_between_two_batches_takes_effect(name: str) -> None:
    make, change = CHANGES[name]
    policy = make()
    like, plain = copy.deepcopy(policy), PlainPolicy(policy)
    with set_interaction_type("random"):
        assert_alike(plain, policy, like, torch.Size([4]))
        for each in (policy, like):
            torch.manual_seed(1)
            change(each)
        assert_alike(plain, policy, like, torch.Size([4]))


def test_each_batch_has_its_exploration_type_and_its_size() -> None:
    policy = q_actor()
    like, plain = copy.deepcopy(policy), PlainPolicy(policy)
    for how, sizes in [("random", ()), ("mode", (2,)), (None, (3,)), ("deterministic", ()), ("random", (2, 2))]:
        with set_interaction_type(how):
            assert_alike(plain, policy, like, torch.Size(sizes))


OwnActor = type("OwnActor", (Actor,), {})


def own_forward(self: Any, tensordict: Any) -> Any:
    return tensordict


def unchanged(policy: Any) -> None:
    pass


MISSES: dict[str, tuple[Callable[[], Any], Callable[[Any], object], str]] = {
    "a subclass": (lambda: OwnActor(nn.Linear(SEEN, ACTED)), unchanged, "policy OwnActor"),
    "a subclass of the same name": (
        lambda: type("Actor", (Actor,), {})(nn.Linear(SEEN, ACTED)),
        unchanged,
        "Actor is not TorchRL's",
    ),
    "a function": (lambda: lambda tensordict: tensordict, unchanged, "policy function"),
    "a part": (lambda: TensorDictSequential(q_actor(), lambda tensordict: tensordict), unchanged, "policy WrapModule"),
    "a patched method": (
        q_actor,
        lambda policy: setattr(policy[1], "forward", None),
        "EGreedyModule.forward is overridden",
    ),
    "a compiled part": (
        q_actor,
        lambda policy: policy[1].compile(backend="eager"),
        "EGreedyModule._compiled_call_impl is overridden",
    ),
    "several samples": (
        lambda: drawing_actor(num_samples=2),
        unchanged,
        "num_samples=torch.Size([2]) of ProbabilisticActor",
    ),
    "a hook": (q_actor, lambda policy: policy.register_forward_hook(print), "a hook of TensorDictSequential: print"),
    "a hook before": (
        q_actor,
        lambda policy: policy[1].register_forward_pre_hook(print),
        "a hook of EGreedyModule: print",
    ),
    "selected keys": (
        q_actor,
        lambda policy: policy[1].select_out_keys("action"),
        "a hook of EGreedyModule: _OutKeysSelect",
    ),
    "not in place": (
        lambda: TensorDictModule(nn.Linear(SEEN, ACTED), ["observation"], ["action"], inplace=False),
        unchanged,
        "inplace=False of TensorDictModule",
    ),
    "groups of keys": (
        lambda: TensorDictModule(nn.Linear(SEEN, ACTED), [("agents", "observation")], [("agents", "action")]),
        unchanged,
        "all its modules are called themselves",
    ),
}


@pytest.mark.parametrize("name", MISSES)
def test_what_is_not_exactly_torchrls_is_untranslated_and_says_why(name: str) -> None:
    make, change, reason = MISSES[name]
    policy = make()
    plain = translated(policy)
    change(policy)
    assert str(translated(policy)) == reason
    if isinstance(plain, PlainPolicy):  # it became so between two batches
        assert str(plain.refresh()) == reason


def test_what_holds_for_all_modules_is_untranslated() -> None:
    plain = translated(q_actor())
    assert isinstance(plain, PlainPolicy)
    reason = "set_skip_existing, or hooks of all modules"
    with set_skip_existing(True):
        assert str(plain.refresh()) == reason
    hook = register_module_forward_hook(lambda *_: None)
    try:
        assert str(plain.refresh()) == reason
    finally:
        hook.remove()
    assert plain.refresh() is None


def in_its_name(function: Any) -> Any:
    @wraps(function)
    def same(*args: Any, **keywords: Any) -> Any:
        return function(*args, **keywords)

    return same


class Descriptor:
    def __get__(self, module: object, kind: object) -> Any:
        return own_forward


@pytest.mark.parametrize(
    ("kind", "name", "patch"),
    [
        (EGreedyModule, "forward", own_forward),
        (EGreedyModule, "forward", in_its_name(EGreedyModule.forward)),
        (EGreedyModule, "forward", Descriptor()),
        (EGreedyModule, "forward", torch.no_grad()(own_forward)),
        (EGreedyModule, "spec", property(lambda self: own_forward(self, None))),
        (nn.Module, "__call__", in_its_name(nn.Module.__call__)),
    ],
)
def test_a_patch_of_a_class_between_two_batches_is_seen(
    monkeypatch: pytest.MonkeyPatch, kind: Any, name: str, patch: Any
) -> None:
    plain: Any = translated(q_actor())
    monkeypatch.setattr(kind, name, patch)
    assert str(plain.refresh()) == f"{kind.__name__}.{name} is not TorchRL's"
    monkeypatch.undo()
    assert plain.refresh() is None


@pytest.mark.parametrize("kind", [torch.distributions.Normal, TanhNormal])
def test_a_patch_of_a_distribution_takes_effect(monkeypatch: pytest.MonkeyPatch, kind: Any) -> None:
    policy = drawing_actor()
    like, plain = copy.deepcopy(policy), PlainPolicy(policy)
    with set_interaction_type("random"):
        assert_alike(plain, policy, like, torch.Size([4]))
        monkeypatch.setattr(kind, "rsample", lambda self, shape=(): torch.full_like(self.mean, 0.5))
        assert_alike(plain, policy, like, torch.Size([4]))


def test_unknown_versions_are_untranslated_and_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    reason = f"tensordict {tensordict.__version__} is not one of 0.1.0"
    with monkeypatch.context() as patch:
        patch.setitem(known.VERSIONS, "tensordict", ("0.1.0",))
        known.unknown_version.cache_clear()
        assert [str(translated(q_actor())) for _ in range(2)] == [reason] * 2
    known.unknown_version.cache_clear()
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == [reason]
