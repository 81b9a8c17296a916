"""What a policy is besides its parameters and buffers: flags and extra state of its modules, and what wraps it."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.sdk.counting import OPTIONS, Learned
from tests.sdk.places import Collect
from torch import Tensor, nn
from torch.nn.parallel import DataParallel

from rollfleet.weights.layout import state_of


class Moded(Learned):
    """Puts the `training` flags of itself and of two parts into the batch, under `modes`."""

    def __init__(self, **more: nn.Module) -> None:
        super().__init__()
        self.body = nn.ModuleDict({"drop": nn.Dropout(), **more})

    def forward(self, observation: Tensor) -> dict[str, Tensor]:
        modes = torch.tensor([self.training, self.body.training, self.body["drop"].training])
        return super().forward(observation) | {"modes": modes.expand(len(observation), 3)}


def modes(batch: Any) -> list[bool]:
    (found,) = batch["modes"].flatten(0, -2).unique(dim=0).tolist()
    return found  # type: ignore[no-any-return]


def test_each_version_has_the_training_flags_of_all_modules(collect: Collect) -> None:
    policy = Moded()
    collector = collect("CartPole-v1", policy, weights_interval=0, **OPTIONS)
    assert modes(next(collector)) == [True, True, True]
    policy.eval().body["drop"].train()
    assert modes(next(collector)) == [True, True, True]  # as of the version
    collector.update_policy_weights_()
    assert modes(next(collector)) == [False, False, True]
    policy.train().body.eval()
    for given in ((), (state_of(policy),)):  # a dict has no flags
        collector.update_policy_weights_(*given)
        assert modes(next(collector)) == [True, False, False]
    collector.update_policy_weights_(Moded(norm=nn.Identity()))  # other modules than the workers', in train mode
    assert modes(next(collector)) == [True, True, True]


@pytest.mark.filterwarnings("ignore:.* in none of the policy's `models`:UserWarning")
def test_a_policy_of_several_models_has_flags_too(collect: Collect) -> None:
    class Several(Moded):
        @property
        def models(self) -> dict[str, nn.Module]:
            return {"one": self.inner[0]}

        def __init__(self) -> None:
            super().__init__()
            self.inner = [Moded()]  # no submodule

        def forward(self, observation: Tensor) -> dict[str, Tensor]:
            return self.inner[0](observation)  # type: ignore[no-any-return]

    policy = Several()
    collector = collect("CartPole-v1", policy, weights_interval=0, **OPTIONS)
    policy.inner[0].body.eval()
    collector.update_policy_weights_()
    assert modes(next(collector)) == [True, False, False]


def test_a_factorys_eval_stays_until_the_learners_policy_was_in_eval(collect: Collect) -> None:
    policy = Moded()
    collector = collect("CartPole-v1", policy, policy_factory=lambda: Moded().eval(), weights_interval=0, **OPTIONS)
    for mode, acts in ((True, False), (False, False), (True, True)):
        policy.train(mode)
        collector.update_policy_weights_()
        assert modes(next(collector)) == [acts] * 3


def test_flags_of_other_weights_are_loaded_into_a_policy_that_acts_itself(here: Collect) -> None:
    policy = Moded()
    collector = here("CartPole-v1", policy, **OPTIONS)
    collector.update_policy_weights_(Moded().eval())
    assert modes(next(collector)) == [False, False, False]


class Counted(Learned):
    """Has a count in its extra state, as a tensor or in a dict, and puts it into the batch."""

    def __init__(self, form: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.count, self._form = 0, form

    def get_extra_state(self) -> Any:
        return self._form(torch.tensor(self.count))

    def set_extra_state(self, state: Any) -> None:
        self.count = int(state)

    def forward(self, observation: Tensor) -> dict[str, Tensor]:
        return super().forward(observation) | {"count": torch.full((len(observation),), self.count)}


@pytest.mark.parametrize("acts", [False, True])
def test_extra_state_that_is_a_tensor_travels(collect: Collect, acts: bool) -> None:
    policy, other = Counted(torch.clone), Counted(torch.clone)
    collector = collect("CartPole-v1", policy, weights_interval=int(acts), **OPTIONS)
    policy.count = other.count = 3
    for given in ((), (other,)):
        collector.update_policy_weights_(*given)
        assert (next(collector)["count"] == 3).all()
        policy.count, other.count = 0, 3


def test_other_extra_state_is_a_warning_and_the_rest_is_sent(collect: Collect) -> None:
    policy = Counted(lambda count: {"count": count})
    with pytest.warns(UserWarning, match=r"^_extra_state: this is no tensor, so no version has it; return a tensor"):
        collector = collect("CartPole-v1", policy, weights_interval=0, **OPTIONS)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        policy.weight.fill_(2)
        collector.update_policy_weights_()
        assert (next(collector)["shown"] == 2).all()


class Ranks(nn.parallel.DistributedDataParallel):
    """Stands for DistributedDataParallel on one of several ranks: a call would wait for the others."""

    def __init__(self, module: nn.Module) -> None:
        nn.Module.__init__(self)
        self.module = module

    def forward(self, *_: Any) -> Any:
        raise AssertionError("all ranks are called")


def compiled(policy: nn.Module) -> Any:
    return torch.compile(policy, backend="eager")


WRAPPERS: dict[str, Callable[[nn.Module], Any]] = {
    "DataParallel": DataParallel,
    "ranks": Ranks,
    "compiled": compiled,
    "compiled ranks": lambda policy: compiled(Ranks(policy)),
    "ranks of compiled": lambda policy: Ranks(compiled(policy)),
}


@pytest.mark.filterwarnings("ignore:Guards may run slower on Python 3.13.0:RuntimeWarning")  # torch's, of 3.13.0 alone
@pytest.mark.parametrize("interval", [0, 1])
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_a_wrapped_policy_acts_and_is_sent_as_the_module_inside(here: Collect, wrapper: str, interval: int) -> None:
    policy, other = Learned(), Learned()
    torch.nn.init.constant_(other.weight, 2)
    collector = here("CartPole-v1", WRAPPERS[wrapper](policy), weights_interval=interval, **OPTIONS)
    assert (next(collector)["shown"] == 0).all()
    for source in (other, WRAPPERS[wrapper](policy), WRAPPERS[wrapper](policy).state_dict()):
        torch.nn.init.constant_(policy.weight, 5)
        collector.update_policy_weights_(source)
        assert (next(collector)["shown"] == (2 if source is other else 5)).all()


@pytest.mark.parametrize("evaluation", [None, {"every": 1, "episodes": 1}])
@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
def test_a_policy_with_computed_attributes_is_copied(collect: Collect, evaluation: Any) -> None:
    """The old `weight_norm` keeps a tensor with a gradient's history as an attribute."""

    class Normed(Learned):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.utils.weight_norm(nn.Linear(4, 1))

        def forward(self, observation: Tensor) -> dict[str, Tensor]:
            return super().forward(observation) | {"seen": observation, "value": self.layer(observation)}

    policy = Normed()
    collector = collect("CartPole-v1", policy, weights_interval=5, evaluation=evaluation, **OPTIONS)
    torch.nn.init.constant_(policy.layer.get_parameter("weight_g"), 3)
    collector.update_policy_weights_()
    batch = next(collector)
    with torch.no_grad():
        torch.testing.assert_close(batch["value"], policy.layer(batch["seen"]))
