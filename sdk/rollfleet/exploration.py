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
    """Make policies act in this way inside the block. Contexts nest; each thread and task has its own.

    Args:
        how: An `Exploration`, or its name as `rollfleet.Collector` takes it: "random", "mode", "mean", "deterministic".

    Raises:
        JobInvalid: It is another value.

    Example:
        >>> from rollfleet.exploration import Exploration, exploration, exploring
        >>> with exploring(Exploration.MEAN):
        ...     print(exploration())
        Mean
    """
    named = {each.lower(): each for each in Exploration}
    if not isinstance(how, str) or how.lower() not in named:
        raise JobInvalid(f"exploring(how): expected {' or '.join(map(repr, named))}, got {how!r}")
    token = _current.set(named[how.lower()])
    try:
        yield
    finally:
        _current.reset(token)
