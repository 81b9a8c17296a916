"""The interaction type of TensorDict's modules, set by thread, so that a policy in the background does not change it.

TensorDict keeps one interaction type for the whole process. A policy that acts on another thread would change how the
learner's own modules act, in the middle of its training. So from the first time that a policy acts on a thread other
than the main one, such a thread has its own interaction type. All other threads share one as before. (Code under
`torch.compile` reads the interaction type while it is traced, and keeps that value.)

This replaces a private part of tensordict: the object `tensordict.nn.probabilistic._interaction_type`, with its methods
`get_mode` and `set_mode`. Versions 0.9 to 0.14 have it. If a version lacks it, all threads share one interaction type
again, and tests/sdk/policies/test_tensordict_mode.py fails.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rollfleet.exploration import Exploration


class _ThreadMode(threading.local):
    """The interaction type of a thread, if it has its own."""

    active = False
    mode: Any = None


class _ByThread:
    """Replaces the object in which TensorDict keeps its interaction type.

    Args:
        shared: The replaced object, for all threads without an interaction type of their own.
    """

    def __init__(self, shared: Any) -> None:
        self._shared, self.own = shared, _ThreadMode()

    def get_mode(self) -> Any:
        """See `tensordict.nn.probabilistic.interaction_type`."""
        return self.own.mode if self.own.active else self._shared.get_mode()

    def set_mode(self, mode: Any) -> None:
        """See `tensordict.nn.set_interaction_type`."""
        if self.own.active:
            self.own.mode = mode
        else:
            self._shared.set_mode(mode)


_installing = threading.Lock()


@contextmanager
def interacting(how: Exploration) -> Iterator[None]:
    """Make TensorDict's modules called inside act by `how`; modules on other threads are not affected."""
    from tensordict.nn import InteractionType, set_interaction_type

    own = None if threading.current_thread() is threading.main_thread() else _thread_mode()
    if own is not None:
        own.active = True
    try:
        with set_interaction_type(InteractionType[how.name]):
            yield
    finally:
        if own is not None:
            own.active, own.mode = False, None


def _thread_mode() -> _ThreadMode | None:
    """Return this thread's interaction type; None: this version of tensordict keeps it elsewhere."""
    from tensordict.nn import probabilistic

    with _installing:
        kept = getattr(probabilistic, "_interaction_type", None)
        if not (hasattr(kept, "get_mode") and hasattr(kept, "set_mode")):
            return None
        if not isinstance(kept, _ByThread):
            kept = probabilistic._interaction_type = _ByThread(kept)
        return kept.own
