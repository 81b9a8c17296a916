"""Weight schemes: the built-in ones, and a user's own."""

import pytest
import torch
from torch import nn

from rollfleet.errors import JobInvalid
from rollfleet.schemes import Trained, Whole, scheme_of
from rollfleet.weights.models import models_of, named_states
from rollfleet_api.job import Precision, WeightsSpec


class TwoModels:
    def __init__(self) -> None:
        self.models = {"body": nn.Linear(4, 3), "head": nn.Linear(3, 2)}

    def __call__(self, observation: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.models["head"](self.models["body"](observation))
        return logits.argmax(-1)


def frozen_body() -> nn.Sequential:
    policy = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    policy[0].requires_grad_(False)
    return policy


def test_whole_sends_every_parameter_and_buffer() -> None:
    policy = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    assert set(Whole().select(policy)["policy"]) == set(policy.state_dict())


def test_trained_sends_only_trainable_weights_and_keeps_frozen_ones() -> None:
    learner, worker = frozen_body(), frozen_body()
    compiled = torch.compile(worker, backend="eager")
    theirs, ours = Trained().select(learner), Trained().select(compiled)
    assert set(theirs["policy"]) == {"1.weight", "1.bias"}
    layout = Trained().layout(theirs)
    frozen = worker.get_parameter("0.weight").clone()
    layout.load(layout.snapshot(theirs).data, ours)
    assert torch.equal(worker.get_parameter("1.weight"), learner.get_parameter("1.weight"))
    assert torch.equal(worker.get_parameter("0.weight"), frozen)
    assert layout.total_bytes < Whole().layout(Whole().select(learner)).total_bytes


def test_a_job_names_a_scheme() -> None:
    assert scheme_of(WeightsSpec(scheme="rollfleet.schemes:Trained", precision=Precision.BFLOAT16)) == Trained(
        Precision.BFLOAT16
    )
    with pytest.raises(JobInvalid, match=r"weights\.scheme 'rollfleet\.schemes:Nothing'"):
        scheme_of(WeightsSpec(scheme="rollfleet.schemes:Nothing"))


def test_models_of_a_policy_are_distinguished_by_name() -> None:
    policy = TwoModels()
    assert {name: set(state) for name, state in models_of(policy).items()} == {
        "body": {"weight", "bias"},
        "head": {"weight", "bias"},
    }
    assert models_of(print) == {"policy": {}}
    named = named_states(nn.Linear(3, 2), "head")
    assert named is not None
    assert set(named) == {"head"}
    with pytest.raises(JobInvalid, match="weights_dict"):
        named_states(nn.Linear(3, 2), None, {"head": nn.Linear(3, 2)})
    with pytest.raises(JobInvalid, match="needs the weights"):
        named_states(None, "head")
