"""The usual distributions need no object: their samples and log-probabilities are those of torch and TorchRL."""

import copy
from typing import Any

import pytest
import torch
from tensordict.nn import InteractionType, TensorDictModule, set_interaction_type
from tests.sdk.plain_tensors.alike import assert_alike, translated
from tests.sdk.plain_tensors.policies import ACTED, CATEGORICALS, NORMALS, SEEN
from torch import nn
from torch.distributions import Distribution
from torchrl.modules import Delta, ProbabilisticActor

from rollfleet.plain_tensors import policy as plain_policy
from rollfleet.plain_tensors.heads import FAST
from rollfleet.plain_tensors.policy import PlainPolicy

pytestmark = pytest.mark.filterwarnings("ignore")  # of TorchRL

OWN = {"tanh loc", "tanh events", "checked", "truncated", "torch's", "delta"}
CASES = {
    **{name: (kind, given, ["loc", "scale"]) for name, (kind, given) in NORMALS.items()},
    **{name: (kind, {}, ["logits"]) for name, kind in CATEGORICALS.items()},
    "delta": (Delta, {}, ["param"]),
}


class Params(nn.Module):
    """Parameters of a distribution from an observation, in this dtype."""

    def __init__(self, count: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.count, self.dtype, self.linear = count, dtype, nn.Linear(SEEN, ACTED)

    def forward(self, value: torch.Tensor) -> Any:
        found = 3 * self.linear(value).to(self.dtype)
        return (found, found.exp())[: self.count]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("form", ["drawn", "scored", "greedy"])
@pytest.mark.parametrize("name", CASES)
def test_a_head_is_bit_equal_and_needs_no_distribution(
    name: str, form: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, given, keys = CASES[name]
    first = TensorDictModule(Params(len(keys), dtype), ["observation"], keys)
    keywords: dict[str, Any] = {"distribution_class": kind, "distribution_kwargs": given}
    policy = ProbabilisticActor(first, keys, return_log_prob=form == "scored", **keywords)
    how = InteractionType.DETERMINISTIC if form == "greedy" else InteractionType.RANDOM
    like, plain = copy.deepcopy(policy), PlainPolicy(policy)
    if name not in OWN:
        monkeypatch.setattr(plain_policy, "nested", pytest.fail)  # a TensorDict is made of it
    with set_interaction_type(how):
        for sizes in ((), (1,), (4,), (33,)):
            assert_alike(plain, policy, like, torch.Size(sizes))


def test_each_known_distribution_is_tested() -> None:
    assert {f"{kind.__module__.partition('.')[0]}.{kind.__name__}" for kind, *_ in CASES.values()} >= set(FAST)


def test_bounds_in_the_wrong_order_raise_torchrls_error() -> None:
    first = TensorDictModule(Params(2, torch.float32), ["observation"], ["loc", "scale"])
    bounds = {"low": 1.0, "high": -1.0}
    kind = NORMALS["tanh"][0]
    with set_interaction_type("random"):
        plain = translated(
            ProbabilisticActor(first, ["loc", "scale"], distribution_class=kind, distribution_kwargs=bounds)
        )
    assert isinstance(plain, PlainPolicy)
    with pytest.raises(RuntimeError, match="must be strictly greater than low values"):
        plain({("observation",): torch.zeros(SEEN)})


def test_parameters_are_checked_if_torch_is_to_check_them(monkeypatch: pytest.MonkeyPatch) -> None:
    first = TensorDictModule(Params(2, torch.float32), ["observation"], ["loc", "scale"])
    plain = PlainPolicy(ProbabilisticActor(first, ["loc", "scale"], distribution_class=NORMALS["normal"][0]))
    missing = torch.full((SEEN,), torch.nan)
    with set_interaction_type("random"):
        assert plain.refresh() is None
        plain({("observation",): missing})
        monkeypatch.setattr(Distribution, "_validate_args", True)
        assert plain.refresh() is None
        with pytest.raises(ValueError, match="Expected parameter loc"):
            plain({("observation",): missing})
