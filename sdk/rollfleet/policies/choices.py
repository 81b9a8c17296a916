"""Actions that are several independent choices at once: MultiDiscrete and MultiBinary."""

from math import inf, prod

import torch
from gymnasium.spaces import MultiBinary, MultiDiscrete
from torch import Tensor, nn

from rollfleet.envs.spaces import tensor_dtype


class Choices(nn.Module):
    """A categorical distribution for each choice, over the logits of all of them in a row.

    Attributes:
        outputs: How many logits.
    """

    _index: Tensor
    _missing: Tensor
    _start: Tensor

    def __init__(self, space: MultiDiscrete | MultiBinary) -> None:
        """It has no parameters, and nothing in its state_dict."""
        super().__init__()
        self._shape, self._dtype = space.shape, tensor_dtype(space)
        if isinstance(space, MultiDiscrete):
            sizes, start = (torch.as_tensor(array).reshape(-1).long() for array in (space.nvec, space.start))
        else:
            sizes = torch.full((prod(space.shape),), 2)
            start = torch.zeros_like(sizes)
        self.outputs = int(sizes.sum())
        # Choices have different numbers of options: [choices, most options], with what there is not at -infinity.
        option = torch.arange(int(sizes.max()))
        missing = option >= sizes[:, None]
        index = ((sizes.cumsum(0) - sizes)[:, None] + option).masked_fill(missing, 0)
        for name, value in (("_index", index), ("_missing", missing), ("_start", start)):
            self.register_buffer(name, value, persistent=False)

    def act(self, logits: Tensor, *, sample: bool) -> tuple[Tensor, Tensor]:
        """Actions [envs, ...] in the space's dtype, sampled or the most likely ones; log-probabilities [envs]."""
        log_probs = self._log_probs(logits)
        # Gumbel's trick: the largest of (log-probability - log of an exponential) is a sample.
        scores = log_probs - torch.empty_like(log_probs).exponential_().log_() if sample else log_probs
        index = scores.argmax(-1)
        action = (index + self._start).reshape(-1, *self._shape).to(self._dtype)
        return action, self._chosen(log_probs, index)

    def evaluate(self, logits: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probability and entropy [...] of actions [..., *shape]."""
        log_probs = self._log_probs(logits)
        index = action.reshape(*logits.shape[:-1], -1).long() - self._start
        entropy = -(log_probs.exp() * log_probs.masked_fill(self._missing, 0.0)).sum((-1, -2))
        return self._chosen(log_probs, index), entropy

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one action."""
        return self._shape

    def _log_probs(self, logits: Tensor) -> Tensor:
        return torch.log_softmax(logits[..., self._index].masked_fill(self._missing, -inf), -1)

    def _chosen(self, log_probs: Tensor, index: Tensor) -> Tensor:
        return log_probs.gather(-1, index.unsqueeze(-1)).squeeze(-1).sum(-1)
