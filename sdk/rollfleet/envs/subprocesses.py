"""Environments in separate processes that each step a group of them, over shared memory."""

import ctypes
import multiprocessing
import pickle
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
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

from rollfleet.envs.failures import ATTEMPTS, FAILURES, Failure, note, seed_again
from rollfleet.envs.serial import SerialVectorEnv, Step
from rollfleet.envs.space_tree import Array, Space, SpaceTree, array_dtype, array_shape
from rollfleet.errors import EnvironmentFailed, EnvironmentInvalid
from rollfleet.system.child_processes import close_in_children, describe_exit
from rollfleet.system.copies import refuse_copy
from rollfleet.system.process_setup import seed_generators
from rollfleet.system.tracebacks import formatted
from rollfleet_api.placement import EnvironmentFailuresSpec

_STEP = b""  # the most frequent request; its answer without infos is empty, too
_READY = b"ready"  # its answer is empty
_RESET, _CALL = "reset", "call"
_NUMBER_BYTES = 8  # of its call, at the start of each message and of the answer to it
GRACE_S = 2.0
"""Time for a process to end that died, or whose last answer was not read: its environment may hang in a step."""

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
        failures: As there, from the next `reset` on, with a process for each environment. One that dies, or takes
            longer than its time, fails, too.
    """

    __reduce__ = refuse_copy
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
        self._calls, self._answered = 0, -1
        self.failures: EnvironmentFailuresSpec | None = None
        self._makers = makers
        self._seeds: list[int | None] = [None] * len(makers)
        self._times = [0] * len(makers)  # that each was replaced since it was seeded
        self.info_keys: tuple[str, ...] = ()
        first = (sample or makers[0])()
        self.single_observation_space, self.single_action_space = first.observation_space, first.action_space
        self.render_mode = first.render_mode
        first.close()
        self.num_envs, self.metadata = len(makers), {"autoreset_mode": AutoresetMode.DISABLED}
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self._shared = _Shared(self.single_observation_space, self.single_action_space, self.num_envs)
        observations, self._actions, self._outcomes = self._shared.views(slice(None))
        self._observations = self._shared.seen.join(observations)
        bounds = [self.num_envs * index // processes for index in range(processes + 1)]
        self._groups = [slice(start, stop) for start, stop in pairwise(bounds)]
        try:
            for index in range(processes):
                self._start(index)
            self._answers(range(processes))
        except BaseException:
            self.close()
            raise

    def _start(self, index: int) -> None:
        context, group = multiprocessing.get_context(), self._groups[index]
        ours, theirs = context.Pipe()
        close_in_children(ours)  # a process ends when its pipe is closed
        self._pipes[index : index + 1] = [ours]
        with theirs:
            process = context.Process(
                target=_work,
                args=(CloudpickleWrapper(partial(list, self._makers[group])), self._shared, group, theirs),
                name=f"the process of environments {group.start} to {group.stop - 1}",
                daemon=True,
            )
            process.start()
        self.processes[index : index + 1] = [process]

    def step(self, actions: Any) -> Step:
        """Step each environment. One whose episode has ended must have been reset before.

        Raises:
            EnvironmentInvalid: An environment returned a value that its spaces do not allow.
            EnvironmentFailed: A process died, or an environment raised.
        """
        for view, leaf in zip(self._actions, self._shared.acted.split(actions), strict=True):
            view[...] = leaf
        limit_s, _ = self._limits_s
        infos = self._infos(self._ask(dict.fromkeys(range(len(self._pipes)), _STEP), limit_s, replaces=True))
        return self._observations, *self._outcomes, infos

    def step_again(self, chosen: Iterable[int], actions: Any, infos: dict[str, Any]) -> Step:
        """See `SerialVectorEnv`."""
        del infos[FAILURES]
        for view, leaf in zip(self._actions, self._shared.acted.split(actions), strict=True):
            view[...] = leaf
        limit_s, _ = self._limits_s
        answers = self._ask(dict.fromkeys(chosen, _STEP), limit_s, replaces=True)
        return self._observations, *self._outcomes, self._infos(answers, infos)

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset the environments in `options["reset_mask"]` (bool [envs]), or all.

        Raises:
            EnvironmentInvalid: An environment returned a value that its spaces do not allow.
            EnvironmentFailed: A process died, or an environment raised.
        """
        mask = (options or {}).get("reset_mask")
        chosen = np.ones(self.num_envs, dtype=np.bool_) if mask is None else mask
        seeds = [seed + i for i in range(self.num_envs)] if isinstance(seed, int) else seed
        if seeds is not None:
            self._seeds, self._times = list(seeds), [0] * self.num_envs
        answers = self._ask(
            {
                index: self._reset_request(None if seeds is None else seeds[group], chosen[group])
                for index, group in enumerate(self._groups)
                if chosen[group].any()
            },
            self._limits_s[1],
            replaces=True,
        )
        return self._observations, self._infos(answers)

    def _reset_request(self, seeds: Sequence[int | None] | None, chosen: Array) -> bytes:
        return pickle.dumps((_RESET, seeds, chosen, self.info_keys, self.failures))

    @property
    def _limits_s(self) -> tuple[float | None, float | None]:
        """The seconds that a step may take, and those of a reset."""
        failures = self.failures
        return (None, None) if failures is None else (failures.step_timeout_seconds, failures.reset_timeout_seconds)

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Call a method of each environment, or read its attribute, as `gymnasium.vector.SyncVectorEnv.call` does.

        Raises:
            EnvironmentFailed: A method raised, or a process died.
        """
        request, everyone = pickle.dumps((_CALL, name, args, kwargs)), range(len(self._pipes))
        # The last call may have ended early: a process that still sends its answer would read no long request.
        self._ask(dict.fromkeys(everyone, _READY))
        answers = self._ask(dict.fromkeys(everyone, request))
        return tuple(value for values in answers.values() for value in values)

    def close(self, **_: Any) -> None:
        """Close the environments, and end the processes. One in mid-step has `GRACE_S`. May be called again."""
        for pipe in self._pipes:
            pipe.close()
        until_s = None if self._answered == self._calls else time.monotonic() + GRACE_S
        for process in self.processes:
            process.join(None if until_s is None else max(0.0, until_s - time.monotonic()))
        for process in self.processes:
            process.kill()
            process.join()
        self.processes, self._pipes, self.closed = [], [], True

    def _ask(
        self, requests: Mapping[int, bytes], limit_s: float | None = None, *, replaces: bool = False
    ) -> dict[int, Any]:
        """Send each of these processes its request. Returns their answers, by index.

        `replaces`: whether one that is lost may be replaced. Then its answer, infos, says so.
        """
        self._calls += 1
        number = self._calls.to_bytes(_NUMBER_BYTES)
        for index, request in requests.items():
            with suppress(ConnectionError):  # of a process that died; there will be no answer either
                self._pipes[index].send_bytes(number + request)
        return self._answers(requests, limit_s, replaces=replaces)

    def _answers(self, asked: Iterable[int], limit_s: float | None = None, *, replaces: bool = False) -> dict[int, Any]:
        """Wait until these processes have answered the newest call. Answers to an interrupted one are dropped."""
        until_s = None if limit_s is None else time.monotonic() + limit_s
        answers = {}
        for index in asked:
            try:
                answers[index] = self._answer(index, self._calls, until_s)
            except _Lost as error:
                if not replaces or self.failures is None:
                    raise EnvironmentFailed(str(error)) from None
                answers[index] = self._start_again(index, error)
        self._answered = self._calls
        return answers

    def _answer(self, index: int, call: int, until_s: float | None) -> Any:
        """Wait until a process has answered this call.

        Raises:
            _Lost: The process died, or has not answered at that time.
        """
        number, answer, pipe = call.to_bytes(_NUMBER_BYTES), b"", self._pipes[index]
        while not answer.startswith(number):
            try:
                if until_s is not None and not pipe.poll(max(0.0, until_s - time.monotonic())):
                    raise _Lost(f"{self.processes[index].name} did not answer in time", TimeoutError)
                answer = pipe.recv_bytes()
            except (EOFError, ConnectionError):
                raise self._died(index) from None
        error, found = pickle.loads(answer[_NUMBER_BYTES:]) if answer != number else (None, {})
        if error is not None:
            raise error(f"{self.processes[index].name}: {found}")
        return found

    def _start_again(self, index: int, error: "_Lost") -> dict[str, Any]:
        """End a process, start another, and begin the next episode of its environment. Returns its infos.

        Raises:
            EnvironmentFailed: The environment has failed `ATTEMPTS` times, each time without a first observation.
        """
        infos: dict[str, Any] = {}
        found: dict[str, Any]
        for _ in range(ATTEMPTS):
            note(error.failure, 0, infos, 1)
            self._times[index] += 1
            self.processes[index].kill()
            self.processes[index].join()
            self._pipes[index].close()
            _, limit_s = self._limits_s
            until_s = None if limit_s is None else time.monotonic() + limit_s
            try:
                self._start(index)
                self._answer(index, 0, until_s)
                seed = seed_again(self._seeds[index], self._times[index])
                request = self._reset_request(None if seed is None else [seed], np.ones(1, np.bool_))
                self._pipes[index].send_bytes(self._calls.to_bytes(_NUMBER_BYTES) + request)
                found = self._answer(index, self._calls, until_s)
            except ConnectionError:
                error = self._died(index)
            except _Lost as next_error:
                error = next_error
            except EnvironmentFailed as next_error:  # it could not be made
                error = _Lost(str(next_error), ChildProcessError)
            else:
                for outcome in self._outcomes:
                    outcome[index] = 0
                for failure in found.get(FAILURES, [()])[0]:
                    note(failure, 0, infos, 1)
                return found | infos
        raise EnvironmentFailed(f"{error} {ATTEMPTS} times in a row") from error

    def _infos(self, answers: Mapping[int, dict[str, Any]], known: dict[str, Any] | None = None) -> dict[str, Any]:
        infos: dict[str, Any] = {} if known is None else known
        for index, found in answers.items():
            self._merge(found, self._groups[index], infos)
        return infos

    def _merge(self, found: Mapping[str, Any], group: slice, infos: dict[str, Any]) -> None:
        for key, values in found.items():
            if isinstance(values, Mapping):
                self._merge(values, group, infos.setdefault(key, {}))
            else:
                infos.setdefault(key, np.zeros(self.num_envs, values.dtype))[group] = values

    def _died(self, index: int) -> "_Lost":
        process = self.processes[index]
        process.join(GRACE_S)  # its pipe is closed a moment before
        how = "closed its pipe" if process.exitcode is None else f"ended: {describe_exit(process.exitcode)}"
        if self._answered < 0 and multiprocessing.get_start_method() == "spawn":
            how += (
                "; where multiprocessing spawns (`import torchrl` sets it), a program makes its environments under "
                '`if __name__ == "__main__":`'
            )
        return _Lost(f"{process.name} (pid {process.pid}) {how}", ChildProcessError)


class _Lost(Exception):
    """A process died, or hangs: a `ChildProcessError`, or a `TimeoutError`."""

    def __init__(self, text: str, kind: type[OSError]) -> None:
        super().__init__(text)
        self.failure = Failure(kind.__name__, text)


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

    def views(self, group: slice) -> tuple[list[Array], list[Array], tuple[Array, Array, Array]]:
        """Return arrays of a group: observations and actions (leaves [envs, ...]), and three of [envs]: see `step`."""
        arrays: list[Array] = [
            np.frombuffer(memoryview(memory), dtype, self._num_envs * prod(shape)).reshape(self._num_envs, *shape)[
                group
            ]
            for (dtype, shape), memory in zip(self._layout, self._memory, strict=True)
        ]
        seen = len(self.seen.leaves)
        rewards, terminations, truncations = arrays[-3:]
        return arrays[:seen], arrays[seen:-3], (rewards, terminations, truncations)


def _work(makers: CloudpickleWrapper, shared: _Shared, group: slice, pipe: Connection) -> None:
    """Run in a process: answer the requests from the pipe until it is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the parent ends this one
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    multiprocessing.current_process().daemon = False  # a daemon's environments could start no processes
    number = bytes(_NUMBER_BYTES)
    try:
        env = SerialVectorEnv(makers())
    except Exception as error:
        with suppress(OSError):
            pipe.send_bytes(number + pickle.dumps((EnvironmentFailed, formatted(error))))
        return
    observations, actions, outcomes = shared.views(group)
    env.write_into(observations, *outcomes)
    try:
        pipe.send_bytes(number)
        while message := pipe.recv_bytes():
            number, request = message[:_NUMBER_BYTES], message[_NUMBER_BYTES:]
            pipe.send_bytes(number + _obey(request, env, shared.acted, actions))
    except (EOFError, ConnectionError):
        pass  # the parent has closed the pipe, or has ended
    finally:
        env.close()


def _obey(request: bytes, env: SerialVectorEnv, acted: SpaceTree, actions: list[Array]) -> bytes:
    """Return a pickle of the class of an error and its text, or of None and the result."""
    try:
        if request == _READY:
            return b""
        if request == _STEP:
            infos = env.step(acted.join([view.copy() for view in actions]))[-1]  # environments may keep their actions
            return pickle.dumps((None, infos)) if infos else b""
        kind, *arguments = pickle.loads(request)
        if kind == _CALL:
            name, args, kwargs = arguments
            return pickle.dumps((None, env.call(name, *args, **kwargs)))
        seeds, mask, env.info_keys, env.failures = arguments
        if seeds is not None:
            seed_generators(seeds[0])
        return pickle.dumps((None, env.reset(seed=seeds, options={"reset_mask": mask})[1]))
    except EnvironmentInvalid as error:
        return pickle.dumps((EnvironmentInvalid, str(error)))
    except Exception as error:
        return pickle.dumps((EnvironmentFailed, formatted(error)))
