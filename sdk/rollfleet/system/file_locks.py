"""Locks among processes that the system takes from a process that ends, however it does."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager

from rollfleet.system.shared_memory import SharedMemory


class FileLocks:
    """Any number of locks, by number. Those of a process are all of its threads': among threads they exclude nobody.

    A forked process has none of its parent's.

    Args:
        file: Nothing is in it. A process has it once, and never maps it: to close any descriptor of it is to give up
            all of the process's locks.
    """

    def __init__(self, file: SharedMemory) -> None:
        self._file = file

    @classmethod
    def create(cls) -> "FileLocks":
        """New ones, which nobody holds."""
        return cls(SharedMemory.create())

    def fileno(self) -> int:
        """Descriptor of the file."""
        return self._file.fileno()

    @contextmanager
    def held(self, number: int) -> Iterator[None]:
        """Wait for this lock; it is held inside the block."""
        fcntl.lockf(self._file.fileno(), fcntl.LOCK_EX, 1, number)
        try:
            yield
        finally:
            self.give(number)

    def take(self, number: int) -> bool:
        """Hold this lock from now on; False: another process does."""
        try:
            fcntl.lockf(self._file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, number)
        except (BlockingIOError, PermissionError):
            return False
        return True

    def give(self, number: int) -> None:
        """Hold it no more."""
        fcntl.lockf(self._file.fileno(), fcntl.LOCK_UN, 1, number)
