"""Environments in servers that each step a group of them: processes with shared memory, or on other hosts."""

import pickle
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from multiprocessing.process import BaseProcess
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

from rollfleet.envs.answer_times import AnswerTimes
from rollfleet.envs.failures import ATTEMPTS, FAILURES, Failure, note, seed_again
from rollfleet.envs.serial import Step
from rollfleet.envs.server import CALL, NUMBER_BYTES, READY, RESET, STEP, STEP_AGAIN, SharedArrays
from rollfleet.envs.server_process import GRACE_S, EnvServer, Launch, Maker, ServerProcess
from rollfleet.envs.settings import Settings
from rollfleet.envs.space_tree import Array
from rollfleet.errors import EnvironmentFailed
from rollfleet.system.copies import refuse_copy
from rollfleet_api.placement import EnvironmentFailuresSpec


class ProcessVectorEnv(gymnasium.vector.VectorEnv[Any, Any, Any]):
    """A vector of environments over several servers, which does not reset by itself.

    Observations, rewards, flags and actions are in memory that the processes share, or travel to other hosts. It owns
    all arrays that it returns; the next call changes them. The processes end with the one that started them, however it
    ends. They start as this program's `multiprocessing` does: a fork waits forever for a lock that another thread holds
    at that moment.

    After an exception out of `step` or `reset`, reset all environments before the next step: that also starts lost
    servers again.

    Attributes:
        processes: The processes of this machine, in the order of their environments.
        takes_seeds: Whether `reset` takes one seed for each environment.
        resets_on_request: Whether it does not reset by itself.
        info_keys: Keys of infos that are kept, from the next `reset` on: see `SerialVectorEnv`.
        failures: As there, from the next `reset` on. A process that dies, or takes longer than its time, is a failure
            of all its environments.
        settings: See `SerialVectorEnv`.
    """

    __reduce__ = refuse_copy
    takes_seeds = True
    resets_on_request = True

    def __init__(
        self, makers: Sequence[Maker], servers: int, *, sample: Maker | None = None, launch: Launch = ServerProcess
    ) -> None:
        """Start the servers, and wait until each has built its environments.

        Args:
            makers: One function for each environment, called in its server.
            servers: The number of servers, from 1 to the number of environments.
            sample: Builds an environment in this process, to read its spaces; None: the first of `makers`.
            launch: Starts a server; a process of this machine unless it is given.

        Raises:
            EnvironmentFailed: A server died, or could not build an environment.
        """
        self._servers: list[EnvServer] = []
        self._launch = launch
        self._calls, self._answered = 0, -1
        self._asked_s, self._times_s = 0.0, AnswerTimes(servers)
        self.failures: EnvironmentFailuresSpec | None = None
        self.settings: Settings | None = None
        self._makers = makers
        self._seeds: list[int | None] = [None] * len(makers)
        self._times = [0] * len(makers)  # that each was replaced since it was seeded
        self.info_keys: tuple[str, ...] = ()
        first = (sample or makers[0])()
        self.single_observation_space, self.single_action_space = first.observation_space, first.action_space
        self.render_mode = first.render_mode
        first.close()
        self.num_envs, self.metadata = len(makers), {**first.metadata, "autoreset_mode": AutoresetMode.DISABLED}
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self._shared = SharedArrays(self.single_observation_space, self.single_action_space, self.num_envs)
        observations, self._actions, self._outcomes = self._shared.views(slice(None))
        self._observations = self._shared.seen.join(observations)
        bounds = [self.num_envs * index // servers for index in range(servers + 1)]
        self._groups = [slice(start, stop) for start, stop in pairwise(bounds)]
        try:
            for index in range(servers):
                self._start(index)
            self._answers(dict.fromkeys(range(servers), 0))
        except BaseException:
            self.close()
            raise

    @property
    def processes(self) -> list[BaseProcess]:
        """See above."""
        return [server.process for server in self._servers if isinstance(server, ServerProcess)]

    @property
    def slow_servers(self) -> str:
        """The servers that answer many times slower than the others, in words; empty: none."""
        return self._times_s.slow([server.name for server in self._servers])

    def _start(self, index: int) -> None:
        group = self._groups[index]
        self._servers[index : index + 1] = [self._launch(index, self._makers[group], self._shared, group)]

    def step(self, actions: Any) -> Step:
        """Step each environment. One whose episode has ended must have been reset before.

        Raises:
            EnvironmentInvalid: An environment returned a value that its spaces do not allow.
            EnvironmentFailed: A process died, or an environment raised.
        """
        for view, leaf in zip(self._actions, self._shared.acted.split(actions), strict=True):
            view[...] = leaf
        limit_s, _ = self._limits_s
        infos = self._infos(self._ask(dict.fromkeys(range(len(self._groups)), STEP), limit_s, replaces=True))
        return self._observations, *self._outcomes, infos

    def step_again(self, chosen: Iterable[int], actions: Any, infos: dict[str, Any]) -> Step:
        """See `SerialVectorEnv`."""
        del infos[FAILURES]
        for view, leaf in zip(self._actions, self._shared.acted.split(actions), strict=True):
            view[...] = leaf
        limit_s, _ = self._limits_s
        envs = np.asarray(list(chosen))
        numbers = {
            index: (envs[(group.start <= envs) & (envs < group.stop)] - group.start).tolist()
            for index, group in enumerate(self._groups)
        }
        requests = {index: pickle.dumps((STEP_AGAIN, those)) for index, those in numbers.items() if those}
        for index, found in self._ask(requests, limit_s, replaces=True).items():
            lost = np.flatnonzero(found.get(FAILURES, ()))  # all of a process that died
            self._merge(found, self._groups[index], infos, sorted({*numbers[index], *lost.tolist()}))
        return self._observations, *self._outcomes, infos

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
        if mask is None:
            self._replace_lost()
        if seeds is not None:
            self._seeds, self._times = list(seeds), [0] * self.num_envs
        answers = self._ask(
            {
                index: self._reset_request(group, None if seeds is None else seeds[group], chosen[group])
                for index, group in enumerate(self._groups)
                if chosen[group].any()
            },
            self._limits_s[1],
            replaces=True,
        )
        return self._observations, self._infos(answers)

    def _replace_lost(self) -> None:
        """Start the servers that have died again."""
        lost = [index for index, server in enumerate(self._servers) if not server.is_alive()]
        for index in lost:
            self._servers[index].pipe.close()
            self._start(index)
        self._answers(dict.fromkeys(lost, 0))

    def _reset_request(self, group: slice, seeds: Sequence[int | None] | None, chosen: Array) -> bytes:
        settings = self.settings and self.settings.of(group)
        return pickle.dumps((RESET, seeds, chosen, self.info_keys, self.failures, settings))

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
        request = pickle.dumps((CALL, None, "call", (name, *args), kwargs))
        return self._call(dict.fromkeys(range(len(self._groups)), request))

    def _call(self, requests: Mapping[int, bytes]) -> tuple[Any, ...]:
        # The last call may have ended early: a process that still sends its answer would read no long request.
        self._ask(dict.fromkeys(requests, READY))
        return tuple(value for values in self._ask(requests).values() for value in values or ())

    def close(self, **_: Any) -> None:
        """Close the environments, and end the servers. One in mid-step has `GRACE_S`. May be called again."""
        for server in self._servers:
            server.pipe.close()
        until_s = None if self._answered == self._calls else time.monotonic() + GRACE_S
        for server in self._servers:
            server.join(None if until_s is None else max(0.0, until_s - time.monotonic()))
        for server in self._servers:
            server.kill()
        self._servers, self.closed = [], True

    def _ask(
        self, requests: Mapping[int, bytes], limit_s: float | None = None, *, replaces: bool = False
    ) -> dict[int, Any]:
        """Send each of these processes its request. Returns their answers, by index.

        `replaces`: whether one that is lost may be replaced. Then its answer, infos, says so.
        """
        self._request(requests)
        return self._answers(dict.fromkeys(requests, self._calls), limit_s, replaces=replaces)

    def _request(self, requests: Mapping[int, bytes]) -> None:
        self._calls += 1
        self._asked_s = time.perf_counter()
        number = self._calls.to_bytes(NUMBER_BYTES)
        for index, request in requests.items():
            server = self._servers[index]
            try:
                with suppress(ConnectionError):  # of a process that died; there will be no answer either
                    server.pipe.send_bytes(number + request)
            except BaseException:  # Ctrl-C in mid-message: no other one could follow
                server.kill()
                raise

    def _answers(
        self, calls: Mapping[int, int], limit_s: float | None = None, *, replaces: bool = False
    ) -> dict[int, Any]:
        """Wait until these processes have answered these calls. Answers to an interrupted one are dropped."""
        until_s = None if limit_s is None else time.monotonic() + limit_s
        if replaces and len(calls) == len(self._groups) and self._times_s.are_due(self._asked_s):
            self._times_s.measure([server.pipe for server in self._servers], self._asked_s, limit_s)
        answers = {}
        for index, call in calls.items():
            try:
                answers[index] = self._answer(index, call, until_s)
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
        number, answer, server = call.to_bytes(NUMBER_BYTES), b"", self._servers[index]
        while not answer.startswith(number):
            if not server.poll(None if until_s is None else max(0.0, until_s - time.monotonic())):
                raise _Lost(f"{server.name} did not answer in time", TimeoutError)
            try:
                answer = server.pipe.recv_bytes()
            except BaseException as cause:
                if isinstance(cause, EOFError | ConnectionError) or type(cause) is OSError:  # the last: in mid-message
                    raise self._died(index) from None
                server.kill()  # Ctrl-C in mid-message: no other one could be read
                raise
        error, found = pickle.loads(answer[NUMBER_BYTES:]) if answer != number else (None, {})
        if error is not None:
            raise error(f"{server.name}: {found}")
        return found

    def _start_again(self, index: int, error: "_Lost") -> dict[str, Any]:
        """End a process, start another, and begin the next episodes of its environments. Returns their infos.

        Raises:
            EnvironmentFailed: They have failed `ATTEMPTS` times, each time without first observations.
            ConnectionFailed: The server cannot be reached.
        """
        infos: dict[str, Any] = {}
        found: dict[str, Any]
        group = self._groups[index]
        envs, count = range(group.start, group.stop), group.stop - group.start
        for _ in range(ATTEMPTS):
            for i, env in enumerate(envs):
                note(error.failure, i, infos, count)
                self._times[env] += 1
            self._servers[index].kill()
            self._servers[index].pipe.close()
            _, limit_s = self._limits_s
            until_s = None if limit_s is None else time.monotonic() + limit_s
            try:
                self._start(index)
                self._answer(index, 0, until_s)
                seeds = [seed_again(self._seeds[env], self._times[env]) for env in envs]
                request = self._reset_request(group, seeds, np.ones(count, np.bool_))
                self._servers[index].pipe.send_bytes(self._calls.to_bytes(NUMBER_BYTES) + request)
                found = self._answer(index, self._calls, until_s)
            except ConnectionError:
                error = self._died(index)
            except _Lost as next_error:
                error = next_error
            except EnvironmentFailed as next_error:  # it could not be made
                error = _Lost(str(next_error), ChildProcessError)
            else:
                for outcome in self._outcomes:
                    outcome[group] = 0
                for i, failures in enumerate(found.get(FAILURES, ())):
                    for failure in failures or ():
                        note(failure, i, infos, count)
                return found | infos
        raise EnvironmentFailed(f"{error} {ATTEMPTS} times in a row") from error

    def _infos(self, answers: Mapping[int, dict[str, Any]]) -> dict[str, Any]:
        infos: dict[str, Any] = {}
        for index, found in answers.items():
            self._merge(found, self._groups[index], infos)
        return infos

    def _merge(
        self, found: Mapping[str, Any], group: slice, infos: dict[str, Any], rows: slice | list[int] = slice(None)
    ) -> None:
        """Put the infos of a group, or of these rows of it, into the vector's."""
        for key, values in found.items():
            if isinstance(values, Mapping):
                self._merge(values, group, infos.setdefault(key, {}), rows)
            else:
                infos.setdefault(key, np.zeros(self.num_envs, values.dtype))[group][rows] = values[rows]

    def _died(self, index: int) -> "_Lost":
        return _Lost(self._servers[index].end_of(built=self._answered >= 0), ChildProcessError)


class _Lost(Exception):
    """A server died, or hangs: a `ChildProcessError`, or a `TimeoutError`."""

    def __init__(self, text: str, kind: type[OSError]) -> None:
        super().__init__(text)
        self.failure = Failure(kind.__name__, text)
