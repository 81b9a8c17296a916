"""How long the end of a transport may take."""

from typing import Protocol, runtime_checkable


@runtime_checkable
class Patient(Protocol):
    """What a transport can do besides, where closing it ends the workers."""

    def wait_at_close(self, timeout_s: float) -> None:
        """Let workers have so long to end in order, when it is closed; who is not done then is ended by signals."""
        ...
