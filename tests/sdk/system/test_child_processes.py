"""Child processes: their last output is kept, and neither they nor their children outlive us."""

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable

import pytest
from tests.held import descriptors
from tests.running import alive
from tests.waiting import wait_until

from rollfleet.system.child_processes import Child, describe_exit, spawn
from rollfleet_api.text import last_line

ENVIRON = dict(os.environ)


async def python(program: str, on_line: Callable[[str], None] | None = None) -> Child:
    """Start a child that runs a Python program."""
    return await spawn("child", [sys.executable, "-u", "-c", program], environ=ENVIRON, on_line=on_line)


async def begun(program: str, lines: int = 1) -> tuple[Child, list[str]]:
    """Start a child, and return it with its first lines once it has written them."""
    written: asyncio.Queue[str] = asyncio.Queue()
    child = await python(program, written.put_nowait)
    return child, [await asyncio.wait_for(written.get(), 20) for _ in range(lines)]


# Output.


async def test_last_lines_of_both_outputs_are_kept() -> None:
    program = "import sys; [print(i) for i in range(100)]; sys.stdout.flush(); print('the end', file=sys.stderr)"
    child = await python(program)
    assert await child.wait() == 0
    lines = child.last_output().splitlines()
    assert lines == [*map(str, range(81, 100)), "the end"]


async def test_each_line_is_reported_when_it_is_written() -> None:
    child, lines = await begun("import time; print('one'); time.sleep(600)")
    assert lines == ["one"]
    assert not child.ended
    await child.stop(5)


@pytest.mark.parametrize(
    ("program", "line"),
    [
        (r"import sys; sys.stdout.buffer.write(b'caf\xe9\r\n')", "caf�"),
        ("import sys; sys.stdout.write('no end of line')", "no end of line"),
        ("print('a' * (3 << 20)); print('after')", "after"),
        ("print('Traceback'); print('  ValueError: no'); print(); print('  ')", "ValueError: no"),
        ("pass", ""),
    ],
    ids=["not UTF-8", "no newline", "a line of 3 MiB", "blank lines at its end", "nothing"],
)
async def test_odd_output_is_read_to_its_last_line_that_is_not_blank(program: str, line: str) -> None:
    child = await python(program)
    assert await child.wait() == 0
    assert last_line(child.last_output()) == line


# Exits.


async def test_missing_program_is_an_error() -> None:
    before = descriptors()
    with pytest.raises(FileNotFoundError, match="no-such-program"):
        await spawn("child", ["/no-such-program"], environ=ENVIRON)
    await asyncio.sleep(0)  # asyncio closes descriptors in the loop's next turn
    assert descriptors() <= before


async def test_exit_code_or_signal_is_returned() -> None:
    assert await (await python("raise SystemExit(3)")).wait() == 3
    child = await python("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    assert await child.wait() == -signal.SIGKILL
    assert child.ended


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (0, "exit code 0"),
        (3, "exit code 3"),
        (-9, "killed by SIGKILL"),
        (-11, "killed by SIGSEGV"),
        (-200, "signal 200"),
    ],
)
def test_exit_is_described(code: int, words: str) -> None:
    assert describe_exit(code).endswith(words)


POLITE = "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(7)); print('ready'); time.sleep(600)"
STUBBORN = "import signal, time; signal.signal(15, signal.SIG_IGN); print('ready'); time.sleep(600)"


async def test_stopped_child_chooses_its_exit_code() -> None:
    child, _ = await begun(POLITE)
    await child.stop(30)
    assert await child.wait() == 7


async def test_child_that_ignores_sigterm_is_killed_after_its_grace() -> None:
    child, _ = await begun(STUBBORN)
    began = time.monotonic()
    await child.stop(0.3)
    assert time.monotonic() - began >= 0.3
    assert await child.wait() == -signal.SIGKILL


async def test_stopping_a_child_that_has_ended_is_harmless() -> None:
    child = await python("pass")
    await child.wait()
    await child.stop(5)
    child.kill(signal.SIGTERM)


WITH_GRANDCHILD = (
    "import signal, subprocess, sys, time\n"
    f"grandchild = subprocess.Popen([sys.executable, '-u', '-c', {STUBBORN!r}])\n"
    "signal.signal(signal.SIGUSR1, lambda *_: sys.exit())\n"
    "print('grandchild', grandchild.pid)\n"
    "time.sleep(600)\n"
)


def test_grandchild_that_holds_the_output_open_does_not_delay_wait_and_ends_with_its_group() -> None:
    async def go() -> int:
        child, lines = await begun(WITH_GRANDCHILD, lines=2)
        assert "ready" in lines  # from now on it ignores SIGTERM
        (line,) = {*lines} - {"ready"}
        grandchild = int(line.removeprefix("grandchild "))
        os.kill(child.pid, signal.SIGUSR1)
        assert await asyncio.wait_for(child.wait(), 10) == 0
        assert alive(grandchild)
        await child.stop(5)
        return grandchild

    grandchild = asyncio.run(go())
    wait_until(lambda: not alive(grandchild), 10)
