"""Keywords of public calls: what each is about, which of them the caller gave, and hints for unknown names."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from inspect import Parameter, signature
from typing import Any, Final, ParamSpec, Self, TypeVar

from rollfleet.arguments import plain, shown
from rollfleet.errors import JobInvalid
from rollfleet.processes.settings import Processes
from rollfleet_api.job import CollectSpec
from rollfleet_api.wording import nearest

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Keyword:
    """What a keyword of `rollfleet.Collector`, or of its `processes`, is about.

    Attributes:
        field: The field of a job's spec that it sets, in the words of YAML; empty: only Python can express its value.
        mode: The mode that it has a meaning in; empty: both.
        needs: "workers": it has no meaning in the learner's own process. "machine": nor in pods. Empty: it always has.
    """

    field: str = ""
    mode: str = ""
    needs: str = ""


KEYWORDS: Final = {name: Keyword(f"collect.{field.alias}") for name, field in CollectSpec.model_fields.items()} | {
    "workers": Keyword("workers"),
    "mode": Keyword("mode"),
    "num_envs": Keyword("env.numEnvs"),
    "vectorization": Keyword("env.vectorization"),
    "backend": Keyword("env.backend"),
    "env_processes": Keyword("env.processes"),
    "weights_interval": Keyword("weights.interval"),
    "max_lag": Keyword("weights.maxLag", mode="async"),
    "cat_results": Keyword("collect.catResults", mode="sync"),
    "stragglers_threshold": Keyword("stragglers.threshold", mode="sync", needs="workers"),
    "suspect_after_s": Keyword("failure.suspectAfterSeconds", needs="workers"),
    "max_batches_ahead": Keyword("delivery.maxBatchesAhead", mode="async", needs="workers"),
    "evaluation": Keyword("evaluation"),
    "max_restarts_per_worker": Keyword(needs="workers"),
    "cluster": Keyword(needs="workers"),
    "start_method": Keyword(needs="machine"),
    "quiet": Keyword(needs="machine"),
    "close_timeout_s": Keyword(needs="machine"),
}
"""All keywords but those that only Python can express, and that have a meaning beside all others."""

PLACES: Final = {name: each.field for name, each in KEYWORDS.items() if each.field}
"""The field of a job's spec that each keyword sets."""

_OF_PROCESSES: Final = tuple(Processes.__dataclass_fields__)
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


@dataclass(frozen=True, slots=True)
class Keywords:
    """The keywords of one call of `rollfleet.Collector`, those of `processes` among them.

    Attributes:
        values: The value of each keyword. A number of NumPy's is Python's. None and -1 are 0 where 0 means "no limit":
            for keywords that are a number by default, and may be None.
        given: The keywords whose value is not their default.
    """

    values: Mapping[str, Any]
    given: frozenset[str]

    @classmethod
    def of(cls, given: Mapping[str, Any], function: Callable[..., object]) -> Self:
        """Make the keywords of a call of the function from those that are given; the others have their defaults.

        Raises:
            JobInvalid: `processes` is not a `Processes`.
        """
        processes = given.get("processes")
        if processes is not None and not isinstance(processes, Processes):
            raise JobInvalid(f"`processes` is a rollfleet.Processes(...), not {shown(processes)}")
        defaults = {name: getattr(_DEFAULTS, name) for name in _OF_PROCESSES}
        values = {name: plain(getattr(processes or _DEFAULTS, name)) for name in _OF_PROCESSES}
        for name, each in signature(function).parameters.items():
            if each.kind is Parameter.KEYWORD_ONLY and name != "processes":
                defaults[name], values[name] = each.default, plain(given.get(name, each.default))
                is_limit = each.annotation == int | None and each.default is not None
                if is_limit and (values[name] is None or _same(values[name], -1)):
                    values[name] = 0
        return cls(values, frozenset(name for name, value in values.items() if not _same(value, defaults[name])))

    def __getitem__(self, name: str) -> Any:
        """Return the value of a keyword."""
        return self.values[name]


_DEFAULTS: Final = Processes()


def _same(value: object, default: object) -> bool:
    return value is default or (type(value) is type(default) and value == default)


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
    if "processes" in names and name in _OF_PROCESSES:
        return f"write `processes=rollfleet.Processes({name}=...)`"
    if name in PLACES:
        return f"the job sets it: `spec.{PLACES[name]}`"
    if near := nearest(name, names):
        return f"did you mean `{near}`?"
    return f"TorchRL's collectors, with their keywords, are in `rollfleet.torchrl`; here they are: {', '.join(names)}"
