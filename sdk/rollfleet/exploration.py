"""How a policy turns its distribution into an action, told to it by a context rather than by an argument."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from rollfleet_api.job import Exploration

__all__ = ["Exploration", "exploration", "exploring"]

_current: ContextVar[Exploration] = ContextVar("rollfleet_exploration", default=Exploration.RANDOM)


def exploration() -> Exploration:
    """What a policy is to do now; `Exploration.RANDOM` outside of `exploring`."""
    return _current.get()


@contextmanager
def exploring(how: Exploration) -> Iterator[None]:
    """Policies called inside act as `how` says. Contexts nest; each thread and task has its own."""
    token = _current.set(how)
    try:
        yield
    finally:
        _current.reset(token)
