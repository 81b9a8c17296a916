"""Options of a learner that only Python can express, and checks of keywords against each other."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch

from rollfleet.errors import JobInvalid
from rollfleet.learner.keywords import Keywords

if TYPE_CHECKING:
    from tensordict import TensorDict

    from rollfleet.schemes import WeightScheme

Device = str | torch.device
AUTO, MANUAL = "auto", "manual"  # values of `acknowledge`


class Extends(Protocol):
    """A replay buffer: `rollfleet.ReplayBuffer`, TorchRL's, or any object with this method."""

    def extend(self, batch: Any, /) -> Any:
        """Store the frames of a batch, TensorDict `[frames]`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerOptions:
    """What the learner does with batches and weights, on every transport.

    Attributes:
        split_trajs: Yield `split_trajectories(batch)`.
        postproc: A function of each batch; its result is yielded. None: the batch itself.
        replay_buffer: The buffer that stores batches; the iterator then yields None. None: no buffer.
        weight_scheme: Which weights travel, and in which form. None: the scheme that the job names.
        acknowledge: "auto": a batch is acknowledged once it is yielded. "manual": once the learner calls `ack()`.

    Raises:
        JobInvalid: A value cannot be used. The message names the keyword.
    """

    split_trajs: bool = False
    postproc: "Callable[[TensorDict], Any] | None" = None
    replay_buffer: Extends | None = None
    weight_scheme: "WeightScheme | None" = None
    acknowledge: str = AUTO

    def __post_init__(self) -> None:
        """Check the values."""
        buffer = self.replay_buffer
        if buffer is not None and not callable(getattr(buffer, "extend", None)):
            raise JobInvalid(f"`replay_buffer` needs a method extend(frames); {type(buffer).__name__} has none")
        if self.acknowledge not in (AUTO, MANUAL):
            raise JobInvalid(f"`acknowledge` is one of {AUTO!r}, {MANUAL!r}, not {self.acknowledge!r}")
        if self.acknowledge == MANUAL and buffer is not None:
            raise JobInvalid(
                "`replay_buffer` stores each batch before the next one comes; remove `acknowledge`, or extend the "
                "buffer in your own loop"
            )
        if self.postproc is not None and not callable(self.postproc):
            raise JobInvalid(f"`postproc` must be callable; {type(self.postproc).__name__} is not")

    @classmethod
    def of(cls, keywords: Keywords) -> "LearnerOptions":
        """Take the learner's options from the keywords of a call."""
        return cls(**{name: keywords[name] for name in cls.__dataclass_fields__})


OF_PROCESSES = (
    "start_method",
    "max_restarts_per_worker",
    "quiet",
    "max_batches_ahead",
    "stragglers_threshold",
    "suspect_after_s",
    "acknowledge",
)
"""Keywords without a meaning for a worker in the learner's own process."""

OF_MODES = {"max_lag": "async", "max_batches_ahead": "async", "cat_results": "sync"}
"""Keywords with a meaning in one mode only."""


def check_together(keywords: Keywords) -> None:
    """Check that the keywords that the caller gave have a meaning beside each other.

    Raises:
        JobInvalid: A keyword has none. The message names it, and what to write.
    """
    given, mode = keywords.given, str(keywords["mode"]).lower()
    if not keywords["workers"]:
        for name in OF_PROCESSES:
            if name in given:
                raise JobInvalid(f"`{name}` needs worker processes; write `workers=1` or more, or remove it")
        if mode == "async":
            raise JobInvalid("mode 'async' needs worker processes; write `workers=1` or more, or remove `mode`")
    for name, needed in OF_MODES.items():
        if name in given and mode != needed:
            raise JobInvalid(f"`{name}` has no effect in mode '{mode}'; write `mode='{needed}'`, or remove it")
    if keywords["no_cuda_sync"] and not ("device" in given or "env_device" in given):
        raise JobInvalid(
            "`no_cuda_sync` needs `device` or `env_device`: it is about copies to them; name a device, or remove it"
        )
    if "precision" in given and "weight_scheme" in given:
        raise JobInvalid("`weight_scheme` sets the precision itself; remove `precision`, or pass it to the scheme")


def device_of(value: Device, keyword: str) -> torch.device:
    """Return a torch device by its name.

    Raises:
        JobInvalid: torch has no such device. The message names the keyword.
    """
    try:
        return torch.device(value)
    except (RuntimeError, TypeError) as error:
        raise JobInvalid(f"`{keyword}`: {value!r} is not a torch device: {error}") from None
