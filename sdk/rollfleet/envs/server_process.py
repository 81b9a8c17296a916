"""Environment servers as a vector knows them, and the ones that are processes of its own."""

import multiprocessing
import select
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, Protocol, TypeAlias

import gymnasium
from gymnasium.vector.utils import CloudpickleWrapper

from rollfleet.envs.array_pipe import ArrayPipe
from rollfleet.envs.server import SharedArrays, serve
from rollfleet.system.child_processes import close_in_children, describe_exit

GRACE_S = 2.0
"""Time for a process to end that died, or whose last answer was not read: its environment may hang in a step."""

Maker: TypeAlias = Callable[[], gymnasium.Env[Any, Any]]


class EnvServer(Protocol):
    """A server with a group of a vector's environments."""

    @property
    def name(self) -> str:
        """What it is, for messages."""

    @property
    def pipe(self) -> Connection | ArrayPipe:
        """The connection to it."""

    def poll(self, timeout_s: float | None) -> bool:
        """Wait until there is something to read, or it is gone. An interruption here loses nothing."""

    def is_alive(self) -> bool:
        """Whether it may answer."""

    def end_of(self, *, built: bool) -> str:
        """Return how it ended, in words. `built`: whether it had built its environments."""

    def join(self, timeout_s: float | None) -> None:
        """Wait until it has ended; None: as long as that takes."""

    def kill(self) -> None:
        """End it now. Returns when it has ended."""


Launch: TypeAlias = Callable[[int, Sequence[Maker], SharedArrays, slice], EnvServer]
"""Starts the server of this index, with the functions that make its environments, and its group."""


class ServerProcess:
    """A server in a process of this machine. It ends when its pipe is closed."""

    def __init__(self, _: int, makers: Sequence[Maker], shared: SharedArrays, group: slice) -> None:
        """Start it: see `Launch`."""
        context = multiprocessing.get_context()
        ours, theirs = context.Pipe()
        close_in_children(ours)
        self.name, self.pipe = f"the process of environments {group.start} to {group.stop - 1}", ours
        with theirs:
            process = context.Process(
                target=serve,
                args=(CloudpickleWrapper(partial(list, makers)), shared, group, theirs),
                name=self.name,
                daemon=True,
            )
            process.start()
        self.process: BaseProcess = process
        self._poll = select.poll()
        self._poll.register(ours, select.POLLIN)

    def poll(self, timeout_s: float | None) -> bool:
        """See `EnvServer`."""
        return bool(self._poll.poll(None if timeout_s is None else 1000 * timeout_s))

    def is_alive(self) -> bool:
        """See `EnvServer`."""
        return self.process.is_alive()

    def end_of(self, *, built: bool) -> str:
        """See `EnvServer`."""
        self.join(GRACE_S)  # its pipe is closed a moment before
        code = self.process.exitcode
        how = "closed its pipe" if code is None else f"ended: {describe_exit(code)}"
        if not built and multiprocessing.get_start_method() == "spawn":
            how += (
                "; where multiprocessing spawns (`import torchrl` sets it), a program makes its environments under "
                '`if __name__ == "__main__":`'
            )
        return f"{self.name} (pid {self.process.pid}) {how}"

    def join(self, timeout_s: float | None) -> None:
        """See `EnvServer`."""
        self.process.join(timeout_s)

    def kill(self) -> None:
        """See `EnvServer`."""
        self.process.kill()
        self.process.join()
