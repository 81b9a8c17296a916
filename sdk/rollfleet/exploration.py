"""The way a policy turns its distribution into an action, set by a context instead of an argument."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from rollfleet_api.job import Exploration

__all__ = ["Exploration", "exploration", "exploring"]

_current: ContextVar[Exploration] = ContextVar("rollfleet_exploration", default=Exploration.RANDOM)


def exploration() -> Exploration:
    """Return how policies act now; `Exploration.RANDOM` outside of `exploring`."""
    return _current.get()


@contextmanager
def exploring(how: Exploration) -> Iterator[None]:
    """Make policies act in this way inside the block. Contexts nest; each thread and task has its own.

    Example:
        >>> from rollfleet.exploration import Exploration, exploration, exploring
        >>> with exploring(Exploration.MEAN):
        ...     print(exploration())
        Mean
    """
    token = _current.set(how)
    try:
        yield
    finally:
        _current.reset(token)
