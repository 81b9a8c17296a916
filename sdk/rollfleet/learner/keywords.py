"""Keywords of public calls: explicit signatures, which keywords the caller gave, and hints for unknown names."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import wraps
from inspect import Parameter, signature
from typing import Any, ParamSpec, Self, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Keywords:
    """The keywords of one call.

    Example:
        >>> keywords = Keywords(given={"num_envs": 4}, defaults={"num_envs": 1, "quiet": True})
        >>> keywords["num_envs"], keywords["quiet"], "quiet" in keywords.given
        (4, True, False)

    Attributes:
        given: The keywords that the caller wrote, with their values. A None that is the default counts as not written.
        defaults: The defaults that the signature declares.
    """

    given: Mapping[str, Any]
    defaults: Mapping[str, Any]

    @classmethod
    def of(cls, given: Mapping[str, Any], defaults: Mapping[str, Any]) -> Self:
        """Make the keywords of a call from what the caller wrote."""
        written = {
            name: value for name, value in given.items() if value is not None or defaults.get(name, ()) is not None
        }
        return cls(written, defaults)

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
        parameters = signature(declaration).parameters.values()
        keyword_only = [each for each in parameters if each.kind is Parameter.KEYWORD_ONLY]
        positional = {each.name for each in parameters if each.kind is not Parameter.KEYWORD_ONLY}
        defaults = {each.name: each.default for each in keyword_only if each.default is not Parameter.empty}
        names = [each.name for each in keyword_only]
        implementation.__qualname__ = declaration.__qualname__  # Python's own error messages name the public function

        @wraps(declaration)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            others = {name: value for name, value in kwargs.items() if name in positional}
            given = {name: value for name, value in kwargs.items() if name not in positional}
            check_names(given, names, caller)
            return implementation(*args, **others, keywords=Keywords.of(given, defaults))

        return call

    return declare


def hints_names(*, caller: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate a function: a TypeError for an unknown keyword names the nearest known one.

    Args:
        caller: The public name of the function, for error messages.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        names = list(signature(function).parameters)

        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            check_names(kwargs, names, caller)
            return function(*args, **kwargs)

        return call

    return decorate


def check_names(given: Mapping[str, object], names: list[str], caller: str) -> None:
    """Check that a function has all these keywords.

    Raises:
        TypeError: A keyword is unknown. The message hints at the nearest name.
    """
    for name in given:
        if name not in names:
            near = get_close_matches(name, names, n=1)
            hint = f"did you mean `{near[0]}`?" if near else f"the keywords are: {', '.join(names)}"
            raise TypeError(f"{caller} has no keyword `{name}`; {hint}")
