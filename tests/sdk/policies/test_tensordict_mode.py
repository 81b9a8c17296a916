"""TensorDict's interaction type: one for the process, and a separate one for a policy in the background."""

import threading
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import (
    InteractionType,
    ProbabilisticTensorDictModule,
    ProbabilisticTensorDictSequential,
    TensorDictModule,
    probabilistic,
    set_interaction_type,
)
from tensordict.nn.probabilistic import interaction_type
from torch.distributions import Normal

from rollfleet import Collector, Exploration
from rollfleet.policies.tensordict_mode import interacting


@pytest.fixture(autouse=True)
def _as_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Undo the effect of earlier policies in the background."""
    kept: Any = probabilistic._interaction_type
    monkeypatch.setattr(probabilistic, "_interaction_type", getattr(kept, "_shared", kept))


class Gate:
    """A replay buffer and a part of a policy that let the test wait for the background thread."""

    def __init__(self) -> None:
        self.acting, self.go_on = threading.Event(), threading.Event()
        self.interaction_types: list[InteractionType | None] = []
        self.parts: list[TensorDict] = []

    def loc(self, seen: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.interaction_types.append(interaction_type())
        self.acting.set()
        assert self.go_on.wait(30)
        return torch.zeros(len(seen), 1), torch.ones(len(seen), 1)

    def extend(self, frames: TensorDict) -> None:
        self.parts.append(frames)


def actor(gate: Gate) -> ProbabilisticTensorDictSequential:
    return ProbabilisticTensorDictSequential(
        TensorDictModule(gate.loc, ["observation"], ["loc", "scale"]),
        ProbabilisticTensorDictModule(["loc", "scale"], ["action"], distribution_class=Normal),
    )


def test_a_policy_in_the_background_does_not_change_the_learners_interaction_type() -> None:
    gate = Gate()
    collector = Collector(
        "Pendulum-v1", actor(gate), frames_per_batch=8, total_frames=64, exploration="mode", replay_buffer=gate
    )
    with set_interaction_type(InteractionType.RANDOM):
        collector.start()
        assert gate.acting.wait(30)
        assert interaction_type() is InteractionType.RANDOM  # while the policy is in the middle of a call
        gate.go_on.set()
        while collector.frames < 64:
            assert interaction_type() is InteractionType.RANDOM
        collector.async_shutdown(timeout_s=30)
    assert interaction_type() is None
    assert set(gate.interaction_types) == {InteractionType.MODE}
    assert all((part["action"] == 0).all() for part in gate.parts)  # it always took the mode


def test_the_learner_does_not_change_exploration_in_the_background() -> None:
    gate = Gate()
    collector = Collector("Pendulum-v1", actor(gate), frames_per_batch=8, total_frames=64, replay_buffer=gate)
    collector.start()
    assert gate.acting.wait(30)
    with set_interaction_type(InteractionType.MODE):
        gate.go_on.set()
        while collector.frames < 64:
            assert interaction_type() is InteractionType.MODE
    collector.async_shutdown(timeout_s=30)
    assert set(gate.interaction_types) == {InteractionType.RANDOM}
    assert all((part["action"] != 0).all() for part in gate.parts)


def test_contexts_nest_and_end_on_a_thread_as_on_the_main_one() -> None:
    seen: list[InteractionType | None] = []

    def look() -> None:
        with interacting(Exploration.MODE):
            seen.append(interaction_type())
            with set_interaction_type(InteractionType.MEAN):
                seen.append(interaction_type())
            seen.append(interaction_type())
        seen.append(interaction_type())

    expected = [InteractionType.MODE, InteractionType.MEAN, InteractionType.MODE, None]
    look()
    assert seen == expected
    seen.clear()
    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert seen == expected
    with set_interaction_type(InteractionType.RANDOM):
        thread = threading.Thread(target=lambda: seen.append(interaction_type()))
        thread.start()
        thread.join()
    assert seen[-1] is InteractionType.RANDOM  # a thread that does not collect shares the process's interaction type
