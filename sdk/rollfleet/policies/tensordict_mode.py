"""TensorDict's modules, told how to explore: as `exploring` does, by thread.

TensorDict keeps its interaction type for the whole process. Where a policy acts behind the learner's back, that would
change what the learner's own modules do, in the middle of its training. So from the first time that a policy acts on
another thread than the main one, such a thread has an interaction type of its own; all others share one as before.
(Code of `torch.compile` asks for it while it is traced, and keeps the answer.)
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rollfleet.exploration import Exploration


class _Own(threading.local):
    """A thread's own interaction type, where it has one."""

    there = False
    mode: Any = None


class _ByThread:
    """Stands where TensorDict keeps its interaction type.

    Args:
        shared: What stood there: that of all threads that have none of their own.
    """

    def __init__(self, shared: Any) -> None:
        self._shared, self.own = shared, _Own()

    def get_mode(self) -> Any:
        """See `tensordict.nn.probabilistic.interaction_type`."""
        return self.own.mode if self.own.there else self._shared.get_mode()

    def set_mode(self, mode: Any) -> None:
        """See `tensordict.nn.set_interaction_type`."""
        if self.own.there:
            self.own.mode = mode
        else:
            self._shared.set_mode(mode)


_installing = threading.Lock()


@contextmanager
def interacting(how: Exploration) -> Iterator[None]:
    """TensorDict's modules called inside act as `how` says; those of other threads do as they did."""
    from tensordict.nn import InteractionType, set_interaction_type

    own = None if threading.current_thread() is threading.main_thread() else _own()
    if own is not None:
        own.there = True
    try:
        with set_interaction_type(InteractionType[how.name]):
            yield
    finally:
        if own is not None:
            own.there, own.mode = False, None


def _own() -> _Own | None:
    """This thread's own; None: this version of TensorDict keeps its interaction type elsewhere."""
    from tensordict.nn import probabilistic

    with _installing:
        kept = getattr(probabilistic, "_interaction_type", None)
        if not (hasattr(kept, "get_mode") and hasattr(kept, "set_mode")):
            return None
        if not isinstance(kept, _ByThread):
            kept = probabilistic._interaction_type = _ByThread(kept)
        return kept.own
