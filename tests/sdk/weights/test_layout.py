"""Weights as bytes: a worker's module gets the values of the learner's module, with one copy each way."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tensordict import TensorDict
from tests.sdk.wire.tensors import bits, tensors
from torch import nn

from rollfleet.errors import WeightMismatch
from rollfleet.weights.layout import ALIGNMENT_BYTES, POLICY, State, WeightLayout, state_of
from rollfleet_api.job import Precision
from rollfleet_api.transfers import Parameter

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
OTHERS = [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.complex64, torch.complex128]


names = st.lists(st.text("abcxyz", min_size=1, max_size=5), max_size=6, unique=True)


@st.composite
def modules(draw: st.DrawFn) -> nn.Module:
    """Generate modules of parameters and buffers of every kind, in any order, some nested."""
    module = nn.Module()
    child = nn.Module()
    for name in draw(names):
        tensor, owner = draw(tensors(FLOATS + OTHERS)), draw(st.sampled_from((module, child)))
        if tensor.dtype in FLOATS and draw(st.booleans()):
            owner.register_parameter(name, nn.Parameter(tensor))
        else:
            owner.register_buffer(name, tensor)
    module.add_module("child_", child)
    return module


def states(module: nn.Module) -> dict[str, State]:
    return {POLICY: state_of(module)}


def copy_of(state: State) -> State:
    """Return a module with the same dtypes, shapes and strides, but other values."""
    return {name: torch.zeros_like(tensor) for name, tensor in state.items()}


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2, bias=False))


def sent(source: nn.Module, target: nn.Module) -> None:
    """Copy weights as a broadcast does, without the wire."""
    data = WeightLayout(states(source), Precision.FLOAT32).snapshot(states(source)).data
    WeightLayout(states(target), Precision.FLOAT32).load(data, states(target))


@given(modules())
def test_any_module_arrives_bit_for_bit(module: nn.Module) -> None:
    source = state_of(module)
    target = copy_of(source)
    layout = WeightLayout({POLICY: source})
    snapshot = layout.snapshot({POLICY: source})
    layout.load(snapshot.data, {POLICY: target})
    assert list(target) == list(module.state_dict())
    assert {name: bits(tensor) for name, tensor in target.items()} == {n: bits(t) for n, t in source.items()}


@given(modules(), st.sampled_from(Precision))
def test_a_layout_describes_its_bytes(module: nn.Module, precision: Precision) -> None:
    layout = WeightLayout(states(module), precision)
    snapshot = layout.snapshot(states(module))
    assert [parameter.name for parameter in snapshot.parameters] == list(module.state_dict())
    sizes = [math.prod(p.shape) * getattr(torch, p.dtype).itemsize for p in snapshot.parameters]
    assert sum(-(-size // ALIGNMENT_BYTES) * ALIGNMENT_BYTES for size in sizes) == layout.total_bytes
    assert (snapshot.data.numel(), snapshot.data.dtype) == (layout.total_bytes, torch.uint8)


@given(modules(), st.sampled_from(Precision))
def test_equal_weights_have_equal_bytes(module: nn.Module, precision: Precision) -> None:
    layout = WeightLayout(states(module), precision)
    used = torch.full((layout.total_bytes,), 255, dtype=torch.uint8)
    assert torch.equal(layout.snapshot(states(module)).data, layout.snapshot(states(module), used).data)


def test_bfloat16_narrows_only_float32_and_float64() -> None:
    module = nn.Module()
    for dtype in FLOATS + OTHERS:
        module.register_buffer("a_" + str(dtype).removeprefix("torch."), torch.tensor([1.0 + 2**-12, 3.0]).to(dtype))
    layout = WeightLayout(states(module), Precision.BFLOAT16)
    wire = {parameter.name: parameter.dtype for parameter in layout.parameters}
    assert wire == {name: "bfloat16" if name in ("a_float32", "a_float64") else name[2:] for name in wire}
    target = copy_of(state_of(module))
    layout.load(layout.snapshot(states(module)).data, {POLICY: target})
    for name, tensor in state_of(module).items():
        assert target[name].dtype == tensor.dtype
        expected = tensor.to(torch.bfloat16).to(tensor.dtype) if wire[name] != name[2:] else tensor
        assert torch.equal(target[name], expected)


def test_tied_parameters_stay_tied() -> None:
    learner, worker = ([nn.Linear(3, 3), nn.Linear(3, 3)] for _ in range(2))
    for first, last in (learner, worker):
        last.weight = first.weight
    sent(nn.Sequential(*learner), nn.Sequential(*worker))
    assert worker[0].weight is worker[1].weight
    assert torch.equal(worker[1].weight, learner[1].weight)


def test_load_writes_in_place_so_that_all_holders_of_a_parameter_see_it() -> None:
    learner, worker = network(), network()
    held = dict(worker.named_parameters())
    before = {name: tensor.data_ptr() for name, tensor in worker.state_dict().items()}
    sent(learner, worker)
    assert {name: tensor.data_ptr() for name, tensor in worker.state_dict().items()} == before
    assert all(parameter is held[name] and parameter.requires_grad for name, parameter in worker.named_parameters())
    assert torch.equal(held["0.weight"], learner.state_dict()["0.weight"])


def test_a_tensordict_of_nested_modules_names_the_weights_of_the_module() -> None:
    module = network()
    state = state_of(TensorDict.from_module(module))
    assert {name: bits(tensor) for name, tensor in state.items()} == {
        name: bits(tensor) for name, tensor in module.state_dict().items()
    }


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (3, "from a module, a dict or a TensorDict, not from a int"),
        ([torch.zeros(1)], "not from a list"),
        ({"w": [1.0]}, "w: only dense tensors can be sent, this is a list"),
        ({"w": torch.eye(2).to_sparse()}, r"w: .* this is float32 \[2, 2\] \(sparse_coo\)"),
        ({"w": torch.zeros(2, device="meta")}, r"w: .* this is float32 \[2\] \(meta\)"),
    ],
    ids=["number", "list", "list in a dict", "sparse", "meta"],
)
def test_weights_that_cannot_be_sent_are_named(source: object, message: str) -> None:
    with pytest.raises(WeightMismatch, match=message):
        state_of(source)


HERE = {"a": torch.zeros(2, 3), "b": torch.zeros(3)}


def of(state: State, precision: Precision = Precision.FLOAT32, model: str = POLICY) -> tuple[Parameter, ...]:
    return WeightLayout({model: state}, precision).parameters


@pytest.mark.parametrize(
    ("theirs", "message"),
    [
        (of(HERE | {"c": torch.zeros(1)}), "c: the learner has it, the policy here does not"),
        (of({"a": HERE["a"]}), "b: the policy here has it, the learner does not"),
        ((), "a: the policy here has it, the learner does not"),
        (of(HERE, model="critic"), "critic.a: the learner has it, the policy here does not"),
        (of(HERE | {"b": torch.zeros(4)}), "b: the learner has float32 [4], the policy here has float32 [3]"),
        (of(HERE | {"b": torch.zeros(1, 3)}), "b: the learner has float32 [1, 3], the policy here has float32 [3]"),
        (of(HERE | {"a": HERE["a"].int()}), "a: the learner has int32 [2, 3], the policy here has float32 [2, 3]"),
        (of(HERE, Precision.BFLOAT16), "a: the learner has bfloat16 [2, 3], the policy here has float32 [2, 3]"),
        (of(HERE)[::-1], "a: the learner has the same parameters in another order, or twice"),
        (of(HERE) + of(HERE)[:1], "a: the learner has the same parameters in another order, or twice"),
    ],
    ids=["more", "less", "nothing", "model", "size", "dimensions", "dtype", "precision", "order", "twice"],
)
def test_a_different_parameter_is_named_with_both_sides_forms(theirs: tuple[Parameter, ...], message: str) -> None:
    layout = WeightLayout({POLICY: HERE})
    layout.check(layout.parameters)
    with pytest.raises(WeightMismatch) as error:
        layout.check(theirs)
    assert str(error.value).startswith(message)


@pytest.mark.parametrize(
    ("later", "message"),
    [
        ({"a": HERE["a"]}, "b: it was in an earlier version and is missing now"),
        (HERE | {"c": torch.zeros(1)}, "c: it was not in an earlier version"),
        (HERE | {"b": torch.zeros(4)}, "b: it was float32 [3] in an earlier version, now float32 [4]"),
        (HERE | {"b": torch.zeros(3).double()}, "b: it was float32 [3] in an earlier version, now float64 [3]"),
    ],
    ids=["missing", "new", "shape", "dtype"],
)
def test_a_module_that_changed_after_its_first_version_is_refused(later: State, message: str) -> None:
    layout = WeightLayout({POLICY: HERE})
    for use in (layout.snapshot, lambda models: layout.load(torch.zeros(layout.total_bytes), models)):
        with pytest.raises(WeightMismatch) as error:
            use({POLICY: later})
        assert str(error.value).startswith(message)


@pytest.mark.parametrize("change", [-1, 1])
def test_bytes_of_another_length_are_not_loaded(change: int) -> None:
    layout, target = WeightLayout({POLICY: HERE}), copy_of(HERE)
    with pytest.raises(WeightMismatch, match=f"{48 + change} bytes of weights for a layout of 48"):
        layout.load(torch.ones(layout.total_bytes + change, dtype=torch.uint8), {POLICY: target})
    assert not any(tensor.any() for tensor in target.values())
