"""Keywords of public calls: explicit signatures, which keywords the caller gave, and hints for unknown names.

NumPy's numbers are taken as Python's. None counts as not given wherever a signature's annotation allows None.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import wraps
from inspect import Parameter, signature
from typing import Any, Final, ParamSpec, Self, TypeVar

from rollfleet.arguments import plain
from rollfleet.learner.spec_fields import SPEC_FIELDS

P = ParamSpec("P")
R = TypeVar("R")

_TORCHRLS: Final = """
auto_register_policy_transforms backend_options collector_class collector_kwargs compact_obs compile_policy
create_env_fn create_env_kwargs cudagraph_policy exploration_type extend_buffer filter_warnings_subprocess
interruptor launcher max_weight_update_interval num_collectors num_sub_threads num_threads num_workers
num_workers_per_collector preemptive_threshold ray_init_config remote_configs return_same_td slurm_kwargs
storing_device sync tcp_port tensorpipe_options track_policy_version track_traj_ids trajs_per_write trust_policy
update_after_each_batch update_at_each_batch update_interval use_buffers use_env_creator visible_devices
weight_recv_schemes weight_sync_schemes weight_updater
"""
TORCHRLS: Final = frozenset(_TORCHRLS.split())
"""Keywords of TorchRL's collectors that `rollfleet.torchrl` has, and the native collector has not."""


@dataclass(frozen=True, slots=True)
class Keywords:
    """The keywords of one call.

    Example:
        >>> keywords = Keywords(given={"num_envs": 4}, defaults={"num_envs": 1, "quiet": True})
        >>> keywords["num_envs"], keywords["quiet"], "quiet" in keywords.given
        (4, True, False)

    Attributes:
        given: The keywords that the caller wrote, with their values. See above for None and for NumPy's numbers.
        defaults: The defaults that the signature declares.
    """

    given: Mapping[str, Any]
    defaults: Mapping[str, Any]

    @classmethod
    def of(cls, given: Mapping[str, Any], parameters: Mapping[str, Parameter]) -> Self:
        """Make the keywords of a call from what the caller wrote, and the parameters of the signature."""
        defaults = {each.name: each.default for each in parameters.values() if each.default is not Parameter.empty}
        return cls(_written(given, parameters), defaults)

    def __getitem__(self, name: str) -> Any:
        """Return the given value, or else the default.

        Raises:
            KeyError: The keyword is not given and has no default.
        """
        return self.given[name] if name in self.given else self.defaults[name]


def implemented_by(implementation: Callable[..., R], *, caller: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate a declaration: its signature and docstring are shown, and `implementation` runs.

    A signature shows types and defaults, but hides whether the caller gave a keyword that equals its default. The
    implementation takes the positional parameters of the declaration, and its keywords as one `Keywords`, named
    `keywords`.

    Args:
        implementation: The function that runs.
        caller: The public name of the function, for error messages.
    """

    def declare(declaration: Callable[P, R]) -> Callable[P, R]:
        parameters = {name: each for name, each in signature(declaration).parameters.items() if name != "self"}
        keyword_only = {name: each for name, each in parameters.items() if each.kind is Parameter.KEYWORD_ONLY}
        positional = parameters.keys() - keyword_only
        implementation.__qualname__ = declaration.__qualname__  # Python's own error messages name the public function

        @wraps(declaration)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            others = {name: value for name, value in kwargs.items() if name in positional}
            given = {name: value for name, value in kwargs.items() if name not in positional}
            check_names(given, list(parameters), caller)
            return implementation(*args, **others, keywords=Keywords.of(given, keyword_only))

        return call

    return declare


def hints_names(*, caller: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate a function: a TypeError for an unknown keyword names the one to write. See above for None and numbers.

    Args:
        caller: The public name of the function, for error messages.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        parameters = {name: each for name, each in signature(function).parameters.items() if name != "cls"}

        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            check_names(kwargs, list(parameters), caller)
            return function(*args, **_written(kwargs, parameters))

        return call

    return decorate


def check_names(given: Mapping[str, object], names: list[str], caller: str) -> None:
    """Check that a function has all these keywords.

    Raises:
        TypeError: A keyword is unknown. The message has the nearest name, or says that it is TorchRL's.
    """
    for name in given:
        if name not in names:
            raise TypeError(f"{caller} has no keyword `{name}`; {_hint(name, names)}")


def _hint(name: str, names: list[str]) -> str:
    if name in TORCHRLS:
        return "it is TorchRL's, and the collectors of `rollfleet.torchrl` take it"
    if name in SPEC_FIELDS:
        return f"the job sets it: `spec.{'.'.join(SPEC_FIELDS[name].path)}`"
    near = get_close_matches(name, names, n=1)
    return f"did you mean `{near[0]}`?" if near else f"the keywords are: {', '.join(names)}"


def _written(given: Mapping[str, Any], parameters: Mapping[str, Parameter]) -> dict[str, Any]:
    return {
        name: plain(value)
        for name, value in given.items()
        if value is not None or "None" not in str(parameters[name].annotation)
    }
