"""The way a policy turns its distribution into an action, set by a context instead of an argument."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from rollfleet.errors import JobInvalid
from rollfleet_api.job import Exploration

__all__ = ["Exploration", "exploration", "exploring"]

_current: ContextVar[Exploration] = ContextVar("rollfleet_exploration", default=Exploration.RANDOM)


def exploration() -> Exploration:
    """Return how policies act now; `Exploration.RANDOM` outside of `exploring`."""
    return _current.get()


@contextmanager
def exploring(how: Exploration | str) -> Iterator[None]:
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
        token = _current.set(Exploration(str(how).capitalize()))
    except ValueError:
        raise JobInvalid(f"how: expected one of {[each.lower() for each in Exploration]}, got {how!r}") from None
    try:
        yield
    finally:
        _current.reset(token)
