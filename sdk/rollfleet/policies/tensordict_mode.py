"""The interaction type of TensorDict's modules, set by thread, so that a policy in the background does not change it.

TensorDict keeps one interaction type for the whole process. A policy that acts on another thread would change how the
learner's own modules act, in the middle of its training. So such a thread has its own interaction type while it acts.
All others share one as before. (Code under `torch.compile` reads it while it is traced, and keeps that value.)

This replaces a private object of tensordict, with its methods `get_mode` and `set_mode`. Versions 0.9 to 0.14 have it.
If a version lacks it, all threads share one again, and tests/sdk/policies/test_tensordict_mode.py fails.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rollfleet.exploration import Exploration

_installing = threading.Lock()


class _ByThread(threading.local):
    """Replaces the object in which TensorDict keeps its interaction type."""

    def __init__(self, shared: Any) -> None:  # called in each thread
        self._shared, self.acts, self.mode = shared, False, None

    def get_mode(self) -> Any:
        return self.mode if self.acts else self._shared.get_mode()

    def set_mode(self, mode: Any) -> None:
        if self.acts:
            self.mode = mode
        else:
            self._shared.set_mode(mode)


@contextmanager
def interacting(how: Exploration) -> Iterator[None]:
    """Make TensorDict's modules called inside act by `how`; modules on other threads are not affected."""
    from tensordict.nn import InteractionType, probabilistic, set_interaction_type

    own: Any = threading.local()
    if threading.current_thread() is not threading.main_thread() and hasattr(probabilistic, "_interaction_type"):
        with _installing:
            if not isinstance(probabilistic._interaction_type, _ByThread):
                probabilistic._interaction_type = _ByThread(probabilistic._interaction_type)
            own = probabilistic._interaction_type
    own.acts = True
    try:
        with set_interaction_type(InteractionType[how.name]):
            yield
    finally:
        own.acts, own.mode = False, None
