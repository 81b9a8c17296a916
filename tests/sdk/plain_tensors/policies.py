"""Policies of TorchRL's parts, composed by hypothesis."""

from collections.abc import Callable
from typing import Any

import torch
from hypothesis import strategies as st
from tensordict.nn import (
    AddStateIndependentNormalScale,
    InteractionType,
    NormalParamExtractor,
    ProbabilisticTensorDictModule,
    ProbabilisticTensorDictSequential,
    TensorDictModule,
    TensorDictSequential,
)
from tensordict.nn.distributions import OneHotCategorical as TensorDictsOneHot
from torch import distributions, nn
from torchrl import modules
from torchrl.data import Bounded, Categorical, OneHot
from torchrl.modules import MLP, ProbabilisticActor, SafeModule

SEEN, ACTED = 3, 2
BOX, SIDES = Bounded(-0.5, 2.0, (ACTED,)), OneHot(ACTED)


class Counting(nn.Module):
    """A network of a user's own, whose calls change and draw something."""

    def __init__(self, out: int) -> None:
        super().__init__()
        self.linear = nn.Linear(SEEN, out)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, value: torch.Tensor) -> Any:
        self.calls.add_(1)  # type: ignore[operator]
        return self.linear(value) * self.calls + torch.rand(())


def _hooked(out: int) -> nn.Module:
    net = nn.Sequential(nn.Linear(SEEN, 4), nn.ReLU(), nn.Linear(4, out))
    net[1].register_forward_hook(lambda module, args, output: output + torch.rand(()))
    return net


NETS: dict[str, Callable[[int], Any]] = {
    "mlp": lambda out: MLP(in_features=SEEN, out_features=out, num_cells=[5, 4], activation_class=nn.Tanh),
    "reshaped": lambda out: MLP(in_features=SEEN, out_features=(1, out), num_cells=[4]),
    "layers": lambda out: nn.Sequential(
        nn.Linear(SEEN, 17), nn.ReLU(True), nn.Sequential(nn.LayerNorm(17), nn.Linear(17, out))
    ),
    "drawing": lambda out: nn.Sequential(nn.Linear(SEEN, 4, bias=False), nn.ELU(), nn.Dropout(0.5), nn.Linear(4, out)),
    "counting": Counting,
    "hooked": _hooked,
    "function": lambda out: lambda value: value[..., :1].tanh().expand(*value.shape[:-1], out) * 1.5,
}

FLAT = [name for name in NETS if name != "reshaped"]
NORMALS: dict[str, tuple[type, dict[str, Any]]] = {
    "tanh": (modules.TanhNormal, {}),
    "tanh bounds": (modules.TanhNormal, {"low": -0.5, "high": torch.tensor([2.0, 3.0]), "tanh_loc": False}),
    "tanh trivial": (modules.TanhNormal, {"low": -torch.ones(ACTED), "high": torch.ones(ACTED), "event_dims": 1}),
    "tanh double": (modules.TanhNormal, {"low": torch.tensor(-2.0, dtype=torch.float64), "high": 2}),
    "tanh loc": (modules.TanhNormal, {"tanh_loc": True, "upscale": 2.0}),
    "tanh events": (modules.TanhNormal, {"event_dims": 0}),
    "independent": (modules.IndependentNormal, {"upscale": 3.0}),
    "normal": (distributions.Normal, {}),
    "checked": (distributions.Normal, {"validate_args": True}),
    "truncated": (modules.TruncatedNormal, {}),
}
CATEGORICALS = {
    "categorical": distributions.Categorical,
    "one-hot": modules.OneHotCategorical,
    "tensordict's": TensorDictsOneHot,
    "torch's": distributions.OneHotCategorical,
}
HOW = [*[InteractionType.RANDOM] * 6, *[InteractionType.DETERMINISTIC] * 3, *InteractionType]
"""Ways to act, the usual ones more often."""


def net(draw: Any, out: int, names: list[str] = FLAT) -> Any:
    return NETS[draw(st.sampled_from(names))](out)


def actor(draw: Any) -> Any:
    """A probabilistic actor, or a sequence of the same parts."""
    normal = draw(st.booleans())
    if normal:
        kind, given = NORMALS[draw(st.sampled_from(sorted(NORMALS)))]
        if draw(st.booleans()):
            whole: Any = nn.Sequential(nn.Linear(SEEN, ACTED), AddStateIndependentNormalScale(ACTED))
        else:
            whole = nn.Sequential(NETS["mlp"](2 * ACTED), NormalParamExtractor(scale_mapping="exp"))
        keys = ["loc", "scale"]
    elif draw(st.booleans()):
        kind, given, keys = CATEGORICALS[draw(st.sampled_from(sorted(CATEGORICALS)))], {}, ["logits"]
        whole = net(draw, ACTED)
    else:
        kind, given, keys = draw(st.sampled_from([modules.Delta, modules.TanhDelta])), {}, ["param"]
        whole = net(draw, ACTED)
    keywords: dict[str, Any] = {
        "distribution_class": kind,
        "distribution_kwargs": dict(given),
        "return_log_prob": draw(st.booleans()),
        "default_interaction_type": draw(st.sampled_from(HOW)),
        "generator": draw(st.sampled_from([None, None, None, 7])),
    }
    first = TensorDictModule(whole, ["observation"], keys)
    if draw(st.integers(0, 2)):
        return ProbabilisticActor(first, keys, spec=BOX, safe=normal and not draw(st.integers(0, 3)), **keywords)
    last = ProbabilisticTensorDictModule(keys, ["action"], **keywords)
    return ProbabilisticTensorDictSequential(first, last, return_composite=draw(st.booleans()))


def plain(draw: Any) -> Any:
    kind = draw(st.sampled_from([TensorDictModule, SafeModule, modules.Actor]))
    if kind is TensorDictModule:
        keywords = {"strict": draw(st.booleans()), "method": draw(st.sampled_from([None, "__call__"]))}
    else:
        keywords = {"spec": BOX, "safe": draw(st.booleans())}
    return kind(net(draw, ACTED), in_keys=["observation"], out_keys=["action"], **keywords)


def explored(draw: Any) -> Any:
    """An actor of continuous actions, and noise."""
    more = [
        lambda: modules.AdditiveGaussianModule(BOX, sigma_init=0.7, sigma_end=0.1, safe=draw(st.booleans())),
        lambda: modules.OrnsteinUhlenbeckProcessModule(BOX, sigma=0.5, safe=draw(st.booleans())),
        lambda: modules.TanhModule(in_keys=["action"], spec=BOX),
    ]
    return TensorDictSequential(
        plain(draw), *(each() for each in draw(st.lists(st.sampled_from(more), min_size=1, max_size=2)))
    )


def q_actor(draw: Any) -> Any:
    spec = draw(st.sampled_from([SIDES, Categorical(ACTED), OneHot(ACTED, dtype=torch.int64)]))
    mask = draw(st.sampled_from([None, None, "mask"]))
    value = modules.QValueActor(net(draw, ACTED), in_keys=["observation"], spec=spec, action_mask_key=mask)
    greedy = modules.EGreedyModule(
        draw(st.sampled_from([value.spec, spec])), eps_init=0.6, eps_end=0.1, action_mask_key=mask
    )
    return draw(st.sampled_from([value, TensorDictSequential(value, greedy)]))


def with_value(draw: Any) -> Any:
    shared = TensorDictModule(nn.Linear(SEEN, SEEN), ["observation"], ["hidden"])
    policy = actor(draw)
    for part in (policy, getattr(policy, "_det_part", None)):
        first = part and part.module[0]
        if first is not None:
            first.in_keys = ["hidden"]
    return modules.ActorValueOperator(shared, policy, modules.ValueOperator(nn.Linear(SEEN, 1), ["hidden"]))


def recurrent(draw: Any) -> Any:
    kind = draw(st.sampled_from([modules.LSTMModule, modules.GRUModule]))
    keywords: dict[str, Any] = (
        {"in_key": "observation", "out_key": "memory"}
        if kind is modules.LSTMModule
        else {"in_keys": ["observation", "state"], "out_keys": ["memory", ("next", "state")]}
    )
    memory = kind(SEEN, SEEN, num_layers=draw(st.integers(1, 2)), **keywords)
    return TensorDictSequential(memory, TensorDictModule(net(draw, ACTED), ["memory"], ["action"]))


def unusual(draw: Any) -> Any:
    """Forms of outputs and keys that are rare."""
    return draw(
        st.sampled_from(
            [
                TensorDictModule(
                    lambda value: {"action": value, "more": value + 1}, ["observation"], ["action", "more"]
                ),
                TensorDictModule(lambda value: value.numpy() + 1, ["observation"], ["action"]),
                TensorDictModule(lambda value: "text", ["observation"], ["action"]),
                TensorDictModule(lambda value: (value, value + 1), ["observation"], ["_", "action"]),
                TensorDictModule(lambda *, own: own * 2, {"own": "observation"}, ["action"]),
                TensorDictModule(
                    lambda value, none: value * (1 if none is None else 2), ["observation", "absent"], ["action"]
                ),
                TensorDictModule(
                    lambda value, factor: value * factor, ["observation"], ["action"], method_kwargs={"factor": 3}
                ),
                TensorDictModule(NETS["reshaped"](ACTED), ["observation"], ["action"]),
                TensorDictModule(lambda group: group["mask"] * 1.0, ["next"], ["action"]),
                TensorDictModule(lambda value: value + 1, [("next", "mask")], [("next", "more")]),
                TensorDictModule(lambda value: value + 1, ["observation"], [("next", "more")]),
                TensorDictSequential(
                    TensorDictModule(lambda value: (value, value + 1), ["observation"], ["z", "a"]),
                    TensorDictModule(lambda value: value + 1, ["a"], ["b"]),
                    selected_out_keys=["z", "b"],
                ),
                TensorDictSequential(
                    TensorDictModule(lambda value: value + 1, ["absent"], ["action"]),
                    plain(draw),
                    partial_tolerant=True,
                ),
                modules.RandomPolicy(BOX),
            ]
        )
    )


KINDS = [actor, plain, explored, q_actor, with_value, recurrent, unusual]


@st.composite
def policies(draw: Any) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(draw(st.integers(0, 3)))
        return draw(st.sampled_from(KINDS))(draw)
