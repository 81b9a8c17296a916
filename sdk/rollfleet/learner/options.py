"""Options of a learner that only Python can express, and checks of keywords against each other."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from rollfleet.arguments import shown, true_or_false, whole_number
from rollfleet.cluster.settings import Cluster
from rollfleet.errors import JobInvalid
from rollfleet.learner.keywords import Keywords
from rollfleet.processes.launch import START_METHODS
from rollfleet.transports.hooks import HOOKS, check_hook
from rollfleet_api.job import MAX_WORKERS

if TYPE_CHECKING:
    from tensordict import TensorDict

    from rollfleet.schemes import WeightScheme

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
        split_trajs: Yield `split_trajectories(batch)`. None: False.
        postproc: A function of each batch; its result is yielded. None: the batch itself.
        replay_buffer: The buffer that stores batches; the iterator then yields None. None: no buffer.
        weight_scheme: Which weights travel, and in which form. None: the scheme that the job names.
        acknowledge: "auto": a batch is acknowledged once it is yielded. "manual": once the learner calls `ack()`.

    Raises:
        JobInvalid: A value cannot be used. The message names the keyword.
    """

    split_trajs: bool | None = False
    postproc: "Callable[[TensorDict], Any] | None" = None
    replay_buffer: Extends | None = None
    weight_scheme: "WeightScheme | None" = None
    acknowledge: str = AUTO

    def __post_init__(self) -> None:
        """Check the values."""
        if self.split_trajs is not None:
            true_or_false(self.split_trajs, "split_trajs")
        scheme = self.weight_scheme
        if scheme is not None and not all(callable(getattr(scheme, name, None)) for name in ("select", "layout")):
            raise JobInvalid(
                f"`weight_scheme` needs the methods of rollfleet.schemes.WeightScheme; {shown(scheme)} lacks them"
            )
        buffer = self.replay_buffer
        if buffer is not None and not callable(getattr(buffer, "extend", None)):
            raise JobInvalid(f"`replay_buffer` needs a method extend(frames); {type(buffer).__name__} has none")
        if not isinstance(self.acknowledge, str) or self.acknowledge not in (AUTO, MANUAL):
            raise JobInvalid(f"`acknowledge` is one of {AUTO!r}, {MANUAL!r}, not {shown(self.acknowledge)}")
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
    "cluster",
)
"""Keywords without a meaning for a worker in the learner's own process."""

NOT_OF_PODS = ("start_method", "quiet")
"""Keywords about worker processes that pods have no counterpart of."""

OF_MODES = {"max_lag": "async", "max_batches_ahead": "async", "cat_results": "sync", "stragglers_threshold": "sync"}
"""Keywords with a meaning in one mode only."""


def check_values(keywords: Keywords) -> None:
    """Check the keywords whose values no field of a job checks, one by one.

    Raises:
        JobInvalid: A value cannot be used. The message names the keyword.
    """
    whole_number(keywords["workers"], "workers", most=MAX_WORKERS)
    whole_number(keywords["max_restarts_per_worker"], "max_restarts_per_worker")
    for name in HOOKS:
        check_hook(name, keywords[name])
    for name in ("quiet", "no_cuda_sync"):
        true_or_false(keywords[name], name)
    if keywords["cluster"] is not None and not isinstance(keywords["cluster"], Cluster):
        raise JobInvalid(f"`cluster` is a rollfleet.Cluster(namespace=...), not {shown(keywords['cluster'])}")
    method = keywords["start_method"]
    if not isinstance(method, str) or method not in START_METHODS:
        raise JobInvalid(f"start_method is one of {', '.join(map(repr, START_METHODS))}, not {shown(method)}")


def check_together(keywords: Keywords) -> None:
    """Check that the keywords that the caller gave have a meaning beside each other.

    Raises:
        JobInvalid: A keyword has none. The message names it, and what to write.
    """
    given, mode, backend = keywords.given, str(keywords["mode"]).lower(), str(keywords["backend"]).lower()
    if not keywords["workers"]:
        for name in OF_PROCESSES:
            if name in given:
                raise JobInvalid(f"`{name}` needs worker processes; write `workers=1` or more, or remove it")
        if isinstance(given.get("evaluation"), Mapping) and "workers" in given["evaluation"]:
            raise JobInvalid(
                "`evaluation`: its `workers` are processes, and this collector has none; write `workers=1` or more "
                "beside it, or remove the entry"
            )
        if mode == "async":
            raise JobInvalid("mode 'async' needs worker processes; write `workers=1` or more, or remove `mode`")
    for name in NOT_OF_PODS:
        if name in given and keywords["cluster"] is not None:
            raise JobInvalid(f"`{name}` is about processes of this machine; remove it, or remove `cluster`")
    for name, needed in OF_MODES.items():
        if name in given and mode in ("sync", "async") and mode != needed:
            raise JobInvalid(f"`{name}` has no effect in mode '{mode}'; write `mode='{needed}'`, or remove it")
    if keywords["no_cuda_sync"] and not ("device" in given or "env_device" in given):
        raise JobInvalid(
            "`no_cuda_sync` needs `device` or `env_device`: it is about copies to them; name a device, or remove it"
        )
    if "precision" in given and "weight_scheme" in given:
        raise JobInvalid("`weight_scheme` sets the precision itself; remove `precision`, or pass it to the scheme")
    for name in ("vectorization", "env_processes"):
        if name in given and backend == "envpool":
            raise JobInvalid(f"`{name}` has no effect with `backend='envpool'`, which has its own threads; remove it")
