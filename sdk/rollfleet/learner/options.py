"""Options of a learner that only Python can express, and checks of keywords against each other."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from rollfleet.arguments import shown, true_or_false, whole_number
from rollfleet.cluster.settings import Cluster
from rollfleet.errors import JobInvalid
from rollfleet.learner.keywords import KEYWORDS, Keywords
from rollfleet_api.job import MAX_WORKERS

if TYPE_CHECKING:
    from tensordict import TensorDict

    from rollfleet.schemes import WeightScheme

AUTO, MANUAL = "auto", "manual"  # values of `acknowledge`


class Extends(Protocol):
    """A replay buffer: `rollfleet.ReplayBuffer`, TorchRL's, or any object with this method."""

    def extend(self, batch: Any, /) -> Any:
        """Store the frames of a batch, TensorDict `[frames]`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerOptions:
    """What the learner does with batches and weights, on every transport.

    Attributes:
        postproc: A function of each batch; its result is yielded. None: the batch itself.
        replay_buffer: The buffer that stores batches; the iterator then yields None. None: no buffer.
        weight_scheme: Which weights travel, and in which form. None: the scheme that the job names.
        acknowledge: "auto": a batch is acknowledged once it is yielded. "manual": once the learner calls `ack()`.

    Raises:
        JobInvalid: A value cannot be used. The message names the keyword.
    """

    postproc: "Callable[[TensorDict], Any] | None" = None
    replay_buffer: Extends | None = None
    weight_scheme: "WeightScheme | None" = None
    acknowledge: str = AUTO

    def __post_init__(self) -> None:
        """Check the values."""
        scheme = self.weight_scheme
        if scheme is not None and not all(callable(getattr(scheme, name, None)) for name in ("select", "layout")):
            raise JobInvalid(
                f"`weight_scheme` needs the methods of rollfleet.schemes.WeightScheme; {shown(scheme)} lacks them"
            )
        buffer = self.replay_buffer
        if buffer is not None and not callable(getattr(buffer, "extend", None)):
            raise JobInvalid(f"`replay_buffer` needs a method extend(frames); {shown(buffer)} has none")
        if not isinstance(self.acknowledge, str) or self.acknowledge not in (AUTO, MANUAL):
            raise JobInvalid(f"`acknowledge` is one of {AUTO!r}, {MANUAL!r}, not {shown(self.acknowledge)}")
        if self.acknowledge == MANUAL and buffer is not None:
            raise JobInvalid(
                "`replay_buffer` stores each batch before the next one comes; remove `acknowledge`, or extend the "
                "buffer in your own loop"
            )
        if self.postproc is not None and not callable(self.postproc):
            raise JobInvalid(f"`postproc` must be callable; {shown(self.postproc)} is not")

    @classmethod
    def of(cls, keywords: Keywords) -> "LearnerOptions":
        """Take the learner's options from the keywords of a call."""
        return cls(**{name: keywords[name] for name in ("postproc", "replay_buffer", "weight_scheme")})


def check(keywords: Keywords) -> None:
    """Check the keywords that no field of a job checks, and that those given have a meaning beside each other.

    Raises:
        JobInvalid: A value cannot be used, or a keyword has no meaning. The message names it, and what to write.
    """
    workers, given = whole_number(keywords["workers"], "workers", most=MAX_WORKERS), keywords.given
    mode, cluster = str(keywords["mode"]).lower(), keywords["cluster"]
    if cluster is not None and not isinstance(cluster, Cluster):
        raise JobInvalid(f"`cluster` is a rollfleet.Cluster(namespace=...), not {shown(cluster)}")
    about = {name: each for name, each in KEYWORDS.items() if name in given}
    if not workers:
        for name, each in about.items():
            if each.needs:
                raise JobInvalid(f"`{name}` needs worker processes; write `workers=1` or more, or remove it")
        if isinstance(keywords["evaluation"], Mapping) and "workers" in keywords["evaluation"]:
            raise JobInvalid(
                "`evaluation`: its `workers` are processes, and this collector has none; write `workers=1` or more "
                "beside it, or remove the entry"
            )
        if mode == "async":
            raise JobInvalid("mode 'async' needs worker processes; write `workers=1` or more, or remove `mode`")
    for name, each in about.items():
        if each.needs == "machine" and cluster is not None:
            raise JobInvalid(f"`{name}` is about processes of this machine; remove it, or remove `cluster`")
        if each.mode and mode in ("sync", "async") and mode != each.mode:
            raise JobInvalid(f"`{name}` has no effect in mode '{mode}'; write `mode='{each.mode}'`, or remove it")
    if true_or_false(keywords["no_cuda_sync"], "no_cuda_sync") and not given & {"device", "env_device"}:
        raise JobInvalid(
            "`no_cuda_sync` needs `device` or `env_device`: it is about copies to them; name a device, or remove it"
        )
