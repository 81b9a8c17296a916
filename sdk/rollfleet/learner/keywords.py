"""Keywords of public calls: which of them the caller gave, and hints for unknown names."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from inspect import Parameter, signature
from typing import Any, Final, ParamSpec, Self, TypeVar

from rollfleet.arguments import plain, shown
from rollfleet.errors import JobInvalid
from rollfleet.learner.job_keywords import NO_LIMIT, PLACES
from rollfleet.processes.settings import Processes
from rollfleet_api.wording import nearest

P = ParamSpec("P")
R = TypeVar("R")

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
        values: The value of each keyword. A number of NumPy's is Python's.
        given: The keywords whose value is not their default.
    """

    values: Mapping[str, Any]
    given: frozenset[str]

    @classmethod
    def of(cls, values: Mapping[str, Any], function: Callable[..., object]) -> Self:
        """Make the keywords of a call.

        Raises:
            JobInvalid: `processes` is not a `Processes`.
        """
        parameters = signature(function).parameters.values()
        defaults = {each.name: each.default for each in parameters if each.kind is Parameter.KEYWORD_ONLY}
        processes = values["processes"]
        if processes is not None and not isinstance(processes, Processes):
            raise JobInvalid(f"`processes` is a rollfleet.Processes(...), not {shown(processes)}")
        found = {name: plain(values[name]) for name in defaults if name != "processes"}
        found |= {name: 0 for name in NO_LIMIT if found[name] is None or _same(found[name], -1)}
        for name in _OF_PROCESSES:
            defaults[name] = getattr(_DEFAULTS, name)
            found[name] = plain(getattr(processes or _DEFAULTS, name))
        return cls(found, frozenset(name for name, value in found.items() if not _same(value, defaults[name])))

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
