"""A policy with a hidden state that shows in its actions."""

from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor, nn

LANES, HIDDEN = 3, 6


class Recurrent(nn.Module):
    """A GRU in double precision, so that a replay in another batch size gives the same actions."""

    def __init__(self, *, names: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.cell, self.head = nn.GRUCell(4, HIDDEN).double(), nn.Linear(HIDDEN, 2).double()
        self.start = nn.Parameter(torch.randn(HIDDEN).double())
        self._names = names

    def initial_state(self, num_envs: int) -> Tensor | dict[str, Tensor]:
        state = self.start.expand(num_envs, HIDDEN)
        return {"memory": state, "age": torch.zeros(num_envs, dtype=torch.bfloat16)} if self._names else state

    def step(self, observation: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        following = self.cell(observation.double(), state)
        return self.head(following), following

    def forward(self, observation: Tensor, state: Any) -> tuple[dict[str, Tensor], Any]:
        logits, following = self.step(observation, state["memory"] if self._names else state)
        output = {"action": logits.argmax(-1), "logits": logits}
        if not self._names:
            return output, following
        state["age"].add_(1)  # in place: the recorded state must still be the input
        return output, {"memory": following, "age": state["age"]}

    def assert_replayed(self, batch: TensorDict, state: Tensor) -> None:
        """Check that `is_init` and observations alone reproduce the batch's states and actions from the first state."""
        with torch.no_grad():
            for t in range(batch.shape[1]):
                state = torch.where(batch["is_init"][:, t], self.start, state)
                torch.testing.assert_close(state, batch["recurrent", "state"][:, t], rtol=0, atol=1e-12)
                logits, state = self.step(batch["observation"][:, t], state)
                torch.testing.assert_close(state, batch["next", "recurrent", "state"][:, t], rtol=0, atol=1e-12)
                assert torch.equal(logits.argmax(-1), batch["action"][:, t])
