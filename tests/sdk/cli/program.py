"""The `rollfleet` command as a separate process, and the processes that it starts.

All processes of a command inherit a marker variable. So a test can assert that no process is left,
and never touches a foreign process.
"""

import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import dedent

import psutil
import yaml
from tests.api.job_data import job_data
from tests.job_server import Server

from rollfleet_api.permissions import Role

# The size of another terminal than its own would win over that of its own.
NOT_INHERITED = ("ROLLFLEET_", "COLUMNS", "LINES")
MARK = "ROLLFLEET_TEST_MARK"
PATIENCE_S = 90.0  # timeout of steps that take a few seconds on a calm machine
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


class Program:
    """A running `rollfleet ...`.

    Args:
        arguments: The command's arguments.
        folder: Its working folder.
        environ: Its whole environment.
        terminal: Whether to give it a terminal of 160 columns. Otherwise its output is a pipe.
    """

    def __init__(self, arguments: list[str], folder: Path, environ: dict[str, str], *, terminal: bool) -> None:
        self._mark = uuid.uuid4().hex
        self._text, self._seen, self._changed = "", 0, threading.Condition()
        if terminal:
            self._input, child_end = pty.openpty()
            fcntl.ioctl(child_end, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 160, 0, 0))
            self._output = self._input
        else:
            self._output, child_end = os.pipe()
            self._input = -1
        self.process = subprocess.Popen(
            [sys.executable, "-m", "rollfleet", *arguments],
            cwd=folder,
            env=environ | {MARK: self._mark},
            stdin=child_end if terminal else subprocess.DEVNULL,
            stdout=child_end,
            stderr=child_end,
            start_new_session=True,
            preexec_fn=_take_terminal if terminal else None,
        )
        os.close(child_end)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def output(self) -> str:
        """Its output until now, without escape sequences."""
        return ESCAPES.sub("", self._text).replace("\r\n", "\n")

    def wait_for(self, pattern: str, *, timeout_s: float = PATIENCE_S) -> re.Match[str]:
        """Wait until its output matches, after the match of the call before."""
        compiled = re.compile(pattern)

        def found() -> re.Match[str] | None:
            return compiled.search(self.output, self._seen)

        with self._changed:
            self._changed.wait_for(lambda: found() or not self._reader.is_alive(), timeout_s)
            match = found()
        assert match, f"{pattern!r} is not in the output after {self._seen} characters:\n{self.output}"
        self._seen = match.end()
        return match

    def wait(self, *, timeout_s: float = PATIENCE_S) -> int:
        """Wait for its end. Return the exit code, or minus the number of the signal that killed it."""
        code = self.process.wait(timeout_s)
        self._reader.join(5)
        return code

    def end_by(self, number: signal.Signals) -> int:
        """Send a signal to it, and wait for its end. Return the exit code, as `wait` does."""
        self.process.send_signal(number)
        return self.wait()

    def stop_by(self, number: signal.Signals) -> int:
        """End it as `end_by` does, and assert that its output has no traceback."""
        code = self.end_by(number)
        assert "Traceback" not in self.output, self.output
        return code

    def press_ctrl_c(self) -> None:
        os.write(self._input, b"\x03")

    def processes(self) -> dict[psutil.Process, list[str]]:
        """Return its running processes, itself included, with their command lines."""
        found: dict[psutil.Process, list[str]] = {}
        for process in psutil.process_iter():
            with suppress(psutil.Error):  # it has ended, or is another user's
                if process.environ().get(MARK) == self._mark:
                    found[process] = process.cmdline()
        return found

    def kill_nats(self) -> None:
        servers = [each for each, command in self.processes().items() if command[-1:] and "nats.json" in command[-1]]
        min(servers, key=lambda each: each.pid).kill()

    def kill_worker(self, index: int) -> None:
        """Send SIGKILL to a worker, but not to its child processes."""
        workers = [each for each, command in self.processes().items() if command[-1:] == ["worker"]]
        family = [each for each in workers if each.environ().get("ROLLFLEET_WORKER") == str(index)]
        (first,) = (each for each in family if each.parent() not in family)  # the others are its forks
        first.kill()

    def assert_nothing_runs(self, *, within_s: float = 0.0) -> None:
        """Assert that all of its processes have ended, or end in time."""
        until = time.monotonic() + within_s
        while (left := self.processes()) and time.monotonic() < until:
            time.sleep(0.05)
        assert not left, f"{left}\n{self.output}"

    def end(self) -> None:
        for _ in range(3):  # a process may start another one meanwhile
            for process in self.processes():
                with suppress(psutil.NoSuchProcess):
                    process.kill()
        self.process.wait(PATIENCE_S)
        self._reader.join(5)
        os.close(self._output)

    def _read(self) -> None:
        while True:
            try:
                data = os.read(self._output, 1 << 16)
            except OSError:  # the other end of the terminal is closed
                data = b""
            with self._changed:
                self._text += data.decode(errors="replace")
                self._changed.notify_all()
            if not data:
                return


@dataclass
class Workplace:
    """A folder with a job, and the commands that were started in it.

    Attributes:
        folder: The folder of job.yaml, learner.py and other files.
        temporary: The commands' temporary folder.
    """

    folder: Path
    temporary: Path
    _programs: list[Program] = field(default_factory=list)

    def write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.write_text(dedent(text))
        return path

    def write_job(self, **spec: object) -> Path:
        """Write job.yaml: the smallest job `test`, with these fields of the spec, in camelCase."""
        smallest = {"workers": 1, "policy": {"random": {}}, "collect": {"framesPerBatch": 64, "totalFrames": 640}}
        return self.write("job.yaml", yaml.safe_dump(job_data({"name": "test"}, **smallest | spec)))

    def start(self, *arguments: str, terminal: bool = False, environ: Mapping[str, str] | None = None) -> Program:
        """Start `rollfleet` with these arguments; `environ` adds to the environment."""
        whole = {
            **{name: value for name, value in os.environ.items() if not name.startswith(NOT_INHERITED)},
            "TMPDIR": str(self.temporary),
            "TERM": "xterm",
            **(environ or {}),
        }
        program = Program(list(arguments), self.folder, whole, terminal=terminal)
        self._programs.append(program)
        return program

    def run(self, *arguments: str, terminal: bool = False) -> Program:
        """Start `rollfleet run job.yaml`, with these arguments after it."""
        return self.start("run", "job.yaml", *arguments, terminal=terminal)

    def start_worker(self, server: Server, *arguments: str, **environ: str) -> Program:
        """Start `rollfleet worker` for the server's job; it can import the modules of the folder."""
        path = os.pathsep.join((str(self.folder), os.environ.get("PYTHONPATH", "")))
        variables = {**server.address(Role.WORKER).variables(), "PYTHONPATH": path}
        return self.start("worker", *arguments, environ=variables | environ)

    def wait_for_nats_port(self) -> int:
        """Return the port of the nats-server of a running command."""
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until:
            for file in self.temporary.glob("rollfleet-*/*.ports"):
                if port := re.search(r":(\d+)", file.read_text()):
                    return int(port[1])
            time.sleep(0.02)
        raise AssertionError("no nats-server started")

    def assert_nothing_is_left(self) -> None:
        """Assert that no process of the commands and no temporary file is left."""
        for program in self._programs:
            program.assert_nothing_runs()
        # The import of tensordict creates a cache folder of torch.
        assert not [path for path in self.temporary.iterdir() if not path.name.startswith("torchinductor_")]

    def end(self) -> None:
        """End what still runs. Commands that have all ended, none of them by a signal, have left nothing."""
        codes = [program.process.poll() for program in self._programs]
        try:
            if all(code is not None and code >= 0 for code in codes):
                self.assert_nothing_is_left()
        finally:
            for program in self._programs:
                program.end()


def _take_terminal() -> None:
    """In the child process: make standard input the controlling terminal."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
