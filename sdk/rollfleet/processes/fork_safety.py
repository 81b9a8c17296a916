"""Sockets that stay with the process that made them: a copy in a forked child would hide that this process is gone."""

import os
import socket
from weakref import WeakSet

_OURS: WeakSet[socket.socket] = WeakSet()
_watching = False


def close_in_children(ours: socket.socket) -> None:
    """From now on, children forked from this process close their copy of this socket at once."""
    global _watching
    if not _watching:
        os.register_at_fork(after_in_child=_close)
        _watching = True
    _OURS.add(ours)


def _close() -> None:
    for ours in list(_OURS):
        ours.close()
