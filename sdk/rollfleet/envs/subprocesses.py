"""Environments in separate processes that each step a group of them, over shared memory."""

import ctypes
import multiprocessing
import pickle
import signal
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from math import prod
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, TypeAlias

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import CloudpickleWrapper, batch_space

from rollfleet.envs.serial import SerialVectorEnv, Step
from rollfleet.envs.space_tree import Array, Space, SpaceTree, array_dtype, array_shape
from rollfleet.errors import EnvironmentFailed, EnvironmentInvalid
from rollfleet.system.child_processes import describe_exit
from rollfleet.system.process_setup import seed_generators

_STEP, _CLOSE, _ECHO, _CALL = b"step", b"close", b"echo", b"call"
_INVALID, _FAILED, _VALUE = b"invalid", b"failed ", b"value  "  # what an answer begins with, unless it is empty
GRACE_S = 2.0
"""Time for a process to close its environments."""

Maker: TypeAlias = Callable[[], gymnasium.Env[Any, Any]]


class ProcessVectorEnv(gymnasium.vector.VectorEnv[Any, Any, Any]):
    """A vector of environments over several processes, which does not reset by itself.

    Observations, rewards, flags and actions are in memory that all processes share. It owns all arrays that it returns;
    the next call changes them. The processes end with the one that started them, however it ends. They start as this
    program's `multiprocessing` does: a fork waits forever for a lock that another thread holds at that moment.

    After an exception out of `step` or `reset`, reset all environments before the next step.

    Attributes:
        processes: The processes, in the order of their environments.
        takes_seeds: Whether `reset` takes one seed for each environment.
        info_keys: Keys of infos that are kept, from the next `reset` on: see `SerialVectorEnv`.
    """

    takes_seeds = True

    def __init__(self, makers: Sequence[Maker], processes: int, *, sample: Maker | None = None) -> None:
        """Start the processes, and wait until each has built its environments.

        Args:
            makers: One function for each environment, called in its process.
            processes: The number of processes, from 1 to the number of environments.
            sample: Builds an environment in this process, to read its spaces; None: the first of `makers`.

        Raises:
            EnvironmentFailed: A process died, or could not build an environment.
        """
        self.processes: list[BaseProcess] = []
        self._pipes: list[Connection] = []
        self._answers_due = False  # whether a call is under way, or was interrupted
        self._echoes = 0
        self.info_keys: tuple[str, ...] = ()
        first = (sample or makers[0])()
        self.single_observation_space, self.single_action_space = first.observation_space, first.action_space
        self.render_mode = first.render_mode
        first.close()
        self.num_envs, self.metadata = len(makers), {"autoreset_mode": AutoresetMode.DISABLED}
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self._shared = _Shared(self.single_observation_space, self.single_action_space, self.num_envs)
        self._views = self._shared.views(slice(None))
        self._observations = self._shared.seen.join(self._views.observations)
        bounds = [self.num_envs * index // processes for index in range(processes + 1)]
        self._groups = [slice(start, stop) for start, stop in pairwise(bounds)]
        try:
            for group in self._groups:
                self._start(group, makers[group])
            self._gather(range(processes))
        except BaseException:
            self._answers_due = True
            self.close()
            raise

    def _start(self, group: slice, makers: Sequence[Maker]) -> None:
        context = multiprocessing.get_context()
        ours, theirs = context.Pipe()
        process = context.Process(
            target=_work,
            args=(CloudpickleWrapper(partial(list, makers)), self._shared, group, theirs, ours),
            name=f"the process of environments {group.start} to {group.stop - 1}",
            daemon=True,
        )
        process.start()
        theirs.close()
        self.processes.append(process)
        self._pipes.append(ours)

    def step(self, actions: Any) -> Step:
        """Step each environment. One whose episode has ended must have been reset before.

        Raises:
            EnvironmentInvalid: An environment returned a value that its spaces do not allow.
            EnvironmentFailed: A process died, an environment raised, or an earlier call was interrupted.
        """
        self._check_answered()
        views = self._views
        for view, leaf in zip(views.actions, self._shared.acted.split(actions), strict=True):
            view[...] = leaf
        every_process = range(len(self._pipes))
        for index in every_process:
            self._send(index, _STEP)
        infos = self._gather(every_process)
        return self._observations, views.rewards, views.terminations, views.truncations, infos

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset the environments in `options["reset_mask"]` (bool [envs]), or all.

        Raises:
            EnvironmentInvalid: An environment returned a value that its spaces do not allow.
            EnvironmentFailed: A process died, an environment raised, or, with a mask, an earlier call was interrupted.
        """
        mask = (options or {}).get("reset_mask")
        if mask is not None:
            self._check_answered()
        elif self._answers_due:
            self._discard_answers()
        chosen = np.ones(self.num_envs, dtype=np.bool_) if mask is None else mask
        seeds = [seed + i for i in range(self.num_envs)] if isinstance(seed, int) else seed
        asked = [index for index, group in enumerate(self._groups) if chosen[group].any()]
        for index in asked:
            group = self._groups[index]
            self._send(index, pickle.dumps((None if seeds is None else seeds[group], chosen[group], self.info_keys)))
        return self._observations, self._gather(asked)

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Call a method of each environment, or read its attribute, as `gymnasium.vector.SyncVectorEnv.call` does.

        Raises:
            EnvironmentFailed: A method raised, a process died, or an earlier call was interrupted.
        """
        self._check_answered()
        every_process, message = range(len(self._pipes)), _CALL + pickle.dumps((name, args, kwargs))
        for index in every_process:
            self._send(index, message)
        try:
            return tuple(value for index in every_process for value in self._value(index))
        finally:
            self._discard_answers()  # after an error, those of the other processes
            self._answers_due = False

    def close(self, **_: Any) -> None:
        """End the processes. One that is in mid-step, or needs more than `GRACE_S`, is killed. May be called again."""
        if not self._answers_due:
            for pipe in self._pipes:
                with suppress(OSError):
                    pipe.send_bytes(_CLOSE)
            until_s = time.monotonic() + GRACE_S
            for process in self.processes:
                process.join(max(0.0, until_s - time.monotonic()))
        for process in self.processes:
            process.kill()
        for process, pipe in zip(self.processes, self._pipes, strict=True):
            process.join()
            pipe.close()
        self.processes, self._pipes, self.closed = [], [], True

    def _check_answered(self) -> None:
        if self._answers_due:
            raise EnvironmentFailed("a call was interrupted while environments stepped; reset all of them first")

    def _discard_answers(self) -> None:
        """Wait until no process works on an interrupted call, and discard the answers to it."""
        self._echoes += 1
        echo = _ECHO + str(self._echoes).encode()
        for index in range(len(self._pipes)):
            self._send(index, echo)
        for index in range(len(self._pipes)):
            while self._answer(index) != echo:
                pass

    def _send(self, index: int, message: bytes) -> None:
        self._answers_due = True
        try:
            self._pipes[index].send_bytes(message)
        except ConnectionError:
            raise self._died(index) from None

    def _gather(self, asked: Sequence[int]) -> dict[str, Any]:
        """Wait until these processes have stepped or reset. Returns the infos that were asked for."""
        infos: dict[str, Any] = {}
        for index in asked:
            if (found := self._value(index)) is not None:
                for key, values in found.items():
                    infos.setdefault(key, np.zeros(self.num_envs, values.dtype))[self._groups[index]] = values
        self._answers_due = False
        return infos

    def _value(self, index: int) -> Any:
        if not (answer := self._answer(index)):
            return None
        kind, content = answer[: len(_VALUE)], answer[len(_VALUE) :]
        if kind == _VALUE:
            return pickle.loads(content)
        error = EnvironmentInvalid if kind == _INVALID else EnvironmentFailed
        raise error(f"{self.processes[index].name}: {content.decode()}")

    def _answer(self, index: int) -> bytes:
        try:
            return self._pipes[index].recv_bytes()
        except (EOFError, ConnectionError):
            raise self._died(index) from None

    def _died(self, index: int) -> EnvironmentFailed:
        process = self.processes[index]
        process.join(GRACE_S)  # its pipe is closed a moment before
        how = "closed its pipe" if process.exitcode is None else f"ended: {describe_exit(process.exitcode)}"
        return EnvironmentFailed(f"{process.name} (pid {process.pid}) {how}")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Views:
    """Arrays of a group of environments: observations and actions as leaves [envs, ...], the others [envs]."""

    observations: list[Array]
    actions: list[Array]
    rewards: Array
    terminations: Array
    truncations: Array


class _Shared:
    """Memory that processes get when they start. It has no name in a file system, so it cannot be left behind."""

    def __init__(self, observation_space: Space, action_space: Space, num_envs: int) -> None:
        self.seen, self.acted, self._num_envs = SpaceTree(observation_space), SpaceTree(action_space), num_envs
        leaves = (*self.seen.leaves.values(), *self.acted.leaves.values())
        self._layout = [(array_dtype(leaf), array_shape(leaf)) for leaf in leaves]
        self._layout += [(np.dtype(np.float64), ()), (np.dtype(np.bool_), ()), (np.dtype(np.bool_), ())]
        self._memory = [
            multiprocessing.RawArray(ctypes.c_byte, max(1, num_envs * prod(shape) * dtype.itemsize))
            for dtype, shape in self._layout
        ]

    def views(self, group: slice) -> _Views:
        """Return the arrays of a group of environments."""
        arrays: list[Array] = [
            np.frombuffer(memoryview(memory), dtype, self._num_envs * prod(shape)).reshape(self._num_envs, *shape)[
                group
            ]
            for (dtype, shape), memory in zip(self._layout, self._memory, strict=True)
        ]
        own = len(self.seen.leaves)
        return _Views(
            observations=arrays[:own],
            actions=arrays[own:-3],
            rewards=arrays[-3],
            terminations=arrays[-2],
            truncations=arrays[-1],
        )


def _work(makers: CloudpickleWrapper, shared: _Shared, group: slice, pipe: Connection, other_end: Connection) -> None:
    """Run in a process: obey messages from the pipe, and answer each with nothing or with its problem."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the parent ends this one
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    other_end.close()  # else this process would keep the pipe open after the parent's end
    env: SerialVectorEnv | None = None
    try:
        env = SerialVectorEnv(makers())
        views = shared.views(group)
        env.write_into(views.observations, views.rewards, views.terminations, views.truncations)
        pipe.send_bytes(b"")
        while (message := pipe.recv_bytes()) != _CLOSE:
            pipe.send_bytes(message if message.startswith(_ECHO) else _obey(message, env, shared.acted, views))
    except (EOFError, BrokenPipeError):
        pass  # the parent has ended
    except Exception:
        with suppress(OSError):
            pipe.send_bytes(_FAILED + traceback.format_exc().encode())
    finally:
        if env is not None:
            env.close()


def _obey(message: bytes, env: SerialVectorEnv, acted: SpaceTree, views: _Views) -> bytes:
    try:
        if message == _STEP:
            actions = acted.join([view.copy() for view in views.actions])  # environments may keep their actions
            infos = env.step(actions)[-1]
        elif message.startswith(_CALL):
            name, args, kwargs = pickle.loads(message[len(_CALL) :])
            return _VALUE + pickle.dumps(env.call(name, *args, **kwargs))
        else:
            seeds, mask, env.info_keys = pickle.loads(message)
            if seeds is not None:
                seed_generators(seeds[0])
            _, infos = env.reset(seed=seeds, options={"reset_mask": mask})
        return _VALUE + pickle.dumps(infos) if infos else b""
    except EnvironmentInvalid as error:
        return _INVALID + str(error).encode()
    except Exception:
        return _FAILED + traceback.format_exc().encode()
