"""A normaliser of observations that is part of the policy."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

EPSILON = 1e-8


class RunningNorm(nn.Module):
    """Normalises observations by the mean and variance of those in `update`, and clips them.

    The statistics are buffers: they are sent and saved with the weights. Only `update` changes them, so workers,
    evaluations and `rollfleet play` act on those of their version.

    Example:
        >>> import torch
        >>> from rollfleet import RunningNorm
        >>> norm = RunningNorm((2,))
        >>> policy = torch.nn.Sequential(norm, torch.nn.Linear(2, 1))
        >>> norm.update(torch.tensor([[0.0, 100.0], [2.0, 300.0]]))  # in the learner, after training on a batch
        >>> norm(torch.tensor([2.0, 200.0]))
        tensor([1., 0.])

    Args:
        shape: The shape of one observation.
        clip: The largest result, in standard deviations.
    """

    mean: Tensor
    variance: Tensor
    count: Tensor

    def __init__(self, shape: Sequence[int], *, clip: float = 10.0) -> None:
        super().__init__()
        self.clip = clip
        self.register_buffer("mean", torch.zeros(*shape, dtype=torch.float64))
        self.register_buffer("variance", torch.ones(*shape, dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))

    def forward(self, observation: Tensor) -> Tensor:
        """Normalise observations `[..., *shape]`; float32 `[..., *shape]`."""
        scaled = (observation - self.mean) * (self.variance + EPSILON).rsqrt()
        return scaled.clamp(-self.clip, self.clip).float()

    @torch.no_grad()
    def update(self, observation: Tensor) -> None:
        """Merge the statistics of observations `[..., *shape]` into those of all earlier ones (Chan et al., 1983).

        Call it in the learner after the training on a batch, whose log-probabilities belong to the earlier statistics.
        Leave out padding: `batch["observation"][batch["collector", "mask"]]`.
        """
        frames = observation.reshape(-1, *self.mean.shape).double()
        if not len(frames):
            return
        variance, mean = torch.var_mean(frames, 0, correction=0)
        total, distance = self.count + len(frames), mean - self.mean
        between = distance.square() * self.count * len(frames) / total
        self.variance.mul_(self.count).add_(variance * len(frames) + between).div_(total)
        self.mean.add_(distance * len(frames) / total)
        self.count.copy_(total)
