"""The user's functions that each worker calls: once at its start, and before and after each batch."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from inspect import signature
from typing import TYPE_CHECKING, Any, Final, Self

from rollfleet.arguments import shown
from rollfleet.errors import JobInvalid
from rollfleet.system.entrypoints import load
from rollfleet_api.collection import CollectSpec

if TYPE_CHECKING:
    from tensordict import TensorDict


@dataclass(frozen=True, slots=True, kw_only=True)
class Hooks:
    """The functions of a worker; None: none.

    Attributes:
        init_fn: Called once in the worker's process, before it makes environments and policy.
        pre_collect_hook: Called before each batch.
        post_collect_hook: Called with a copy of each collected batch [envs, T].
    """

    init_fn: Callable[[], object] | None = None
    pre_collect_hook: Callable[[], object] | None = None
    post_collect_hook: "Callable[[TensorDict], object] | None" = None

    @classmethod
    def of(cls, collect: CollectSpec, given: Mapping[str, Callable[..., object]] = {}) -> Self:
        """Import the functions that a job names, except those that were `given` as objects.

        Raises:
            JobInvalid: One cannot be imported.
        """
        return cls(**{name: given.get(name) or _imported(collect, name) for name in HOOKS})


HOOKS: Final[Mapping[str, int]] = {"init_fn": 0, "pre_collect_hook": 0, "post_collect_hook": 1}
"""The functions, which are keywords of a collector and fields of `CollectSpec`, and their numbers of arguments."""


def check_hook(name: str, value: Any) -> None:
    """Check that a keyword's value can be called as this function is, or is None or a name.

    Raises:
        JobInvalid: It cannot.
    """
    if value is None or isinstance(value, str):
        return
    try:
        if callable(value):
            signature(getattr(value, "forward", value)).bind(*[None] * HOOKS[name])
            return
    except TypeError:
        pass
    except ValueError:  # some built-in callables have no signature
        return
    arguments = "of one argument, a batch" if HOOKS[name] else "without arguments"
    raise JobInvalid(f"`{name}` is a function {arguments}, or its `module:callable`, not {shown(value)}")


def _imported(collect: CollectSpec, name: str) -> Any:
    entrypoint = getattr(collect, name)
    try:
        return None if entrypoint is None else load(entrypoint)
    except ValueError as error:
        alias = CollectSpec.model_fields[name].alias
        raise JobInvalid(f"{name} (`collect.{alias}`): {error}") from error
