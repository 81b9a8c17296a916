"""Weight schemes: their names and precisions, the weights that they leave out, and the models that they select from."""

from typing import ClassVar

import pytest
from torch import nn

from rollfleet.errors import JobInvalid
from rollfleet.schemes import Trained, Whole, scheme_of
from rollfleet.weights.models import models_of
from rollfleet_api.job import Precision, WeightsSpec


def test_a_job_names_a_scheme() -> None:
    assert scheme_of(WeightsSpec(scheme="rollfleet.schemes:Trained", precision=Precision.BFLOAT16)) == Trained(
        Precision.BFLOAT16
    )
    with pytest.raises(JobInvalid, match=r"weights\.scheme 'rollfleet\.schemes:Nothing'"):
        scheme_of(WeightsSpec(scheme="rollfleet.schemes:Nothing"))


def test_an_unknown_precision_is_refused() -> None:
    with pytest.raises(JobInvalid, match=r"^precision: expected one of 'float32', 'bfloat16', got 'bf16'$"):
        Whole("bf16")


def test_frozen_weights_that_have_two_names_are_left_out() -> None:
    first, last = nn.Linear(3, 3), nn.Linear(3, 3)
    last.weight = first.weight
    first.weight.requires_grad_(False)
    (selected,) = Trained().select(nn.Sequential(first, last)).values()
    assert set(selected) == {"0.bias", "1.bias"}


def test_models_of_a_policy_may_be_in_any_mapping() -> None:
    class Policy:
        models: ClassVar = {"body": nn.Linear(4, 3), "head": nn.Linear(3, 2)}

    assert {name: set(state) for name, state in models_of(Policy()).items()} == {
        "body": {"weight", "bias"},
        "head": {"weight", "bias"},
    }


def test_a_warning_names_the_weights_that_no_model_of_a_policy_has() -> None:
    class Policy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.Linear(4, 3), nn.Linear(3, 2)
            self.models = {"body": self.body}

    with pytest.warns(UserWarning, match=r"^head\.weight, head\.bias: in none of the policy's `models`, so they are"):
        assert set(models_of(Policy())) == {"body"}
