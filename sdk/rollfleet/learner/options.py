"""The keywords of `rollfleet.Collector`: the fields of a job, in snake_case, and what only Python can say."""

from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Protocol, TypedDict

import torch

from rollfleet.errors import JobInvalid

if TYPE_CHECKING:
    from tensordict import TensorDict

    from rollfleet.schemes import WeightScheme

Device = str | torch.device
AUTO, MANUAL = "auto", "manual"  # values of `acknowledge`


class Extends(Protocol):
    """A replay buffer, ours or any other."""

    def extend(self, batch: Any, /) -> Any:
        """Store the frames of a batch, TensorDict `[frames]`."""
        ...


class LearnerOptions(TypedDict, total=False):
    """What the learner does, whoever collects for it."""

    split_trajs: bool
    postproc: "Callable[[TensorDict], Any]"
    replay_buffer: Extends
    weight_scheme: "WeightScheme"
    acknowledge: str


class Options(LearnerOptions, total=False):
    """See `rollfleet.Collector`, which tells what each does."""

    frames_per_batch: int
    num_envs: int
    workers: int
    mode: str
    total_frames: int
    seed: int
    init_random_frames: int
    max_frames_per_traj: int
    exploration: str
    set_truncated: bool
    reset_at_each_iter: bool
    reset_when_done: bool
    step_count: bool
    is_init: bool
    trajs_per_batch: int
    cat_results: str
    weights_interval: int
    max_lag: int
    precision: str
    stragglers_threshold: float
    suspect_after_s: int
    max_batches_ahead: int
    env_kwargs: Mapping[str, object] | Sequence[Mapping[str, object]]
    vectorization: str
    backend: str
    env_processes: int
    policy_factory: Callable[..., Any] | str | Sequence[Callable[..., Any] | str]
    policy_device: Device | Sequence[Device]
    env_device: Device | Sequence[Device]
    device: Device
    no_cuda_sync: bool
    start_method: str
    max_restarts_per_worker: int
    quiet: bool


# keyword -> where a job says it; what is not here only Python can say
SPEC_PATHS: dict[str, tuple[str, ...]] = {
    "frames_per_batch": ("collect", "framesPerBatch"),
    "num_envs": ("env", "numEnvs"),
    "workers": ("workers",),
    "mode": ("mode",),
    "total_frames": ("collect", "totalFrames"),
    "seed": ("collect", "seed"),
    "init_random_frames": ("collect", "initRandomFrames"),
    "max_frames_per_traj": ("collect", "maxFramesPerTraj"),
    "exploration": ("collect", "exploration"),
    "set_truncated": ("collect", "setTruncated"),
    "reset_at_each_iter": ("collect", "resetAtEachIter"),
    "reset_when_done": ("collect", "resetWhenDone"),
    "step_count": ("collect", "stepCount"),
    "is_init": ("collect", "isInit"),
    "trajs_per_batch": ("collect", "trajsPerBatch"),
    "cat_results": ("collect", "catResults"),
    "weights_interval": ("weights", "interval"),
    "max_lag": ("weights", "maxLag"),
    "precision": ("weights", "precision"),
    "stragglers_threshold": ("stragglers", "threshold"),
    "suspect_after_s": ("failure", "suspectAfterSeconds"),
    "max_batches_ahead": ("delivery", "maxBatchesAhead"),
    "vectorization": ("env", "vectorization"),
    "backend": ("env", "backend"),
    "env_processes": ("env", "processes"),
}

CHOICES = {"mode", "exploration", "cat_results", "vectorization", "backend"}
"""Keywords whose values a job writes with a capital: `sync` is taken for `Sync`."""

OF_PROCESSES = (
    "start_method",
    "max_restarts_per_worker",
    "quiet",
    "max_batches_ahead",
    "stragglers_threshold",
    "suspect_after_s",
    "acknowledge",
)
"""Keywords that say nothing about a worker in the learner's own process."""

OF_MODES = {"max_lag": "async", "max_batches_ahead": "async", "cat_results": "sync"}
"""Keywords that say something in one mode only."""


def check_together(options: Mapping[str, Any]) -> None:
    """Whether keywords say something beside each other.

    Raises:
        JobInvalid: One does not; names it, and what to write.
    """
    mode = str(options.get("mode", "sync")).lower()
    if not options.get("workers"):
        for name in OF_PROCESSES:
            if name in options:
                raise JobInvalid(f"`{name}` is about worker processes; write `workers=1` or more, or remove it")
        if mode == "async":
            raise JobInvalid("mode 'async' needs worker processes; write `workers=1` or more, or remove `mode`")
    for name, needed in OF_MODES.items():
        if name in options and mode != needed:
            raise JobInvalid(f"`{name}` says nothing in mode '{mode}'; write `mode='{needed}'`, or remove it")
    if options.get("no_cuda_sync") and not ("device" in options or "env_device" in options):
        raise JobInvalid(
            "`no_cuda_sync` is about copies to `device` and to `env_device`, and there are none; name a device, or "
            "remove it"
        )
    if "precision" in options and "weight_scheme" in options:
        raise JobInvalid(
            "`weight_scheme` says in which form weights travel; remove `precision`, or give it to the scheme"
        )


def device_of(value: Device, keyword: str) -> torch.device:
    """A device by its name.

    Raises:
        JobInvalid: There is none of that name; names the keyword.
    """
    try:
        return torch.device(value)
    except (RuntimeError, TypeError) as error:
        raise JobInvalid(f"`{keyword}`: {value!r} is no device of torch: {error}") from None


def check_learner_options(options: Mapping[str, Any]) -> None:
    """Whether what is there can be used.

    Raises:
        JobInvalid: It cannot; names the keyword.
    """
    buffer, postproc = options.get("replay_buffer"), options.get("postproc")
    if buffer is not None and not callable(getattr(buffer, "extend", None)):
        raise JobInvalid(
            f"`replay_buffer` is filled by its method extend(frames), and a {type(buffer).__name__} has none"
        )
    if (acknowledge := options.get("acknowledge", AUTO)) not in (AUTO, MANUAL):
        raise JobInvalid(f"`acknowledge` is one of {AUTO!r}, {MANUAL!r}, not {acknowledge!r}")
    if acknowledge == MANUAL and buffer is not None:
        raise JobInvalid(
            "`replay_buffer` has what it was given before the next batch comes; remove `acknowledge`, or extend the "
            "buffer in your own loop"
        )
    if postproc is not None and not callable(postproc):
        raise JobInvalid(f"`postproc` is called with each batch; a {type(postproc).__name__} cannot be")


def check_names(options: Mapping[str, object], known: type[LearnerOptions], caller: str) -> None:
    """Whether all keywords of a call are known.

    Raises:
        TypeError: One is not; names it, and what was meant.
    """
    names = list(known.__annotations__)
    for name in options:
        if name not in names:
            near = get_close_matches(name, names, n=1)
            hint = f"did you mean `{near[0]}`?" if near else f"there are: {', '.join(names)}"
            raise TypeError(f"{caller} has no keyword `{name}`; {hint}")
