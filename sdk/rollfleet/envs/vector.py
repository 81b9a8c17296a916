"""`rollfleet.make_vec`: a vector of environments in servers, for loops that have their policy in one place.

Programs without torch import this file; it must not import torch.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from multiprocessing.connection import wait
from pathlib import Path
from pickle import dumps
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from rollfleet.arguments import plain, shown, whole_number
from rollfleet.cluster.settings import Cluster
from rollfleet.envs.places import Place, place_of, place_on
from rollfleet.envs.serial import Step
from rollfleet.envs.server import BEGIN, CALL, STEP, EnvInfos
from rollfleet.envs.server_process import Maker
from rollfleet.envs.single import Env, checked, registered
from rollfleet.envs.space_tree import unheld
from rollfleet.envs.subprocesses import ProcessVectorEnv
from rollfleet.errors import EnvironmentInvalid, JobInvalid
from rollfleet_api.env import MAX_ENVS


def make_vec(
    env: str | Callable[..., Env] | Sequence[Callable[..., Env]],
    *,
    num_envs: int | None = None,
    workers: int | None = None,
    servers: Sequence[str] | str | None = None,
    certificate: str | Path | None = None,
    cluster: Cluster | None = None,
    batch_size: int | None = None,
    autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
    env_kwargs: Mapping[str, object] | None = None,
) -> "ServedVectorEnv":
    """Make a `gymnasium.vector.VectorEnv` whose environments step in servers, which hold several each.

    Observations, rewards, flags and infos are those of `gymnasium.vector.SyncVectorEnv` with the same seeds.
    `Collector(make_vec(...), policy)` collects from it with the policy in this process.

    Args:
        env: An id of Gymnasium, a function that makes an environment, or a list of one function for each environment.
        num_envs: Environments. None: one, or one for each function of the list.
        workers: Servers that are processes of this machine, or pods. None: one for each CPU of this machine.
        servers: `host:port` of each server that runs elsewhere (`rollfleet env-server`), or the name of a job whose
            `env.servers` these are, with its namespace: "team-a/my-job". None: processes here.
        certificate: PEM file of servers with addresses, which this program needs, too. None: the path is in the
            variable ROLLFLEET_ENV_CERTIFICATE.
        cluster: The settings of the servers' pods. None: they run where the other arguments say.
        batch_size: Environments that `recv` waits for, those of some servers. None: all.
        autoreset_mode: When an environment whose episode ended resets: see `gymnasium.vector.AutoresetMode`.
        env_kwargs: Keyword arguments of the environment.

    Raises:
        EnvironmentInvalid: The environment cannot be made, or has a space that is not supported.
        EnvironmentFailed: A server could not make its environments. ConnectionFailed: One cannot be reached.
        JobInvalid: An argument cannot be used.
        ClusterError: A cluster refuses, or cannot be reached. JobNotFound: It has no such job. JobEnded: It failed.

    Example:
        >>> import rollfleet
        >>> envs = rollfleet.make_vec("CartPole-v1", num_envs=4, workers=2)
        >>> observations, _ = envs.reset(seed=0)
        >>> observations, rewards, terminations, truncations, infos = envs.step([0, 1, 0, 1])
        >>> observations.shape, rewards.tolist()
        ((4, 4), [1.0, 1.0, 1.0, 1.0])
        >>> envs.close()
    """
    source, makers = _makers(env, num_envs, env_kwargs or {})
    try:
        mode = AutoresetMode(autoreset_mode)
    except ValueError:
        modes = ", ".join(repr(each.value) for each in AutoresetMode)
        raise JobInvalid(f"autoreset_mode: expected one of {modes}, got {shown(autoreset_mode)}") from None
    first = checked(makers[0], source, env if isinstance(env, str) else None, env_kwargs or {})
    with ExitStack() as undone:
        undone.callback(first.close)
        if cluster is None:
            place = place_of(len(makers), workers, servers, certificate)
        elif servers is None and certificate is None:
            place = place_on(cluster, env, env_kwargs or {}, len(makers), workers)
        else:
            raise JobInvalid("cluster: its pods are the servers; remove `servers` and `certificate`, or `cluster`")
        undone.callback(place.leave)
        batch = _batch(len(makers), place.servers, batch_size)
        undone.pop_all()
    try:
        makers = [place.maker] * len(makers) if place.maker else makers
        return ServedVectorEnv(makers, place, sample=lambda: first, batch_size=batch, mode=mode)
    except BaseException:
        place.leave()
        raise


class ServedVectorEnv(ProcessVectorEnv):
    """See `make_vec`. The arrays that it returns are the caller's.

    After an exception out of `step`, `recv` or `reset`, reset all environments: that also starts lost servers again.

    Example:
        >>> import rollfleet
        >>> envs = rollfleet.make_vec("CartPole-v1", num_envs=8, workers=4, batch_size=4)
        >>> envs.async_reset(seed=0)
        >>> for _ in range(100):  # of the two servers that answer first
        ...     observations, rewards, terminations, truncations, infos = envs.recv()
        ...     envs.send(np.zeros(4, np.int64), infos["env_id"])
        >>> envs.close()
    """

    def __init__(
        self,
        makers: Sequence[Maker],
        place: Place,
        *,
        sample: Maker,
        batch_size: int,
        mode: AutoresetMode,
    ) -> None:
        """Start the servers: see `ProcessVectorEnv`, and `make_vec`. It leaves their place when it is closed."""
        self._under_way: dict[int, int] = {}  # the call that each server answers, oldest first
        self._leave = place.leave
        super().__init__(makers, place.servers, sample=sample, launch=place.launch)
        self.metadata["autoreset_mode"], self.batch_size = mode, batch_size
        self._mode, self.resets_on_request = mode, False
        self._everyone = np.arange(self.num_envs)

    def reset_on_request(self) -> None:
        """Act as a `ProcessVectorEnv` from the next `reset` on: for a rollout, which resets environments itself."""
        self.resets_on_request, self.metadata["autoreset_mode"], self._under_way = True, AutoresetMode.DISABLED, {}

    def step(self, actions: Any) -> Step:
        """See `gymnasium.vector.VectorEnv`.

        Raises:
            EnvironmentInvalid: The actions do not fit, an environment returned a value that its spaces do not allow, or
                a step that was sent is under way.
            EnvironmentFailed: A server died, or an environment raised.
        """
        if self.resets_on_request:
            return super().step(actions)
        self.send(actions)
        return self._received(list(self._under_way), self._everyone)

    def send(self, actions: Any, env_id: Any = None) -> None:
        """Start a step of these environments. `recv` returns the results.

        Args:
            actions: An action for each of them, in their order.
            env_id: Their numbers: `infos["env_id"]` of a `recv`, all environments of its servers. None: all.

        Raises:
            EnvironmentInvalid: They are not those of whole servers, are under way, or the actions do not fit.
        """
        self._check_open()
        servers, envs = list(range(len(self._groups))), self._everyone
        if env_id is not None:
            envs = np.asarray(env_id)
            servers = np.flatnonzero(np.isin([group.start for group in self._groups], envs)).tolist()
            if not np.array_equal(np.sort(envs), self._envs_of(servers)):
                raise EnvironmentInvalid(
                    f"env_id: {shown(envs.tolist())} are not all environments of some servers; pass `infos['env_id']` "
                    "of a `recv`"
                )
        if busy := [index for index in servers if index in self._under_way]:
            raise EnvironmentInvalid(
                f"environment {self._groups[busy[0]].start} is under way: call `recv`, or `reset`, first"
            )
        self._put(actions, envs)
        self._start_calls(dict.fromkeys(servers, STEP))

    def recv(self) -> Step:
        """Wait for `batch_size` environments, of the servers that answer first.

        Returns:
            What `step` returns, of these environments alone. `infos["env_id"]`, int64 [batch_size], has their numbers,
            in order.

        Raises:
            EnvironmentInvalid: Fewer environments are under way, or one returned a value that its spaces do not allow.
            EnvironmentFailed: A server died, or an environment raised.
        """
        self._check_open()
        wanted = self.batch_size * len(self._groups) // self.num_envs
        if len(self._under_way) < wanted:
            raise EnvironmentInvalid(
                f"recv waits for {self.batch_size} environments, and {len(self._envs_of(self._under_way))} are under "
                "way; call `send` or `async_reset` first"
            )
        answered: list[int] = []
        while len(answered) < wanted:
            waiting = {self._servers[index].pipe: index for index in self._under_way if index not in answered}
            ready: Any = {pipe for pipe in waiting if pipe.closed}  # their error comes below
            ready = ready or wait(waiting)  # type: ignore[arg-type]  # whatever has a `fileno`
            answered += [index for pipe, index in waiting.items() if pipe in ready]
        servers = sorted(answered[:wanted])
        envs = self._envs_of(servers)
        observations, rewards, terminations, truncations, infos = self._received(servers, envs)
        return observations, rewards, terminations, truncations, {**_rows(infos, envs), "env_id": envs}

    def async_reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: Mapping[str, Any] | None = None
    ) -> None:
        """Reset all environments: `recv` returns the first observations. See `reset`."""
        self._check_open()
        self._under_way = {}
        self._begin(seed, dict(options or {}))

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset the environments in `options["reset_mask"]` (bool [envs]), or all. See `gymnasium.vector.VectorEnv`.

        Raises:
            EnvironmentInvalid: Seeds or the mask do not fit, or an environment returned a value that its spaces do not
                allow.
            EnvironmentFailed: A server died, or an environment raised.
        """
        self._check_open()
        if self.resets_on_request:
            return super().reset(seed=seed, options=options)
        if "reset_mask" not in (options or {}):
            self._under_way = {}
        elif self._under_way:
            raise EnvironmentInvalid("reset_mask: environments are under way: call `recv` first")
        self._begin(seed, dict(options or {}))
        observations, *_, infos = self._received(list(self._under_way), self._everyone)
        return observations, infos

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Call a method of each environment, or read its attribute. See `gymnasium.vector.SyncVectorEnv`.

        Raises:
            EnvironmentFailed: A method raised, or a server died.
        """
        self._check_idle()
        return super().call(name, *args, **kwargs)

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """Read an attribute of each environment."""
        return self.call(name)

    def set_attr(self, name: str, values: Any) -> None:
        """Set an attribute of each environment: to its entry of a list or tuple, or to one value for all."""
        each = list(values) if isinstance(values, list | tuple) else [values] * self.num_envs
        if len(each) != self.num_envs:
            raise EnvironmentInvalid(f"values: {len(each)} values for {self.num_envs} environments; write one for each")
        self._check_idle()
        self._call({i: dumps((CALL, None, "set_attr", (name, each[g]), {})) for i, g in enumerate(self._groups)})

    def call_some(self, env_ids: Iterable[int], method: str, *args: Any, **kwargs: Any) -> list[Any]:
        """Call a method of `ServedEnvs`, such as "call", for these environments alone. Returns a result for each."""
        self._check_idle()
        asked = self._everyone[list(env_ids)].tolist()  # -1 is the last
        chosen, requests = sorted(set(asked)), {}
        for index, group in enumerate(self._groups):
            if numbers := [env - group.start for env in chosen if group.start <= env < group.stop]:
                requests[index] = dumps((CALL, numbers, method, args, kwargs))
        results = dict(zip(chosen, self._call(requests) or chosen, strict=True))
        return [results[env] for env in asked]

    def render(self) -> tuple[Any, ...]:
        """Return the picture of each environment. It needs `render_mode`."""
        return self.call("render")

    @property
    def np_random_seed(self) -> tuple[Any, ...]:  # type: ignore[override]
        """The seed of each environment's generator."""
        return self.call("np_random_seed")

    @property  # type: ignore[misc]
    def np_random(self) -> tuple[Any, ...]:  # type: ignore[override]
        """Copies of the environments' generators."""
        return self.call("np_random")

    def close(self, **_: Any) -> None:
        """Close the environments, and end the servers. One in mid-step has two seconds. May be called again."""
        if self._under_way:
            self._answered = -1
        super().close()
        self._leave()

    def _begin(self, seed: Any, options: dict[str, Any]) -> None:
        mask = self._mask(options.pop("reset_mask", None))
        seeds = [seed + i for i in range(self.num_envs)] if isinstance(seed, int | np.integer) else seed
        if seeds is not None and len(seeds) != self.num_envs:
            raise EnvironmentInvalid(f"seed: {len(seeds)} seeds for {self.num_envs} environments; write one for each")
        if mask.all():
            self._replace_lost()
        requests = {}
        for index, group in enumerate(self._groups):
            if mask[group].any():
                own = None if seeds is None else [plain(each) for each in seeds[group]]  # Gymnasium takes no others
                requests[index] = dumps((BEGIN, own, mask[group], self._mode, options))
        self._start_calls(requests)

    def _mask(self, mask: Any) -> NDArray[np.bool_]:
        if mask is None:
            return np.ones(self.num_envs, np.bool_)
        if not (isinstance(mask, np.ndarray) and mask.dtype == np.bool_ and mask.shape == (self.num_envs,)):
            raise EnvironmentInvalid(f"reset_mask: expected a bool array [{self.num_envs}], got {shown(mask)}")
        if not mask.any():
            raise EnvironmentInvalid("reset_mask: names no environment; leave the call out")
        return mask

    def _start_calls(self, requests: Mapping[int, bytes]) -> None:
        self._request(requests)
        self._under_way |= dict.fromkeys(requests, self._calls)

    def _received(self, servers: Sequence[int], envs: NDArray[np.int64]) -> Step:
        """Wait until servers have answered. Returns copies of these environments' rows."""
        infos: dict[str, Any] = {}
        found: dict[int, EnvInfos] = {}
        for index in servers:
            found |= self._answers({index: self._under_way.pop(index)})
        for index in sorted(found):  # Gymnasium's arrays of infos have the dtype of the first environment's
            for i, info in found[index]:
                infos = self._add_info(infos, info, self._groups[index].start + i)  # type: ignore[arg-type]
        seen = self._shared.seen
        leaves = zip(seen.split(self._observations), seen.leaves.values(), strict=True)
        observations = seen.join([leaf[envs].astype(space.dtype, copy=False) for leaf, space in leaves])
        rewards, terminations, truncations = (outcome[envs] for outcome in self._outcomes)
        return observations, rewards, terminations, truncations, infos

    def _put(self, actions: Any, envs: NDArray[np.int64]) -> None:
        """Write actions where the servers read them."""
        for view, leaf in zip(self._actions, self._shared.acted.split(actions), strict=True):
            values = np.asarray(leaf)
            if values.shape != (expected := (len(envs), *view.shape[1:])):
                raise EnvironmentInvalid(f"actions of shape {list(values.shape)}; expected {list(expected)}")
            if values.dtype != view.dtype and (wrong := unheld(values, view.dtype)):
                raise EnvironmentInvalid(f"actions: {wrong[0]} is no {view.dtype}, the dtype of {self.action_space}")
            view[envs] = values

    def _envs_of(self, servers: Iterable[int]) -> NDArray[np.int64]:
        groups = [np.arange(self._groups[index].start, self._groups[index].stop) for index in servers]
        return np.concatenate(groups) if groups else np.zeros(0, np.int64)

    def _check_idle(self) -> None:
        self._check_open()
        if self._under_way:
            raise EnvironmentInvalid("environments are under way: call `recv`, or `reset`, first")

    def _check_open(self) -> None:
        if self.closed:
            raise EnvironmentInvalid("the vector of environments is closed; make another")


def _batch(num_envs: int, servers: int, batch_size: int | None) -> int:
    batch = num_envs if batch_size is None else whole_number(batch_size, "batch_size", least=1, most=num_envs)
    if batch != num_envs and (num_envs % servers or batch % (num_envs // servers)):
        raise JobInvalid(
            f"batch_size: {batch} is no number of whole servers: {num_envs} environments in {servers} servers; write "
            f"a multiple of what one of them has"
        )
    return batch


def _rows(infos: Mapping[str, Any], envs: NDArray[np.int64]) -> dict[str, Any]:
    return {key: _rows(each, envs) if isinstance(each, Mapping) else each[envs] for key, each in infos.items()}


def _makers(env: Any, num_envs: int | None, kwargs: Mapping[str, object]) -> tuple[str, list[Maker]]:
    """Return the source of environments for messages, and a function for each."""
    several = isinstance(env, list | tuple)
    count = whole_number(
        (len(env) if several else 1) if num_envs is None else num_envs, "num_envs", least=1, most=MAX_ENVS
    )
    makers: list[Any] = list(env) if several else [env] * count
    if len(makers) != count or not all(callable(each) or isinstance(each, str) for each in makers):
        raise JobInvalid(
            f"env: an id such as 'CartPole-v1', a function that makes an environment, or a list of {count} of "
            f"them, not {shown(env)}"
        )
    if isinstance(env, str):
        return f"environment {env!r}", [registered(env, kwargs)] * count
    source = f"environment factory {getattr(makers[0], '__qualname__', makers[0])!r}"
    return source, [partial(each, **kwargs) if callable(each) else registered(each, kwargs) for each in makers]
