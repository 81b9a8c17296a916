"""Child processes: each leads a process group, ends with its parent, and has its exit described in words.

`spawn` starts a program on asyncio and keeps its last output. The other functions serve any way to start a process.
"""

import asyncio
import ctypes
import os
import signal
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Protocol
from weakref import WeakSet

from rollfleet_api.text import last_line

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

LAST_LINES, LONGEST_LINE = 2000, 4000  # lines, characters
LONGEST_LINE_BYTES = 1 << 20
DRAIN_S = 1.0  # to read the output that was written before the exit
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None  # looked up before any fork
_PRIVATE: "WeakSet[Connection | socket.socket]" = WeakSet()
_closes_at_fork = False


class ChildProcess(Protocol):
    """A child process that leads a process group of its own."""

    @property
    def pid(self) -> int:
        """Its process id, and its group's."""

    def wait(self, timeout_s: float) -> int | None:
        """Return its exit code, or minus the signal's number; None: it still runs after `timeout_s`."""


def describe_exit(code: int) -> str:
    """Describe an exit code in words."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


def signal_group(process: ChildProcess, number: signal.Signals) -> None:
    """Send a signal to a child and to the processes that it started."""
    try:
        os.killpg(process.pid, number)
    except (ProcessLookupError, PermissionError):  # the group has ended, or does not exist yet
        with suppress(ProcessLookupError):
            if process.wait(0) is None:
                os.kill(process.pid, number)


def terminate(processes: Iterable[ChildProcess], *, grace_s: float, kill_s: float) -> None:
    """End children: SIGTERM to their groups, then SIGKILL to those that still run after `grace_s`.

    Returns when all have ended, at the latest `kill_s` after SIGKILL.
    """
    running = _still_running(processes, 0)
    for number, wait_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, kill_s)):
        for process in running:
            signal_group(process, number)
        running = _still_running(running, wait_s)


def _still_running(processes: Iterable[ChildProcess], timeout_s: float) -> list[ChildProcess]:
    until = time.monotonic() + timeout_s
    return [process for process in processes if process.wait(max(0.0, until - time.monotonic())) is None]


def outlives_children() -> bool:
    """Whether this thread lasts as long as its process. `die_with` ties a child to the thread that started it."""
    return threading.current_thread() is threading.main_thread()


def die_with(parent: int) -> None:
    """In a child of `parent`: receive SIGKILL when the parent, or the thread that started us, ends. Linux only."""
    if _LIBC is None:
        return
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before the request
        os.kill(os.getpid(), signal.SIGKILL)


def close_in_children(private: "Connection | socket.socket") -> None:
    """Close the copy of this end of a connection in each process forked from now on.

    The other end would not notice this process's end as long as a copy is open.
    """
    global _closes_at_fork
    if not _closes_at_fork:
        os.register_at_fork(after_in_child=_close_private)
        _closes_at_fork = True
    _PRIVATE.add(private)


def _close_private() -> None:
    for private in list(_PRIVATE):
        private.close()


@dataclass(slots=True, eq=False)
class Child:
    """A program that `spawn` has started, in a process group of its own: its own children end with it.

    Attributes:
        name: Its name in messages.
        started_s: When it was started, in seconds since the epoch.
        ended_s: When `wait` found its end; None: not yet.
    """

    name: str
    process: asyncio.subprocess.Process
    _output: asyncio.ReadTransport
    _last: deque[str]
    _reader: "asyncio.Task[None]"
    started_s: float = field(default_factory=time.time)
    ended_s: float | None = None

    @property
    def pid(self) -> int:
        """Its process id, and its group's."""
        return self.process.pid

    @property
    def ended(self) -> bool:
        """Whether it has ended."""
        return self.process.returncode is not None

    def last_output(self, lines: int = 20) -> str:
        """Return the last lines that it wrote, at most 2,000. Long ones are cut."""
        return "\n".join(list(self._last)[-lines:])

    def describe_end(self) -> str:
        """Describe its end in a sentence, with the last line that it wrote."""
        assert self.process.returncode is not None, "it still runs"
        said = last_line(self.last_output(LAST_LINES)) or "none"
        return f"{self.name} ended: {describe_exit(self.process.returncode)}; its last line: {said}"

    async def wait(self) -> int:
        """Wait until it has ended and its output is read. Returns its exit code, or minus the signal's number."""
        code = await self.process.wait()
        with suppress(TimeoutError):  # a grandchild may hold the pipe open
            await asyncio.wait_for(asyncio.shield(self._reader), DRAIN_S)
        self.ended_s = self.ended_s or time.time()
        return code

    async def stop(self, grace_s: float) -> None:
        """Send SIGTERM, wait `grace_s` at most, then send SIGKILL to its group. Returns when it has ended."""
        with suppress(ProcessLookupError):
            self.process.terminate()  # not the group: a program ends its own children in order
        with suppress(TimeoutError):
            await asyncio.wait_for(self.process.wait(), grace_s)
        self.kill(signal.SIGKILL)  # also the processes that it left behind
        await self.wait()
        self._output.close()

    def kill(self, number: signal.Signals) -> None:
        """Send a signal to its group, if the group still exists."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, number)


async def spawn(
    name: str, command: list[str], *, environ: dict[str, str], on_line: Callable[[str], None] | None = None
) -> Child:
    """Start a child. Call it from the main thread: on Linux the child dies with the thread that started it.

    `environ` is its complete environment. `on_line` takes each line of its standard output and standard error.
    """
    # A pipe of our own: in Python 3.11, a process with asyncio's pipe has not ended while a grandchild holds the pipe.
    ours, theirs = os.pipe()
    stream = asyncio.StreamReader(limit=LONGEST_LINE_BYTES)
    output, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(stream), os.fdopen(ours, "rb", buffering=0)
    )
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            env=environ,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=theirs,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=partial(die_with, os.getpid()) if sys.platform == "linux" else None,
        )
    except BaseException:
        output.close()
        raise
    finally:
        os.close(theirs)
    last = deque[str](maxlen=LAST_LINES)
    return Child(name, process, output, last, asyncio.create_task(_read(stream, last, on_line)))


async def _read(stream: asyncio.StreamReader, last: deque[str], on_line: Callable[[str], None] | None) -> None:
    while line := await _next_line(stream):
        text = line.decode(errors="replace").rstrip("\r\n")
        last.append(text[:LONGEST_LINE])
        if on_line:
            on_line(text)


async def _next_line(stream: asyncio.StreamReader) -> bytes:
    try:
        return await stream.readline()
    except ValueError:  # longer than the limit: asyncio has dropped it
        return b"...\n"
