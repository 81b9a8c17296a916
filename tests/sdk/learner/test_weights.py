"""Weights: how often they are sent, to which workers, and in which form."""

from collections.abc import Callable
from itertools import islice
from typing import Any

import pytest
import torch
from tensordict import TensorDict, TensorDictParams
from tests.sdk.counting import OPTIONS, VERSION
from tests.sdk.places import Collect
from torch import Tensor, nn

from rollfleet import ReplayBuffer
from rollfleet.errors import JobInvalid, NoWeights, PolicyInvalid, WeightMismatch
from rollfleet.rollout.trajectory_ids import split
from rollfleet.schemes import Trained, Whole
from rollfleet.testing import CountingEnv
from rollfleet.weights.layout import WeightLayout


class Constant(nn.Module):
    """Takes the action given by its weight plus a buffer, and puts the weight into the batch, as `shown`."""

    def __init__(self, action: float = 0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(float(action)))
        self.register_buffer("shift", torch.zeros(()))

    shift: Tensor

    def forward(self, observation: Tensor) -> dict[str, Tensor]:
        shown = (self.weight.detach() + self.shift).expand(len(observation)).clone()
        return {"action": shown.round().long().clip(0, 1), "shown": shown}


def set_to(policy: nn.Module, action: float) -> None:
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.fill_(action)


def shown_by_worker(batch: Any) -> dict[int, set[float]]:
    """Return what the policy of each worker put into the batch."""
    shown: dict[int, set[float]] = {}
    for row in batch:
        shown.setdefault(split(int(row["collector", "traj_ids"][0]))[0], set()).update(row["shown"].tolist())
    return shown


def everyone(collect: Collect, shown: float) -> dict[int, set[float]]:
    return {worker: {shown} for worker in range(collect.workers)}


@pytest.mark.parametrize("interval", [0, 1, 3])
def test_each_version_names_the_same_weights_in_every_place(collect: Collect, interval: int) -> None:
    """In this process the learner's own module acts only where each batch has a version of its own."""
    policy = Constant(0)
    collector = collect("CartPole-v1", policy, weights_interval=interval, **OPTIONS)
    acted: dict[int, set[float]] = {}
    for number, batch in enumerate(islice(collector, 7), 1):
        (version,) = batch[VERSION].unique().tolist()
        acted.setdefault(version, set()).update(batch["shown"].flatten().tolist())
        set_to(policy, number)
    sent = range(0, 7, interval) if interval else [0]
    assert acted == {version: {float(number)} for version, number in enumerate(sent, 1)}


@pytest.mark.parametrize("interval", [0, 1])
def test_a_version_names_one_set_of_weights_while_another_thread_trains(collect: Collect, interval: int) -> None:
    policy, buffer = Constant(0), ReplayBuffer(100_000)
    collector = collect("CartPole-v1", policy, replay_buffer=buffer, weights_interval=interval, **OPTIONS)
    collector.start()
    sent: dict[int, set[float]] = {}
    while buffer.write_count < 40 * 16:
        weight = len(sent) % 7
        set_to(policy, weight)
        version = collector.update_policy_weights_()
        assert version > max(sent, default=0)
        sent[version] = {float(weight)}
    collector.async_shutdown()
    frames = TensorDict(buffer.state_dict()["frames"], batch_size=[len(buffer)])
    acted: dict[int, set[float]] = {}
    for version, shown in zip(frames[VERSION].tolist(), frames["shown"].tolist(), strict=True):
        acted.setdefault(version, set()).add(shown)
    assert all(len(weights) == 1 for weights in acted.values())
    assert len(acted) > 1
    assert all(acted[version] == sent[version] for version in acted.keys() & sent.keys())


def test_in_mode_async_batches_older_than_max_lag_are_dropped_and_counted(apart: Collect) -> None:
    policy = Constant(1)
    collector = apart("CartPole-v1", policy, mode="async", weights_interval=0, max_lag=0, **OPTIONS)
    for number in range(1, 6):
        set_to(policy, number)
        assert collector.update_policy_weights_() == number
        for batch in islice(collector, 3):
            assert (batch[VERSION] == number).all()
            assert (batch["shown"] == number).all()
    assert collector.stats().stale > 0


FORMS: list[Callable[[Constant], dict[str, Any]]] = [
    lambda source: {"policy_or_weights": source},
    lambda source: {"policy": source},
    lambda source: {"policy_or_weights": source.state_dict()},
    lambda source: {"weights": source.state_dict()},
    lambda source: {"weights": TensorDict(source.state_dict())},
    lambda source: {"policy_or_weights": TensorDict.from_module(source)},
    lambda source: {"weights": TensorDictParams(TensorDict.from_module(source))},
]


def test_weights_come_from_a_module_a_dict_or_a_tensordict(collect: Collect) -> None:
    collector = collect("CartPole-v1", Constant(0), weights_interval=0, **OPTIONS)
    for number, form in enumerate(FORMS):
        source = Constant(number)
        source.shift.fill_(3.0)
        collector.update_policy_weights_(**form(source))
        assert shown_by_worker(next(collector)) == everyone(collect, 3.0 + number)


def test_weights_that_do_not_fit_name_the_parameter(collect: Collect) -> None:
    collector = collect("CartPole-v1", Constant(0), weights_interval=0, **OPTIONS)
    next(collector)
    with pytest.raises(WeightMismatch, match=r"weight: it was float32 \[\] .*now float32 \[2\]"):
        collector.update_policy_weights_({"weight": torch.zeros(2), "shift": torch.zeros(())})
    with pytest.raises(WeightMismatch, match="shift"):
        collector.update_policy_weights_({"weight": torch.zeros(())})
    assert shown_by_worker(next(collector)) == everyone(collect, 0.0)


def test_weights_that_fit_follow_first_ones_that_were_refused(here: Collect) -> None:
    collector = here("CartPole-v1", Constant(0), weights_interval=0, **OPTIONS)
    with pytest.raises(WeightMismatch, match="weight"):
        collector.update_policy_weights_({"weight": torch.zeros(2), "shift": torch.zeros(())})
    collector.update_policy_weights_(Constant(5))
    assert shown_by_worker(next(collector)) == everyone(here, 5.0)


def test_worker_ids_alone_get_the_weights(apart: Collect) -> None:
    """The wrong worker was updated in pytorch/rl#3000."""
    collector = apart("CartPole-v1", Constant(0), weights_interval=0, **OPTIONS)
    next(collector)
    collector.wait_for_version(1, timeout_s=20)  # the heartbeat that says so may come after the batch
    assert collector.update_policy_weights_(Constant(5), worker_ids=1) == 2
    collector.wait_for_version(2, timeout_s=20)
    assert collector.versions() == {0: 1, 1: 2}
    assert shown_by_worker(next(collector)) == {0: {0.0}, 1: {5.0}}
    collector.update_policy_weights_(Constant(6), worker_ids=[0])
    batch = next(collector)
    assert shown_by_worker(batch) == {0: {6.0}, 1: {5.0}}
    assert batch[VERSION][:, 0].tolist() == [3, 3, 2, 2]
    collector.wait_for_version(3, timeout_s=20)
    assert collector.versions() == {0: 3, 1: 2}
    collector.update_policy_weights_(Constant(7))
    assert shown_by_worker(next(collector)) == {0: {7.0}, 1: {7.0}}


@pytest.mark.parametrize(("interval", "shown"), [(0, [(7, 0), (7, 0)]), (1, [(7, 0), (1, 1)])])
def test_weights_for_one_worker_leave_no_other_without_the_policy(
    apart: Collect, interval: int, shown: list[tuple[float, float]]
) -> None:
    """Also as the first ones. They do not count as the policy that is due after each batch."""
    policy = Constant(0)
    collector = apart("CartPole-v1", policy, weights_interval=interval, **OPTIONS)
    for number, expected in enumerate(shown, 1):
        collector.update_policy_weights_(Constant(7), worker_ids=[0])
        assert shown_by_worker(next(collector)) == {worker: {each} for worker, each in enumerate(expected)}
        set_to(policy, number)


def test_a_restored_collector_acts_on_its_policy_at_once_also_with_interval_0(collect: Collect) -> None:
    first = collect("CartPole-v1", Constant(1), weights_interval=0, **OPTIONS)
    next(first)
    state = first.state_dict()
    again = collect("CartPole-v1", Constant(2), weights_interval=0, **OPTIONS)
    again.load_state_dict(state)
    batch = next(again)
    assert shown_by_worker(batch) == everyone(collect, 2.0)
    assert (batch[VERSION] == 2).all()
    assert (next(again)[VERSION] == 2).all()


class Two(nn.Module):
    """Puts `10 * high + low` into the batch; `high` is frozen. It is two models, or one of two parts."""

    def __init__(self, high: float = 0, low: float = 0, *, models: bool = True) -> None:
        super().__init__()
        parts = {"high": Constant(high).requires_grad_(False), "low": Constant(low)}
        self.parts, self.models = parts, nn.ModuleDict(parts) if models else None
        if not models:
            self.one = nn.ModuleDict(parts)

    def forward(self, observation: Tensor) -> dict[str, Tensor]:
        shown = 10 * self.parts["high"](observation)["shown"] + self.parts["low"](observation)["shown"]
        return {"action": torch.zeros(len(observation), dtype=torch.int64), "shown": shown}


def test_model_id_names_the_updated_model_and_weights_dict_updates_several_in_one_version(collect: Collect) -> None:
    collector = collect("CartPole-v1", Two(), weights_interval=0, **OPTIONS)
    assert shown_by_worker(next(collector)) == everyone(collect, 0.0)
    collector.update_policy_weights_(Constant(3), model_id="low")
    assert shown_by_worker(next(collector)) == everyone(collect, 3.0)
    collector.update_policy_weights_(Constant(4), model_id="high")
    assert shown_by_worker(next(collector)) == everyone(collect, 43.0)
    version = collector.update_policy_weights_(weights_dict={"high": Constant(1), "low": Constant(2).state_dict()})
    assert version == 4
    batch = next(collector)
    assert shown_by_worker(batch) == everyone(collect, 12.0)
    assert (batch[VERSION] == 4).all()


@pytest.mark.parametrize(
    ("weights", "keywords", "error", "message"),
    [
        (Two(), {"policy": Two()}, JobInvalid, "`policy_or_weights` and `policy` are given at once; write one of them"),
        (None, {"weights": {}, "policy": Two()}, JobInvalid, "`weights` and `policy` are given at once"),
        (None, {"weights": Two()}, JobInvalid, "`weights` are a dict .* of tensors; write `policy=` for a Two"),
        (None, {"policy": TensorDict()}, JobInvalid, "`policy` is a module; write `weights=` for a TensorDict"),
        (None, {"policy": Two(), "weights_dict": {}}, JobInvalid, "`weights_dict` names models and their weights"),
        (None, {"model_id": "low", "weights_dict": {}}, JobInvalid, "`weights_dict` names models and their weights"),
        (None, {"model_id": "low"}, JobInvalid, "`model_id='low'` needs the weights of that model"),
        (None, {"weights_dict": {"middle": Constant()}}, WeightMismatch, "no model 'middle'; it has high, low"),
        (None, {"weights_dict": {"a.b": Constant()}}, WeightMismatch, "'a.b' is not a valid name of a model"),
        ({}, {}, NoWeights, "no parameters or buffers"),
        (None, {"worker_ids": 9}, JobInvalid, "there is no worker 9; the workers are"),
    ],
)
def test_wrong_weights_and_contradictory_arguments_are_refused_and_sent_to_no_one(
    here: Collect, weights: Any, keywords: dict[str, Any], error: type[Exception], message: str
) -> None:
    collector = here("CartPole-v1", Two(), weights_interval=0, **OPTIONS)
    with pytest.raises(error, match=message):
        collector.update_policy_weights_(weights, **keywords)
    assert collector.version == 0


def test_a_scheme_decides_which_weights_act_in_every_place(collect: Collect) -> None:
    collector = collect("CartPole-v1", Constant(1.001953125), weight_scheme=Whole("bfloat16"), **OPTIONS)
    assert shown_by_worker(next(collector)) == everyone(collect, 1.0)


@pytest.mark.parametrize("models", [False, True])
@pytest.mark.parametrize(("scheme", "shown"), [(Whole(), 53.0), (Trained(), 13.0)])
def test_a_scheme_selects_the_weights_that_travel(collect: Collect, scheme: Any, shown: float, models: bool) -> None:
    collector = collect(
        "CartPole-v1", policy_factory=lambda *_: Two(1, 2, models=models), weight_scheme=scheme, **OPTIONS
    )
    assert shown_by_worker(next(collector)) == everyone(collect, 12.0)
    collector.update_policy_weights_(Two(5, 3, models=models))
    assert shown_by_worker(next(collector)) == everyone(collect, shown)


@pytest.mark.parametrize("form", ["none", "module", "dict", "model_id", "weights_dict"])
def test_update_accepts_a_whole_state_dict_under_a_partial_scheme(apart: Collect, form: str) -> None:
    policy, other = (Two(*shown, models=form in ("model_id", "weights_dict")) for shown in ((1, 2), (5, 3)))
    collector = apart("CartPole-v1", policy, weight_scheme=Trained(), weights_interval=0, **OPTIONS)
    assert shown_by_worker(next(collector)) == everyone(apart, 12.0)
    for part in (policy, other):
        set_to(part, 4)
    each: dict[str, dict[str, Any]] = {
        "none": {},
        "module": {"policy": other},
        "dict": {"weights": other.state_dict()},
        "model_id": {"policy": other.parts["low"], "model_id": "low"},
        "weights_dict": {"weights_dict": other.parts},
    }
    collector.update_policy_weights_(**each[form])
    assert shown_by_worker(next(collector)) == everyone(apart, 14.0)


class Negated(Whole):
    """A user's scheme: weights travel with the opposite sign."""

    def layout(self, models: Any) -> Any:
        return NegatedLayout(models, self.precision)


class NegatedLayout(WeightLayout):
    """Changes the bytes, and does not change them back."""

    def snapshot(self, models: Any, into: Any = None) -> Any:
        negated = {name: {key: -value for key, value in model.items()} for name, model in models.items()}
        return super().snapshot(negated, into)


def test_a_users_scheme_writes_the_bytes(collect: Collect) -> None:
    factory: dict[str, Any] = {"policy_factory": lambda *_: Constant(1), "weight_scheme": Negated()}
    collector = collect("CartPole-v1", **factory, **OPTIONS)
    collector.update_policy_weights_(Constant(5))
    assert shown_by_worker(next(collector)) == everyone(collect, -5.0)


def test_a_policy_without_weights_runs_at_version_0(collect: Collect) -> None:
    collector = collect("CartPole-v1", lambda seen: torch.zeros(len(seen), dtype=torch.int64), **OPTIONS)
    assert int(next(collector)[VERSION].unique()) == 0
    with pytest.raises(NoWeights):
        collector.update_policy_weights_()


class Silent(Constant):
    """Returns actions alone: no output shows that its weights are NaN."""

    def forward(self, observation: Tensor) -> Any:
        return super().forward(observation)["action"]


def test_weights_with_nan_are_one_warning_and_each_version_counts(
    collect: Collect, caplog: pytest.LogCaptureFixture
) -> None:
    policy = Silent()
    policy.shift.fill_(-torch.inf)  # as in a mask
    collector = collect(CountingEnv, policy, **OPTIONS)
    next(collector)
    assert collector.stats().non_finite == 0
    set_to(policy, torch.nan)
    list(islice(collector, 2))
    assert collector.stats().non_finite == 2
    (found,) = (each.getMessage() for each in caplog.records if each.name == "rollfleet.learner.broadcast")
    assert found.startswith("version 2 of the weights: weight has NaN: ")


def test_weights_of_float8_are_looked_at(collect: Collect) -> None:
    policy = Silent()
    policy.scale = nn.Parameter(torch.ones(2).to(torch.float8_e4m3fn), requires_grad=False)
    collector = collect(CountingEnv, policy, **OPTIONS)
    next(collector)
    policy.get_parameter("scale").copy_(torch.full((2,), torch.nan).to(torch.float8_e4m3fn))
    next(collector)
    assert collector.stats().non_finite == 1


def test_weights_with_nan_are_not_sent_if_that_is_an_error(collect: Collect) -> None:
    policy = Silent()
    collector = collect(CountingEnv, policy, non_finite="error", **OPTIONS)
    next(collector)
    set_to(policy, torch.nan)
    for send in (collector.update_policy_weights_, lambda: next(collector)):
        with pytest.raises(PolicyInvalid, match="version 2 of the weights: weight has NaN, and `non_finite` is an"):
            send()
    set_to(policy, 1.0)
    next(collector)
    assert collector.version == 2
