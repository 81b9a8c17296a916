"""An environment server: steps a group of environments for a vector in another process, without torch."""

import ctypes
import multiprocessing
import pickle
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import copy, deepcopy
from math import prod
from multiprocessing.connection import Connection
from typing import Any, TypeAlias

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import CloudpickleWrapper

from rollfleet.envs.array_pipe import ArrayPipe
from rollfleet.envs.failures import FAILURES
from rollfleet.envs.serial import SerialVectorEnv
from rollfleet.envs.space_tree import Array, Space, SpaceTree, array_dtype, array_shape
from rollfleet.errors import EnvironmentFailed, EnvironmentInvalid
from rollfleet.system.child_processes import close_in_children
from rollfleet.system.cpus import limit_threads
from rollfleet.system.process_setup import seed_generators
from rollfleet.system.tracebacks import formatted

STEP = b""  # the most frequent request; its answer without infos is empty, too
READY = b"ready"  # its answer is empty
RESET, BEGIN, STEP_AGAIN, CALL = "reset", "begin", "step again", "call"
NUMBER_BYTES = 8  # of its call, at the start of each message and of the answer to it

EnvInfos: TypeAlias = list[tuple[int, Mapping[str, Any]]]
"""Infos of environments, each with its number. One that resets in a step has two: the last of its episode is first."""


class ServedEnvs(SerialVectorEnv):
    """The environments of a server: as a rollout needs them, or, after `begin`, as `SyncVectorEnv` has them."""

    _autoreset: AutoresetMode | None = None

    def reset(self, **arguments: Any) -> tuple[Any, dict[str, Any]]:
        """See `SerialVectorEnv`."""
        self._autoreset = None
        return super().reset(**arguments)

    def begin(
        self, seeds: Sequence[int | None] | None, mask: Array, mode: AutoresetMode, options: Mapping[str, Any]
    ) -> EnvInfos:
        """Reset these environments. From now on `answer` steps them with `SyncVectorEnv`'s resets of this mode."""
        self._autoreset, infos = mode, []
        for i in np.flatnonzero(mask).tolist():
            seed = None if seeds is None else seeds[i]
            infos.append((i, self._reset(i, seed, {}, **({"options": dict(options)} if options else {}))))
            self._rewards[i], self._terminations[i], self._truncations[i] = 0.0, False, False
        return [(i, info) for i, info in infos if info]

    def answer(self, actions: Any) -> dict[str, Any] | EnvInfos:
        """Step, and return the infos."""
        if self._autoreset is None:
            return self.step(actions)[-1]
        infos: EnvInfos = []
        pairs = zip(self._acted.split(actions), self._acted.leaves.values(), strict=True)
        leaves = [leaf.astype(space.dtype, copy=False) for leaf, space in pairs]
        for i, env in enumerate(self.envs):
            if (self._terminations[i] or self._truncations[i]) and self._autoreset is not AutoresetMode.SAME_STEP:
                info = self._next_episode(i)
            else:
                outcome: Any = env.step(self._acted.join([leaf[i] for leaf in leaves]))
                info = self._take(i, outcome)
                if self._autoreset is AutoresetMode.SAME_STEP and (self._terminations[i] or self._truncations[i]):
                    infos.append((i, deepcopy({"final_obs": outcome[0], "final_info": info})))
                    info = self._reset(i, None, {})
            if info:
                infos.append((i, info))
        return infos

    def is_wrapped(self, kind: str) -> tuple[bool, ...]:
        """Return whether each environment has a wrapper of this class, `module.Class`."""
        return tuple(any(kind in _classes(layer) for layer in _layers(env)) for env in self.envs)

    def _next_episode(self, i: int) -> Mapping[str, Any]:
        if self._autoreset is AutoresetMode.DISABLED:
            raise EnvironmentInvalid(
                f"the episode of environment {i} ({self.envs[i]}) has ended: before the next step, call "
                'reset(options={"reset_mask": terminations | truncations})'
            )
        info = self._reset(i, None, {})
        self._rewards[i], self._terminations[i], self._truncations[i] = 0.0, False, False
        return info


def _layers(env: Any) -> Iterator[Any]:
    while isinstance(env, gymnasium.Wrapper):
        yield env
        env = env.env


def _classes(wrapper: object) -> set[str]:
    return {f"{each.__module__}.{each.__qualname__}" for each in type(wrapper).__mro__}


class SharedArrays:
    """Memory that processes get when they start. It has no name in a file system, so it cannot be left behind."""

    def __init__(self, observation_space: Space, action_space: Space, num_envs: int) -> None:
        self.seen, self.acted, self._num_envs = SpaceTree(observation_space), SpaceTree(action_space), num_envs
        self._layout = _layout(self.seen, self.acted)
        self._layout += [(np.dtype(np.float64), ()), (np.dtype(np.bool_), ()), (np.dtype(np.bool_), ())]
        self._memory = [
            multiprocessing.RawArray(ctypes.c_byte, max(1, num_envs * prod(shape) * dtype.itemsize))
            for dtype, shape in self._layout
        ]

    def check(self, observation_space: Space, action_space: Space) -> None:
        """Check that the spaces of an environment have this memory's leaves.

        Raises:
            EnvironmentInvalid: One has others.
        """
        pairs = ("observation", self.seen, observation_space), ("action", self.acted, action_space)
        for role, tree, space in pairs:
            other = SpaceTree(space)
            if list(other.leaves) != list(tree.leaves) or _layout(other) != _layout(tree):
                raise EnvironmentInvalid(
                    f"{role} space {space} differs from {tree.space} of another environment; make environments of one "
                    "kind"
                )

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


def _layout(*trees: SpaceTree) -> list[tuple[np.dtype[Any], tuple[int, ...]]]:
    return [(array_dtype(leaf), array_shape(leaf)) for tree in trees for leaf in tree.leaves.values()]


def serve(makers: CloudpickleWrapper, shared: SharedArrays, group: slice, pipe: Connection) -> None:
    """Make a group of environments in a process of the vector's machine, and answer requests from the pipe."""
    prepare()
    close_in_children(pipe)  # a process that its environments start may outlive it
    answer_requests(makers, shared, group, pipe)


def prepare() -> None:
    """Let this process be a server: it ends with its pipe, and its environments may start processes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the vector ends this one
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    multiprocessing.current_process().daemon = False  # a daemon's environments could start no processes
    limit_threads(1)


def answer_requests(
    makers: Callable[[], Any],
    shared: SharedArrays,
    group: slice,
    pipe: Connection | ArrayPipe,
    closes: Callable[[], object] = lambda: None,
) -> None:
    """Make a group of environments, and answer the requests from the pipe until it is closed. Then call `closes`."""
    number = bytes(NUMBER_BYTES)
    try:
        env = ServedEnvs(makers())
        shared.check(env.single_observation_space, env.single_action_space)
    except Exception as error:
        with suppress(OSError):
            pipe.send_bytes(number + pickle.dumps((EnvironmentFailed, formatted(error))))
        return
    observations, actions, outcomes = shared.views(group)
    env.write_into(observations, *outcomes)
    try:
        pipe.send_bytes(number)
        while message := pipe.recv_bytes():
            number, request = message[:NUMBER_BYTES], message[NUMBER_BYTES:]
            pipe.send_bytes(number + _obey(request, env, shared.acted, actions))
    except (EOFError, ConnectionError):
        pass  # the vector has closed the pipe, or has ended
    finally:
        closes()
        env.close()


def _obey(request: bytes, env: ServedEnvs, acted: SpaceTree, actions: list[Array]) -> bytes:
    """Return a pickle of the class of an error and its text, or of None and the result."""
    try:
        if request == READY:
            return b""
        if request == STEP:
            infos = env.answer(acted.join([view.copy() for view in actions]))  # environments may keep their actions
            return pickle.dumps((None, infos)) if infos else b""
        return pickle.dumps((None, _obeyed(env, acted, actions, *pickle.loads(request))))
    except EnvironmentInvalid as error:
        return pickle.dumps((EnvironmentInvalid, str(error)))
    except Exception as error:
        return pickle.dumps((EnvironmentFailed, formatted(error)))


def _obeyed(env: ServedEnvs, acted: SpaceTree, actions: list[Array], kind: str, *arguments: Any) -> Any:
    if kind == CALL:
        chosen, method, args, kwargs = arguments
        some = copy(env)
        some.envs = [env.envs[i] for i in (range(env.num_envs) if chosen is None else chosen)]
        some.num_envs = len(some.envs)
        some.closed = True  # what collects it closes nothing
        return getattr(some, method)(*args, **kwargs)
    if kind == STEP_AGAIN:
        return env.step_again(arguments[0], acted.join([view.copy() for view in actions]), {FAILURES: None})[-1]
    seeds, mask, *rest = arguments
    if seeds is not None and seeds[0] is not None:
        seed_generators(seeds[0] % (1 << 32))
    if kind == BEGIN:
        return env.begin(seeds, mask, *rest)
    env.info_keys, env.failures, env.settings = rest
    return env.reset(seed=seeds, options={"reset_mask": mask})[1]
