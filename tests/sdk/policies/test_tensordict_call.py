"""Policies that take a TensorDict: which ones, what they read, and the state that they keep in it."""

from typing import Any

import pytest
import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModule, TensorDictModuleBase
from tests.sdk.rollouts import POLES, always_0, collected, rollout_of
from torch import Tensor, nn

from rollfleet.data.batch import to_batch
from rollfleet.envs.factory import VectorEnv
from rollfleet.errors import PolicyInvalid
from rollfleet.policies.tensordict_call import takes_tensordict
from rollfleet.rollout.rollout import Rollout
from rollfleet.rollout.seeding import Seeds
from rollfleet.rollout.trajectory_ids import TrajectoryIds

ENVS = 3


def rolling(policy: Any, env: VectorEnv | None = None, **options: Any) -> Rollout:
    return rollout_of(POLES["built"]() if env is None else env, policy, steps=23, **options)


def batch_of(policy: Any, env: VectorEnv | None = None, *, fragments: int = 4, **options: Any) -> TensorDict:
    return collected(rolling(policy, env, **options), fragments)


class Filling(nn.Module):
    def forward(self, tensordict: Any) -> Any:
        return tensordict.set("action", always_0(tensordict["observation"])).set("twice", 2 * tensordict["observation"])


class Short:
    def __call__(self, td: Any) -> Any:
        return td.update({"action": always_0(td["observation"]), "twice": 2 * td["observation"]})


def annotated(data: TensorDictBase) -> TensorDictBase:
    return TensorDict({"action": always_0(data["observation"]), "twice": 2 * data["observation"]}, data.batch_size)


def annotated_in_words(data: "TensorDict") -> "TensorDict":
    return data.set("action", always_0(data["observation"])).set("twice", 2 * data["observation"])


@pytest.mark.parametrize("policy", [Filling(), Short(), annotated, annotated_in_words], ids=range(4))
def test_a_policy_that_takes_a_tensordict_by_its_signature_gets_one(policy: Any) -> None:
    batch = batch_of(policy)
    assert torch.equal(batch["twice"], 2 * batch["observation"])
    assert set(batch.keys()) == {"observation", "action", "twice", "next", "collector", "done", "terminated"} | {
        "truncated"
    }


class Compiled(nn.Module):
    """Stands for the result of `torch.compile`, which keeps the module under this name."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self._orig_mod = module


MODULE = TensorDictModule(always_0, in_keys=["observation"], out_keys=["action"])


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (MODULE, True),
        (Compiled(MODULE), True),
        (lambda td: td, True),
        (lambda tensordict: tensordict, True),
        (lambda observation: observation, False),
        (lambda td, state: td, False),
        (nn.Linear(4, 2), False),
        (torch.argmax, False),
        (print, False),
    ],
    ids=range(9),
)
def test_policies_are_recognised_by_class_or_signature(policy: Any, expected: bool) -> None:
    assert takes_tensordict(policy) is expected


def test_a_policy_that_replaces_its_input_is_refused() -> None:
    with pytest.raises(PolicyInvalid, match="returned 'observation', which is reserved in a batch"):
        rolling(
            lambda td: td.update({"action": always_0(td["observation"]), "observation": 2 * td["observation"]})
        ).collect(version=0)


@pytest.mark.parametrize("mode", POLES)
def test_a_module_can_read_step_count_and_is_init(mode: str) -> None:
    def act(observation: Tensor, count: Tensor, is_init: Tensor) -> tuple[Tensor, ...]:
        return always_0(observation), count.clone(), is_init.clone()

    keys = ["observation", "step_count", "is_init"]
    batch = batch_of(TensorDictModule(act, keys, ["action", "counted", "started"]), POLES[mode]())
    assert batch["next", "done"].any()
    assert batch["counted"].dtype == torch.int64
    assert torch.equal(batch["counted"], batch["step_count"])  # the module read it, and the batch records it
    assert torch.equal(batch["started"], batch["step_count"] == 0)


def test_a_callable_can_read_them_too() -> None:
    def policy(td: Any) -> Any:
        return td.update({"action": always_0(td["observation"]), "counted": td["step_count"] + td["is_init"]})

    batch = batch_of(policy, step_count=True)
    assert torch.equal(batch["counted"], batch["step_count"].clamp(min=1))
    assert "is_init" not in set(batch.keys())


class Drifting(TensorDictModuleBase):  # type: ignore[misc]
    """Reads its own outputs of the step before, under keys that are not in `in_keys`: as TorchRL's noise does."""

    def __init__(self) -> None:
        super().__init__()
        self.in_keys, self.out_keys = ["observation"], ["action", "steps", "all_steps", "_private"]
        self.is_init_key = "is_init"

    def forward(self, td: TensorDictBase) -> TensorDictBase:
        none = torch.zeros(len(td), 1, dtype=torch.int64)
        private = td.get("_private", none) + 1
        steps = torch.where(td["is_init"], 0, td.get("steps", none)) + 1
        return td.update(
            {"action": always_0(td["observation"]), "steps": steps, "all_steps": private.clone(), "_private": private}
        )


@pytest.mark.parametrize("mode", POLES)
def test_outputs_at_the_root_are_there_at_the_next_step(mode: str) -> None:
    batch = batch_of(Drifting(), POLES[mode](), step_count=True)
    assert batch["next", "done"].any()
    assert torch.equal(batch["steps"], batch["step_count"] + 1)  # restarted by the policy, at `is_init`
    if mode != "next-step":  # there, steps that reset an environment are no frames
        assert torch.equal(batch["all_steps"].squeeze(-1), torch.arange(1, 4 * 23 + 1).expand(ENVS, -1))
    assert torch.equal(batch["is_init"], batch["step_count"] == 0)


def test_such_a_state_starts_over_with_a_seed() -> None:
    rollout = rolling(Drifting())
    rollout.collect(version=0)
    rollout.reseed(Seeds.derive(1, 0, 0, ENVS), TrajectoryIds(0, 0))
    assert (to_batch(rollout.collect(version=0))["all_steps"][:, 0] == 1).all()


def test_random_actions_leave_such_a_state_unchanged() -> None:
    rollout = rolling(Drifting())
    rollout.collect(version=0, random_actions=True)
    assert (to_batch(rollout.collect(version=0))["all_steps"][:, 0] == 1).all()
    rollout.collect(version=0, random_actions=True)
    assert (to_batch(rollout.collect(version=0))["all_steps"][:, 0] == 24).all()


class Counting(TensorDictModule):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__(self._act, in_keys=["observation", "age"], out_keys=["action", "age"])

    def initial_state(self, num_envs: int) -> dict[str, Tensor]:
        return {"age": torch.full((num_envs, 2), 7)}

    @staticmethod
    def _act(observation: Tensor, age: Tensor) -> tuple[Tensor, Tensor]:
        return always_0(observation), age + 1


def test_such_a_state_with_an_initial_value_has_it_in_each_episode() -> None:
    batch = batch_of(Counting(), step_count=True)
    assert batch["next", "done"].any()
    assert torch.equal(batch["age"], (batch["step_count"] + 8).expand(-1, -1, 2))


def test_a_state_without_value_is_missing_at_the_first_call() -> None:
    module = TensorDictModule(lambda o, h: (always_0(o), h + 1), in_keys=["observation", "h"], out_keys=["action", "h"])
    with pytest.raises(PolicyInvalid, match=r"(?s)failed at its first call.*inputs are None: \{'h'\}"):
        rolling(module).collect(version=0)


@pytest.mark.parametrize("trajs_per_batch", [0, 3])
def test_a_private_hidden_state_is_carried_and_not_in_batches(trajs_per_batch: int) -> None:
    class Hiding(TensorDictModule):  # type: ignore[misc]
        def initial_state(self, num_envs: int) -> dict[str, Tensor]:
            return {"_age": torch.zeros(num_envs, 1).long()}

    policy = Hiding(
        lambda o, age: (always_0(o), age + 0, age + 1), ["observation", "_age"], ["action", "x", ("next", "_age")]
    )
    batch = batch_of(policy, fragments=1 if trajs_per_batch else 4, step_count=True, trajs_per_batch=trajs_per_batch)
    assert batch["next", "done"].any()
    assert torch.equal(batch["x"], batch["step_count"])
    assert "_age" not in {*batch.keys(), *batch["next"].keys()}


@pytest.mark.parametrize("kind", ["tensordict", "dict"])
def test_private_outputs_are_not_in_batches(kind: str) -> None:
    def outputs(observation: Tensor) -> dict[str, Any]:
        private = {"_own": observation, "group": {"_own": observation, "x": observation}, "_any": {"a": observation}}
        return {"action": always_0(observation), "x": observation, **private}

    policy = outputs if kind == "dict" else (lambda td: td.update(outputs(td["observation"])))
    keys = {key for key in batch_of(policy).keys(True, True) if key[0] not in ("next", "collector")}
    assert keys == {"observation", "action", "x", ("group", "x"), "done", "terminated", "truncated"}
