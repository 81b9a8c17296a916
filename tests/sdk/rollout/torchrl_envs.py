"""Environments of TorchRL, one of each kind that a batch may hold."""

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pettingzoo
import torch
from tensordict import NonTensorData, TensorDict
from torchrl.data import Categorical, Composite, NonTensor, Unbounded
from torchrl.envs import (
    ActionMask,
    CatFrames,
    CatTensors,
    ClipTransform,
    Compose,
    DoubleToFloat,
    EnvBase,
    GrayScale,
    GymEnv,
    InitTracker,
    NoopResetEnv,
    ObservationNorm,
    ParallelEnv,
    PendulumEnv,
    PettingZooWrapper,
    RandomTruncationTransform,
    RewardScaling,
    RewardSum,
    SerialEnv,
    StepCounter,
    TensorDictPrimer,
    TicTacToeEnv,
    ToTensorImage,
    TransformedEnv,
    UnsqueezeTransform,
    VecNormV2,
    VmasEnv,
)
from torchrl.testing.mocking_classes import (
    CountingBatchedEnv,
    DiscreteActionConvMockEnvNumpy,
    EnvWithDynamicSpec,
    HeterogeneousCountingEnv,
    MultiKeyCountingEnv,
    NestedCountingEnv,
)


def cartpole() -> Any:
    return GymEnv("CartPole-v1")


def counted() -> Any:
    """CartPole with the transforms that most programs of TorchRL have."""
    return TransformedEnv(cartpole(), Compose(InitTracker(), StepCounter(), RewardSum()))


def transformed() -> Any:
    return TransformedEnv(
        GymEnv("Pendulum-v1"),
        Compose(
            DoubleToFloat(),
            ObservationNorm(in_keys=["observation"], loc=0.5, scale=2.0),
            CatTensors(in_keys=["observation"], out_key="all_of_it", del_keys=False),
            UnsqueezeTransform(-2, in_keys=["all_of_it"]),
            RewardScaling(loc=0.0, scale=0.1),
            ClipTransform(in_keys=["reward"], low=-1.0, high=1.0),
            TensorDictPrimer(memory=Unbounded(shape=(3,))),
            StepCounter(max_steps=7),
            RewardSum(),
        ),
    )


def batched() -> Any:
    return CountingBatchedEnv(batch_size=[3], max_steps=torch.tensor([3, 4, 5]))


def vmas() -> Any:
    return TransformedEnv(
        VmasEnv("balance", num_envs=3, n_agents=2, max_steps=5, device="cpu", continuous_actions=True),
        RewardSum(in_keys=[("agents", "reward")], out_keys=[("agents", "episode_reward")]),
    )


def tag() -> Any:
    """Two groups of agents of different sizes, by PettingZoo."""
    from mpe2 import simple_tag_v3  # importing it warns

    return PettingZooWrapper(simple_tag_v3.parallel_env(max_cycles=5))


def turns() -> Any:
    """Agents that act in turns, with masks of their actions, by PettingZoo."""
    from pettingzoo.classic import tictactoe_v3

    return PettingZooWrapper(tictactoe_v3.env(), use_mask=True)


class Mortal(pettingzoo.ParallelEnv):  # type: ignore[misc]
    """Three agents, of which one dies after each second step."""

    metadata: ClassVar[dict[str, Any]] = {"name": "mortal"}

    def __init__(self) -> None:
        self.possible_agents = [f"agent_{index}" for index in range(3)]

    def observation_space(self, agent: str) -> gymnasium.Space[Any]:
        return gymnasium.spaces.Box(0.0, 100.0, (1,), np.float32)

    def action_space(self, agent: str) -> gymnasium.Space[Any]:
        return gymnasium.spaces.Discrete(2)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        self.agents, self._count = list(self.possible_agents), 0
        return self._of_all(self._seen()), self._of_all({})

    def step(self, actions: dict[str, int]) -> Any:
        self._count += 1
        dies = self.agents[-1] if self._count % 2 == 0 else None
        outcome = (
            self._of_all(self._seen()),
            {agent: float(self._count) for agent in self.agents},
            {agent: agent == dies for agent in self.agents},
            self._of_all(False),
            self._of_all({}),
        )
        self.agents = [agent for agent in self.agents if agent != dies]
        return outcome

    def _seen(self) -> Any:
        return np.full(1, self._count, np.float32)

    def _of_all(self, value: Any) -> dict[str, Any]:
        return dict.fromkeys(self.agents, value)


class Telling(EnvBase):  # type: ignore[misc]
    """An environment that observes text, in episodes of five frames."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_spec = Composite(text=NonTensor(example_data="0", shape=()))
        self.action_spec = Categorical(2)
        self.reward_spec = Unbounded((1,))

    def _reset(self, tensordict: Any = None, **_: Any) -> TensorDict:
        self._count = 0
        return TensorDict(text=NonTensorData("0 left"))

    def _step(self, tensordict: Any) -> TensorDict:
        self._count += 1
        done = torch.tensor([self._count == 5])
        text = NonTensorData(f"{self._count} {'right' if tensordict['action'] else 'left'}")
        return TensorDict(text=text, reward=torch.ones(1), done=done, terminated=done)

    def _set_seed(self, seed: int | None) -> None: ...


KINDS: dict[str, Callable[[], Any]] = {
    "gym": lambda: GymEnv("Pendulum-v1"),
    "categorical": lambda: GymEnv("CartPole-v1", categorical_action_encoding=True),
    "counted": counted,
    "transformed": transformed,
    "cut-at-random": lambda: TransformedEnv(
        cartpole(), Compose(NoopResetEnv(noops=2, random=False), StepCounter(), RandomTruncationTransform(2, 5))
    ),
    "images": lambda: TransformedEnv(
        DiscreteActionConvMockEnvNumpy(),
        Compose(ToTensorImage(), GrayScale(), CatFrames(2, dim=-3, in_keys=["pixels"])),
    ),
    "normalised": lambda: TransformedEnv(
        GymEnv("Pendulum-v1"), VecNormV2(in_keys=["observation"], out_keys=["normalised"])
    ),
    "serial": lambda: SerialEnv(2, counted),
    "parallel": lambda: ParallelEnv(2, counted, mp_start_method="fork"),
    "batched": batched,
    "stateless": PendulumEnv,
    "nested": lambda: NestedCountingEnv(nest_done=False),
    "groups": MultiKeyCountingEnv,
    "different-agents": HeterogeneousCountingEnv,
    "changing-shape": EnvWithDynamicSpec,
    "text": Telling,
    "mask": TicTacToeEnv,
    "masked-by-a-transform": lambda: TransformedEnv(TicTacToeEnv(), ActionMask(mask_key="mask")),
    "vmas": vmas,
    "agents-in-groups": tag,
    "agents-in-turns": turns,
    "agents-that-die": lambda: PettingZooWrapper(Mortal(), use_mask=True),
}
"""A function that makes an environment, by its kind."""


def brax() -> Any:
    from torchrl.envs import BraxEnv

    return BraxEnv("fast", batch_size=[3])


def dm_control() -> Any:
    from torchrl.envs import DMControlEnv

    return DMControlEnv("cartpole", "balance")


SIMULATORS = {"brax": brax, "dm_control": dm_control}
"""Kinds whose package is no requirement of the tests: `test_simulators` installs them in an environment of its own."""

KINDS |= {name: make for name, make in SIMULATORS.items() if find_spec(name)}

NOT_FORKED = frozenset(("brax",))
"""Kinds whose library cannot be used by a fork of a process that has used it."""


MASKS = (("mask",), ("player_1", "action_mask"), ("player_2", "action_mask"))


def first_legal(tensordict: Any) -> Any:
    """Take the first action that each mask allows."""
    for mask, action in ((key, (*key[:-1], "action")) for key in MASKS):
        if (allowed := tensordict.get(mask, None)) is not None:
            tensordict.set(action, allowed.int().argmax(-1))
    return tensordict


POLICIES: dict[str, Callable[[Any], Any]] = dict.fromkeys(
    ("agents-in-turns", "mask", "masked-by-a-transform"), first_legal
)
"""The policy of a kind whose random actions would be illegal; the others act at random."""
