"""The way a policy turns its distribution into an action, set by a context instead of an argument."""

from contextlib import AbstractContextManager, ContextDecorator
from contextvars import ContextVar, Token

from rollfleet.errors import JobInvalid
from rollfleet_api.job import Exploration

__all__ = ["Exploration", "exploration", "exploring"]

_current: ContextVar[Exploration] = ContextVar("rollfleet_exploration", default=Exploration.RANDOM)


def exploration() -> Exploration:
    """Return how policies act now; `Exploration.RANDOM` outside of `exploring`."""
    return _current.get()


def exploring(how: Exploration | str) -> AbstractContextManager[None]:
    """Make policies act in this way, such as "mode", inside the block. Contexts nest; each thread and task has its own.

    Raises:
        JobInvalid: `how` is not one of the values of `Exploration`, in any case.

    Example:
        >>> from rollfleet.exploration import Exploration, exploration, exploring
        >>> with exploring(Exploration.MEAN):
        ...     print(exploration())
        Mean
    """
    try:
        return _Exploring(Exploration(str(how).capitalize()))
    except ValueError:
        raise JobInvalid(f"how: expected one of {[each.lower() for each in Exploration]}, got {how!r}") from None


class _Exploring(AbstractContextManager[None], ContextDecorator):
    """Entered at each step of a policy: a function with `yield` would take six times as long."""

    def __init__(self, how: Exploration) -> None:
        self._how, self._entered = how, list[Token[Exploration]]()

    def __enter__(self) -> None:
        self._entered.append(_current.set(self._how))

    def __exit__(self, *error: object) -> None:
        _current.reset(self._entered.pop())
