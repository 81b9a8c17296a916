"""Locks between processes. The system releases those of a process that ends, however it ends."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager

from rollfleet.system.shared_memory import SharedMemory


class FileLocks:
    """Any number of locks, by number. A process holds them, not a thread: threads do not exclude each other.

    A forked process holds none of its parent's locks.

    Example:
        >>> locks = FileLocks.create()
        >>> with locks.held(3):
        ...     print("no other process holds lock 3")
        no other process holds lock 3

    Args:
        file: An empty file. A process opens it once and never maps it: closing any of its descriptors releases all
            locks of the process.
    """

    def __init__(self, file: SharedMemory) -> None:
        self._file = file

    @classmethod
    def create(cls) -> "FileLocks":
        """Create locks that no process holds."""
        return cls(SharedMemory.create())

    def fileno(self) -> int:
        """Return the file's descriptor."""
        return self._file.fileno()

    @contextmanager
    def held(self, number: int) -> Iterator[None]:
        """Wait for this lock, and hold it inside the block."""
        fcntl.lockf(self._file.fileno(), fcntl.LOCK_EX, 1, number)
        try:
            yield
        finally:
            self.give(number)

    def take(self, number: int) -> bool:
        """Take this lock without waiting. Returns False if another process holds it."""
        try:
            fcntl.lockf(self._file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, number)
        except (BlockingIOError, PermissionError):
            return False
        return True

    def give(self, number: int) -> None:
        """Release this lock."""
        fcntl.lockf(self._file.fileno(), fcntl.LOCK_UN, 1, number)
