"""Keywords of public calls: what each is about, and hints for unknown names."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial, wraps
from inspect import signature
from typing import Any, Final, ParamSpec, TypeVar

from rollfleet.arguments import shown, true_or_false, whole_number
from rollfleet.cluster.settings import Cluster
from rollfleet.errors import JobInvalid
from rollfleet.processes.settings import Processes
from rollfleet.system.devices import device_of
from rollfleet_api.job import MAX_WORKERS, CollectSpec
from rollfleet_api.wording import nearest

AUTO, MANUAL = "auto", "manual"  # values of `acknowledge`

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Keyword:
    """What a keyword of `rollfleet.Collector`, of its `processes`, of `Collector.over` or of `connect` is about.

    Attributes:
        field: The field of a job's spec that it sets, in the words of YAML; empty: only Python can express its value.
        mode: The mode that it has a meaning in; empty: both.
        needs: "workers": it has no meaning in the learner's own process. "machine": nor in pods. "cluster": only in
            pods. Empty: it always has.
        read: Checks a value, for a name in messages, and returns it in the type that the code takes. None: the job's
            model does, or who uses the value.
    """

    field: str = ""
    mode: str = ""
    needs: str = ""
    read: Callable[[Any, str], Any] | None = None


def _must(fits: Callable[[Any], bool], message: str) -> Callable[[Any, str], Any]:
    """Return a `Keyword.read` that takes what fits; `{}` in its message is the value."""

    def read(value: Any, name: str) -> Any:
        if not fits(value):
            raise JobInvalid(f"`{name}` {message.format(shown(value))}")
        return value

    return read


def _has(*methods: str) -> Callable[[Any], bool]:
    return lambda value: all(callable(getattr(value, method, None)) for method in methods)


KEYWORDS: Final = {name: Keyword(f"collect.{field.alias}") for name, field in CollectSpec.model_fields.items()} | {
    # Fields of other parts of a job
    "workers": Keyword("workers", read=partial(whole_number, most=MAX_WORKERS)),
    "mode": Keyword("mode"),
    "num_envs": Keyword("env.numEnvs"),
    "vectorization": Keyword("env.vectorization"),
    "backend": Keyword("env.backend"),
    "settings_method": Keyword("env.settingsMethod"),
    "env_processes": Keyword("env.processes"),
    "servers": Keyword("env.servers", needs="cluster"),
    "weights_interval": Keyword("weights.interval"),
    "max_lag": Keyword("weights.maxLag", mode="async"),
    "cat_results": Keyword("collect.catResults", mode="sync"),
    "stragglers_threshold": Keyword("stragglers.threshold", mode="sync", needs="workers"),
    "suspect_after_s": Keyword("failure.suspectAfterSeconds", needs="workers"),
    "env_failures": Keyword("failure.environments"),
    "max_batches_ahead": Keyword("delivery.maxBatchesAhead", mode="async", needs="workers"),
    "evaluation": Keyword("evaluation"),
    # The learner
    "postproc": Keyword(read=_must(callable, "must be callable; {} is not")),
    "replay_buffer": Keyword(read=_must(_has("extend"), "needs a method extend(frames); {} has none")),
    "weight_scheme": Keyword(
        read=_must(_has("select", "layout"), "needs the methods of rollfleet.schemes.WeightScheme; {} lacks them")
    ),
    "acknowledge": Keyword(
        read=_must(lambda value: type(value) is str and value in (AUTO, MANUAL), "is one of 'auto', 'manual', not {}")
    ),
    "device": Keyword(read=device_of),
    "no_cuda_sync": Keyword(read=true_or_false),
    # Worker processes, and pods
    "cluster": Keyword(
        needs="workers",
        read=_must(lambda value: isinstance(value, Cluster), "is a rollfleet.Cluster(namespace=...), not {}"),
    ),
    "processes": Keyword(
        read=_must(lambda value: isinstance(value, Processes), "is a rollfleet.Processes(...), not {}")
    ),
    "max_restarts_per_worker": Keyword(needs="workers"),
    "start_method": Keyword(needs="machine"),
    "quiet": Keyword(needs="machine"),
    "close_timeout_s": Keyword(needs="machine"),
}
"""All keywords but those of objects, such as `env_kwargs`, whose values `learner.construction` checks."""

PLACES: Final = {name: each.field for name, each in KEYWORDS.items() if each.field}
"""The field of a job's spec that each keyword sets."""

_ELSEWHERE: Final = {
    "create_env_fn": "did you mean `env`?",
    "exploration_type": "did you mean `exploration`?",
    "learning_starts": "did you mean `init_random_frames`?",
    "n_steps": "did you mean `frames_per_batch`?",
    "num_env_runners": "did you mean `workers`?",
    "precision": "write `weight_scheme=rollfleet.schemes.Whole('bfloat16')`",
    "rollout_fragment_length": "did you mean `frames_per_batch`?",
    "split_trajs": "write `postproc=rollfleet.split_trajectories`",
    "storing_device": "did you mean `device`?",
    "total_timesteps": "did you mean `total_frames`?",
    "wrappers": "wrap the environment in a function, and pass that as `env`",
}
"""Hints for names whose nearest keyword means something else."""


def hints_names(caller: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate a public function, `caller`: its TypeError for an unknown keyword names the one to write."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        names = [name for name in signature(function).parameters if name not in ("self", "cls")]

        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            for name in kwargs:
                if name not in names:
                    raise TypeError(f"{caller} has no keyword `{name}`; {_hint(name, names)}")
            return function(*args, **kwargs)

        return call

    return decorate


def _hint(name: str, names: list[str]) -> str:
    if name in _ELSEWHERE:
        return _ELSEWHERE[name]
    if "processes" in names and name in Processes.__dataclass_fields__:
        return f"write `processes=rollfleet.Processes({name}=...)`"
    if name in PLACES:
        return f"the job sets it: `spec.{PLACES[name]}`"
    if near := nearest(name, names):
        return f"did you mean `{near}`?"
    return f"TorchRL's collectors, with their keywords, are in `rollfleet.torchrl`; here they are: {', '.join(names)}"
