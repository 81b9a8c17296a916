"""Policies with a hidden state: carried from step to step, recorded, and reset where an episode starts."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule, TensorDictSequential
from tests.sdk.rollout.recurrent_policy import HIDDEN, LANES, Recurrent
from tests.sdk.rollouts import POLES, always_0, collected, rollout_of
from torch import Tensor, nn

from rollfleet.data.batch import to_batch
from rollfleet.envs.factory import VectorEnv
from rollfleet.errors import PolicyInvalid


def batch_of(env: VectorEnv, policy: Callable[..., object], *, fragments: int = 6, **options: Any) -> TensorDict:
    return collected(rollout_of(env, policy, steps=23, **options), fragments)


@pytest.mark.parametrize("mode", POLES)
def test_replaying_a_sequence_reproduces_the_actions_of_its_batch(mode: str) -> None:
    policy = Recurrent()
    batch = batch_of(POLES[mode](), policy, is_init=True)
    assert batch["next", "done"].sum() > 8
    assert batch["recurrent", "state"].dtype == torch.float64
    policy.assert_replayed(batch, torch.zeros(LANES, HIDDEN).double())


def test_whole_trajectories_begin_with_the_initial_state() -> None:
    policy = Recurrent()
    batch = to_batch(rollout_of(POLES["built"](), policy, trajs_per_batch=5).collect(version=0))
    assert torch.equal(batch["recurrent", "state"][:, 0], policy.start.detach().expand(5, HIDDEN))


@pytest.mark.parametrize("mode", POLES)
def test_a_state_of_several_tensors_is_recorded_by_name_before_each_step(mode: str) -> None:
    batch = batch_of(POLES[mode](), Recurrent(names=True), step_count=True)
    assert set(batch["recurrent"].keys()) == set(batch["next", "recurrent"].keys()) == {"memory", "age"}
    assert batch["recurrent", "age"].dtype == torch.bfloat16
    assert torch.equal(batch["recurrent", "age"].long(), batch["step_count"].squeeze(-1))
    assert torch.equal(batch["next", "recurrent", "age"].long(), batch["step_count"].squeeze(-1) + 1)


class Pair(Recurrent):
    """Has a tuple as its state, like an LSTM."""

    def initial_state(self, num_envs: int) -> Any:
        return self.start.expand(num_envs, HIDDEN), torch.zeros(num_envs, 1)

    def forward(self, observation: Tensor, state: Any) -> tuple[dict[str, Tensor], Any]:
        assert isinstance(state, tuple)
        output, following = super().forward(observation, state[0])
        return output, (following, state[1] + 1)


def test_the_tensors_of_a_tuple_are_recorded_by_number() -> None:
    batch = batch_of(POLES["built"](), Pair(), step_count=True)
    assert set(batch["recurrent"].keys()) == {"0", "1"}
    assert torch.equal(batch["recurrent", "1"].long(), batch["step_count"])
    assert torch.equal(batch["recurrent", "0"], batch_of(POLES["built"](), Recurrent())["recurrent", "state"])


@pytest.mark.parametrize("mode", POLES)
def test_random_actions_do_not_change_the_hidden_state(mode: str) -> None:
    policy = Recurrent()
    rollout = rollout_of(POLES[mode](), policy, steps=9)
    rollout.collect(version=0)
    batch = to_batch(rollout.collect(version=0, random_actions=True))
    rollout.close()
    state, following = batch["recurrent", "state"], batch["next", "recurrent", "state"]
    goes_on = ~batch["next", "done"].squeeze(-1)
    assert torch.equal(following[goes_on], state[goes_on])
    assert (state != policy.start).any()


class Wrong(Recurrent):
    def __init__(self, initial: object, returned: Callable[[Any, Any], object]) -> None:
        super().__init__()
        self._initial, self._returned = initial, returned

    def initial_state(self, num_envs: int) -> Any:
        return self._initial

    def forward(self, observation: Tensor, state: Any) -> Any:
        return self._returned(torch.zeros(len(observation), dtype=torch.int64), state)


STATE = torch.zeros(LANES, 2)


@pytest.mark.parametrize(
    ("initial", "returned", "message"),
    [
        ("zero", lambda a, s: (a, s), "initial_state of the policy returned a str; return a tensor"),
        (
            torch.zeros(1, 2),
            lambda a, s: (a, s),
            r"initial state 'state' of the policy is \[1, 2\]; expected \[3, ...\]",
        ),
        ({"h": 1.0}, lambda a, s: (a, s), r"initial state 'h' of the policy is float"),
        (STATE, lambda a, s: a, r"must return a pair \(output, next state\), not a Tensor"),
        ({"h": STATE}, lambda a, s: (a, {"c": s["h"]}), r"next state of the policy is \['c'\]; expected \['h'\]"),
        (STATE, lambda a, s: (a, s.double()), r"next state 'state' is torch.float64 \[3, 2\]; expected torch.float32"),
        (STATE, lambda a, s: ({"action": a, "recurrent": s}, s), "returned 'recurrent', which is reserved in a batch"),
        (STATE, lambda a, s: ((a, a), s), "returned a tuple beside its next state; return a tensor of actions, or a"),
        (STATE, lambda a, s: (a, None), r"\('next', 'recurrent', 'state'\) of the policy is a NoneType; expected a "),
    ],
)
def test_an_invalid_hidden_state_is_refused(
    initial: object, returned: Callable[[Any, Any], object], message: str
) -> None:
    with pytest.raises(PolicyInvalid, match=message):
        rollout_of(POLES["built"](), Wrong(initial, returned)).collect(version=0)


class Remembering(TensorDictModule):  # type: ignore[misc]
    """Counts the frames of an episode in its own key."""

    def __init__(self) -> None:
        age = ("memory", "age")
        super().__init__(
            lambda o, age: (always_0(o), age + 1), in_keys=["observation", age], out_keys=["action", ("next", *age)]
        )

    def initial_state(self, num_envs: int) -> dict[tuple[str, ...], Tensor]:
        return {("memory", "age"): torch.full((num_envs, 1), 7)}


@pytest.mark.parametrize("mode", POLES)
def test_a_key_that_a_tensordict_module_reads_and_writes_under_next_is_carried(mode: str) -> None:
    batch = batch_of(POLES[mode](), Remembering(), step_count=True)
    assert torch.equal(batch["memory", "age"], 7 + batch["step_count"])
    assert torch.equal(batch["next", "memory", "age"], 8 + batch["step_count"])


def test_a_hidden_key_without_initial_value_is_refused() -> None:
    module = TensorDictModule(lambda o, h: (o, h), in_keys=["observation", "h"], out_keys=["action", ("next", "h")])
    with pytest.raises(PolicyInvalid, match=r"carries 'h' from step to step.*add initial_state"):
        rollout_of(POLES["built"](), module).collect(version=0)


@pytest.mark.parametrize("mode", POLES)
@pytest.mark.parametrize("kind", ["GRUModule", "LSTMModule"])
def test_torchrls_recurrent_modules_replay_their_batches(mode: str, kind: str) -> None:
    modules = pytest.importorskip("torchrl.modules")
    torch.manual_seed(0)
    hidden = ["h"] if kind == "GRUModule" else ["h", "c"]
    core = getattr(modules, kind)(
        input_size=4,
        hidden_size=HIDDEN,
        in_keys=["observation", *hidden],
        out_keys=["out", *(("next", h) for h in hidden)],
    )
    policy = TensorDictSequential(
        core,
        TensorDictModule(nn.Linear(HIDDEN, 2), in_keys=["out"], out_keys=["logits"]),
        TensorDictModule(lambda logits: logits.argmax(-1), in_keys=["logits"], out_keys=["action"]),
    )
    batch = batch_of(POLES[mode](), policy, fragments=4)
    assert batch["next", "done"].sum() > 4
    assert torch.equal(batch["is_init"].squeeze(-1)[:, 1:], batch["next", "done"].squeeze(-1)[:, :-1])
    for name in hidden:
        assert batch[name].shape == batch["next", name].shape == (LANES, 4 * 23, 1, HIDDEN)
        assert not batch[name][batch["is_init"].squeeze(-1)].any()
    with torch.no_grad(), modules.set_recurrent_mode(True):
        again = policy(batch.exclude("out", "logits", "action", "next"))
    torch.testing.assert_close(again["logits"], batch["logits"], rtol=1e-4, atol=1e-5)
