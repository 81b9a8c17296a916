"""Names of weight schemes, and the models that they select from."""

from typing import ClassVar

import pytest
from torch import nn

from rollfleet.errors import JobInvalid
from rollfleet.schemes import Trained, scheme_of
from rollfleet.weights.models import models_of
from rollfleet_api.job import Precision, WeightsSpec


def test_a_job_names_a_scheme() -> None:
    assert scheme_of(WeightsSpec(scheme="rollfleet.schemes:Trained", precision=Precision.BFLOAT16)) == Trained(
        Precision.BFLOAT16
    )
    with pytest.raises(JobInvalid, match=r"weights\.scheme 'rollfleet\.schemes:Nothing'"):
        scheme_of(WeightsSpec(scheme="rollfleet.schemes:Nothing"))


def test_models_of_a_policy_may_be_in_any_mapping() -> None:
    class Policy:
        models: ClassVar = {"body": nn.Linear(4, 3), "head": nn.Linear(3, 2)}

    assert {name: set(state) for name, state in models_of(Policy()).items()} == {
        "body": {"weight", "bias"},
        "head": {"weight", "bias"},
    }
