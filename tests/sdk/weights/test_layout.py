"""Weights as bytes: a worker's module gets the values of the learner's module, with one copy each way."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tensordict import TensorDict
from torch import Tensor, nn

from rollfleet.errors import WeightMismatch
from rollfleet.weights.layout import ALIGNMENT_BYTES, POLICY, State, WeightLayout, state_of
from rollfleet_api.job import Precision
from rollfleet_api.messages import Parameter

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
OTHERS = [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.complex64, torch.complex128]


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    """Generate tensors of any bits, dtype and shape: also without dimensions, without elements, transposed."""
    dtype = draw(st.sampled_from(FLOATS + OTHERS))
    shape = tuple(draw(st.lists(st.integers(0, 4), max_size=3)))
    nbytes = math.prod(shape) * dtype.itemsize
    raw = np.random.default_rng(draw(st.integers(0, 2**32))).integers(0, 256, max(nbytes, 16), np.uint8)[:nbytes]
    if dtype is torch.bool:
        raw = raw & 1
    tensor = torch.from_numpy(raw.copy()).view(dtype).view(shape) if nbytes else torch.empty(shape, dtype=dtype)
    transposed = draw(st.booleans())
    return tensor.transpose(0, -1) if transposed and shape else tensor


names = st.lists(st.text("abcxyz", min_size=1, max_size=5), max_size=6, unique=True)


@st.composite
def modules(draw: st.DrawFn) -> nn.Module:
    """Generate modules of parameters and buffers of every kind, in any order, some nested."""
    module = nn.Module()
    child = nn.Module()
    for name in draw(names):
        tensor, owner = draw(tensors()), draw(st.sampled_from((module, child)))
        if tensor.dtype in FLOATS and draw(st.booleans()):
            owner.register_parameter(name, nn.Parameter(tensor))
        else:
            owner.register_buffer(name, tensor)
    module.add_module("child_", child)
    return module


def states(module: nn.Module) -> dict[str, State]:
    return {POLICY: state_of(module)}


def bits(tensor: Tensor) -> bytes:
    return bytes(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy()) if tensor.numel() else b""


def copy_of(state: State) -> State:
    """Return a module with the same dtypes, shapes and strides, but other values."""
    return {name: torch.zeros_like(tensor) for name, tensor in state.items()}


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2, bias=False))


def moved(module: nn.Module) -> nn.Module:
    """Return a module after one batch, which changed its running mean, variance and count."""
    module(torch.randn(64, 4) * 5 + 3)
    return module


def sent(source: nn.Module, target: nn.Module, precision: Precision = Precision.FLOAT32) -> None:
    """Copy weights as a broadcast does, without the wire."""
    data = WeightLayout(states(source), precision).snapshot(states(source)).data
    WeightLayout(states(target), precision).load(data, states(target))


# Loaded weights equal the snapshot.


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


def test_buffers_of_a_normaliser_are_sent() -> None:
    learner, worker = moved(network()), network()
    sent(learner, worker)
    assert worker.state_dict()["1.num_batches_tracked"] == 1
    torch.testing.assert_close(worker.state_dict(), learner.state_dict(), rtol=0, atol=0)
    x = torch.randn(8, 4)
    assert torch.equal(worker.eval()(x), learner.eval()(x))


def test_a_compiled_module_has_the_weights_of_the_module() -> None:
    module = nn.Linear(3, 2)
    state = state_of(torch.compile(module, backend="eager"))
    assert list(state) == ["weight", "bias"]
    assert state["weight"].data_ptr() == module.weight.data_ptr()


def test_module_without_weights_has_no_bytes() -> None:
    layout = WeightLayout(states(nn.Tanh()))
    layout.load(layout.snapshot(states(nn.Tanh())).data, states(nn.Tanh()))
    assert (layout.parameters, layout.total_bytes) == ((), 0)


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


def test_bfloat16_halves_the_bytes() -> None:
    full, narrow = (WeightLayout({POLICY: {"w": torch.zeros(1024)}}, p).total_bytes for p in Precision)
    assert full == 2 * narrow


def test_tied_parameters_stay_tied() -> None:
    learner, worker = ([nn.Linear(3, 3), nn.Linear(3, 3)] for _ in range(2))
    for first, last in (learner, worker):
        last.weight = first.weight
    sent(nn.Sequential(*learner), nn.Sequential(*worker))
    assert worker[0].weight is worker[1].weight
    assert torch.equal(worker[1].weight, learner[1].weight)


def test_models_of_one_version_keep_their_own_values() -> None:
    models = {"actor": {"w": torch.ones(3)}, "critic": {"w": torch.full((3,), 2.0)}}
    layout = WeightLayout(models)
    targets = {name: copy_of(state) for name, state in models.items()}
    layout.load(layout.snapshot(models).data, targets)
    assert targets["actor"]["w"].tolist() == [1, 1, 1]
    assert targets["critic"]["w"].tolist() == [2, 2, 2]


# Targets of a load, and times of a snapshot.


def test_load_writes_in_place_so_that_all_holders_of_a_parameter_see_it() -> None:
    learner, worker = network(), network()
    held = dict(worker.named_parameters())
    before = {name: tensor.data_ptr() for name, tensor in worker.state_dict().items()}
    sent(learner, worker)
    assert {name: tensor.data_ptr() for name, tensor in worker.state_dict().items()} == before
    assert all(parameter is held[name] and parameter.requires_grad for name, parameter in worker.named_parameters())
    assert torch.equal(held["0.weight"], learner.state_dict()["0.weight"])


def test_load_writes_through_a_transposed_parameter() -> None:
    target = torch.zeros(3, 2).t()
    layout = WeightLayout({POLICY: {"w": target}})
    layout.load(layout.snapshot({POLICY: {"w": torch.arange(6.0).view(2, 3)}}).data, {POLICY: {"w": target}})
    assert target.tolist() == [[0, 1, 2], [3, 4, 5]]


def test_snapshot_is_not_touched_by_later_training() -> None:
    module = network()
    layout = WeightLayout(states(module))
    snapshot = layout.snapshot(states(module))
    before = snapshot.data.clone()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(1)
    moved(module)
    assert torch.equal(snapshot.data, before)
    assert not torch.equal(layout.snapshot(states(module)).data, before)


# Sources of weights.


def test_module_its_state_dict_and_its_tensordict_name_the_same_weights() -> None:
    module = network()
    sources = [module, module.state_dict(), TensorDict.from_module(module), TensorDict.from_module(module).data]
    for source in sources:
        state = state_of(source)
        assert {name: tensor.data_ptr() for name, tensor in state.items()} == {
            name: tensor.data_ptr() for name, tensor in module.state_dict().items()
        }
        assert not any(tensor.requires_grad for tensor in state.values())


class WithExtraState(nn.Linear):
    """A module whose state has more than tensors."""

    def get_extra_state(self) -> object:
        return {"calls": 3}


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (3, "from a module, a dict or a TensorDict, not from a int"),
        ([torch.zeros(1)], "not from a list"),
        ({"w": [1.0]}, "w: only dense tensors can be sent, this is a list"),
        ({"w": torch.eye(2).to_sparse()}, r"w: .* this is float32 \[2, 2\] \(sparse_coo\)"),
        ({"w": torch.zeros(2, device="meta")}, r"w: .* this is float32 \[2\] \(meta\)"),
        (WithExtraState(1, 1), "_extra_state: .* this is a dict"),
    ],
    ids=["number", "list", "list in a dict", "sparse", "meta", "extra state"],
)
def test_weights_that_cannot_be_sent_are_named(source: object, message: str) -> None:
    with pytest.raises(WeightMismatch, match=message):
        state_of(source)


# Mismatches are named.


def parameters_of(state: State, precision: Precision = Precision.FLOAT32) -> tuple[Parameter, ...]:
    return WeightLayout({POLICY: state}, precision).parameters


HERE = {"a": torch.zeros(2, 3), "b": torch.zeros(3)}


@pytest.mark.parametrize(
    ("theirs", "message"),
    [
        (HERE | {"c": torch.zeros(1)}, "c: the learner has it, the policy here does not"),
        ({"a": HERE["a"]}, "b: the policy here has it, the learner does not"),
        (HERE | {"b": torch.zeros(4)}, "b: the learner has float32 [4], the policy here has float32 [3]"),
        (HERE | {"b": torch.zeros(1, 3)}, "b: the learner has float32 [1, 3], the policy here has float32 [3]"),
        (HERE | {"a": torch.zeros(2, 3).int()}, "a: the learner has int32 [2, 3], the policy here has float32 [2, 3]"),
        ({"b": HERE["b"], "a": HERE["a"]}, "a: the learner has the same parameters in another order"),
        ({}, "a: the policy here has it, the learner does not"),
    ],
    ids=["more", "less", "size", "dimensions", "dtype", "order", "nothing"],
)
def test_a_different_parameter_is_named_with_both_sides_forms(theirs: State, message: str) -> None:
    layout = WeightLayout({POLICY: HERE})
    layout.check(layout.parameters)
    with pytest.raises(WeightMismatch) as error:
        layout.check(parameters_of(theirs))
    assert str(error.value).startswith(message)


def test_other_precision_is_named() -> None:
    with pytest.raises(WeightMismatch, match=r"^a: the learner has bfloat16 \[2, 3\], the policy here has float32"):
        WeightLayout({POLICY: HERE}).check(parameters_of(HERE, Precision.BFLOAT16))


def test_parameter_of_another_model_is_named_with_its_model() -> None:
    with pytest.raises(WeightMismatch, match=r"^critic\.a: the learner has it"):
        WeightLayout({POLICY: HERE}).check(WeightLayout({"critic": HERE}).parameters)


def test_a_repeated_parameter_is_named() -> None:
    layout = WeightLayout({POLICY: HERE})
    with pytest.raises(WeightMismatch, match=r"^a: .* twice"):
        layout.check((*layout.parameters, layout.parameters[0]))


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
