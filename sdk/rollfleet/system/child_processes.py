"""Child processes that never outlive us, and whose last words are kept."""

import asyncio
import ctypes
import os
import signal
import sys
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

LAST_LINES = 20
LONGEST_LINE_BYTES = 1 << 20
DRAIN_S = 1.0  # how long what was written before the end may take to be read
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None  # looked up before any fork


@dataclass(slots=True, eq=False)
class Child:
    """A child in a process group of its own, so that what it starts ends with it.

    Attributes:
        name: What we call it.
        process: The process.
    """

    name: str
    process: asyncio.subprocess.Process
    _output: asyncio.ReadTransport
    _last: deque[str] = field(default_factory=lambda: deque(maxlen=LAST_LINES))
    _reader: "asyncio.Task[None] | None" = None

    @property
    def pid(self) -> int:
        """Its process id, which is its group's too."""
        return self.process.pid

    @property
    def ended(self) -> bool:
        """Whether it has ended."""
        return self.process.returncode is not None

    def last_words(self) -> str:
        """The last lines that it wrote."""
        return "\n".join(self._last)

    def last_line(self) -> str:
        """The last line that it wrote that is not blank; empty: none."""
        return next((line.strip() for line in reversed(self._last) if line.strip()), "")

    async def wait(self) -> int:
        """Wait until it has ended and all that it wrote was read. Returns the exit code; minus the signal's number."""
        code = await self.process.wait()
        if self._reader:
            with suppress(TimeoutError):  # a grandchild may hold the pipe open
                await asyncio.wait_for(asyncio.shield(self._reader), DRAIN_S)
        return code

    async def stop(self, grace_s: float) -> None:
        """SIGTERM; when it is gone, at the latest after `grace_s`, SIGKILL to its group. Returns when it is gone."""
        with suppress(ProcessLookupError):
            self.process.terminate()  # it alone: what it has started is its to end in order
        with suppress(TimeoutError):
            await asyncio.wait_for(self.process.wait(), grace_s)
        self.kill(signal.SIGKILL)  # also whatever it started and left behind
        await self.wait()
        self._output.close()

    def kill(self, number: signal.Signals) -> None:
        """Send its group a signal, if it is still there."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    async def _read(self, stream: asyncio.StreamReader, on_line: Callable[[str], None] | None) -> None:
        while line := await _next_line(stream):
            text = line.decode(errors="replace").rstrip("\r\n")
            self._last.append(text)
            if on_line:
                on_line(text)


async def spawn(
    name: str, command: list[str], *, environ: dict[str, str], on_line: Callable[[str], None] | None = None
) -> Child:
    """Start a child. Call it from the main thread: the child dies with the thread that started it.

    Args:
        name: What we call it.
        command: Program and arguments.
        environ: Its whole environment.
        on_line: Called with each line that it writes to standard output or standard error.
    """
    # A pipe of our own: a process whose output is asyncio's ends, to Python 3.11, only when nobody holds the pipe.
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
    child = Child(name, process, output)
    child._reader = asyncio.create_task(child._read(stream, on_line))
    return child


async def _next_line(stream: asyncio.StreamReader) -> bytes:
    try:
        return await stream.readline()
    except ValueError:  # a line longer than the limit: what was read of it is gone
        return b"...\n"


def describe_exit(code: int) -> str:
    """An exit code in words."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


def die_with(parent: int) -> None:
    """In a child of `parent`: SIGKILL when the parent, or the thread that made us, is gone. Only on Linux."""
    if _LIBC is None:
        return
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it went before it was asked for
        os.kill(os.getpid(), signal.SIGKILL)
