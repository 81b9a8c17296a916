"""The end of a process's output, in bounds however much it writes."""

from collections import deque
from typing import Final

MAX_LINES: Final = 10_000
MAX_CHARACTERS: Final = 1 << 20
LONGEST_LINE: Final = 4_000


class LogTail:
    r"""The last lines of a process.

    Example:
        >>> tail = LogTail()
        >>> for number in range(20_000):
        ...     tail.add(f"line {number}")
        >>> tail.text(2)
        'line 19998\nline 19999'

    Attributes:
        is_saved: Whether all lines were saved; the one that saves them sets it.
    """

    def __init__(self) -> None:
        self.is_saved = True
        self._lines: deque[str] = deque()
        self._characters = 0

    def add(self, line: str) -> None:
        """Add a line. A long one is cut, and the oldest lines go."""
        line = line[:LONGEST_LINE]
        self._lines.append(line)
        self._characters += len(line) + 1
        while len(self._lines) > MAX_LINES or self._characters > MAX_CHARACTERS:
            self._characters -= len(self._lines.popleft()) + 1
        self.is_saved = False

    def text(self, lines: int = MAX_LINES) -> str:
        """Return the last lines."""
        return "\n".join(list(self._lines)[-lines:])
