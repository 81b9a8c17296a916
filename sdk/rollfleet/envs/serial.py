"""Environments stepped one after the other: Gymnasium's `SyncVectorEnv` without the values that a rollout ignores."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeAlias

import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from numpy.typing import NDArray

from rollfleet.arguments import shown
from rollfleet.envs.failures import ATTEMPTS, FAILURES, Failure, ObservationOutside, note, seed_again
from rollfleet.envs.settings import Settings
from rollfleet.envs.space_tree import Array, SpaceTree, array_dtype, array_shape, bounds, unheld
from rollfleet.errors import EnvironmentFailed, EnvironmentInvalid, JobInvalid
from rollfleet_api.messages import LONGEST_NAME
from rollfleet_api.placement import EnvironmentFailuresSpec

Step: TypeAlias = tuple[Any, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]

TEXT = "_text "
_INTEGERS = (int, np.integer)
_NUMBERS = (int, float, np.integer, np.floating)
_SCALARS = (*_NUMBERS, np.bool_)
_FLAGS = frozenset((bool, np.bool_, np.ndarray))


class SerialVectorEnv(SyncVectorEnv):
    """A `SyncVectorEnv` that does not reset by itself.

    It drops the environments' infos, but for numbers and short texts of an episode's last one: they are the vector's
    `final_info`, numbers in Gymnasium's form, texts under `TEXT` and their name. It writes observations in place
    instead of stacking them, and a masked reset touches only the environments that it resets. It owns all arrays that
    it returns; the next call changes them.

    Attributes:
        info_keys: Keys of infos that are kept, `outer.inner` for a value of a nested dict. The vector's info has them
            in Gymnasium's form, values unchanged.
        info_names: All keys of the environments' infos so far, if `info_keys` has some.
        failures: With it, an environment that raises is replaced, and begins its next episode. The vector's infos say
            so, under `failures.FAILURES`, and its reward is no reward: `step_again` takes its next step. None: its
            exception is raised.
        settings: What environments get with each reset; None: nothing.
    """

    def __init__(self, makers: Any, *, again: Callable[[], Any] | None = None) -> None:
        """Build the environments by calling each of `makers` once. `again` makes a later one; None: its maker."""
        self.failures: EnvironmentFailuresSpec | None = None
        self.settings: Settings | None = None
        self._again: Sequence[Callable[[], Any]] = [again or maker for maker in makers]
        self._seeds: list[int | None] = [None] * len(makers)
        self._times = [0] * len(makers)  # that each was replaced since it was seeded
        self.info_keys: tuple[str, ...] = ()
        self.info_names: set[str] = set()
        super().__init__(makers, copy=False, autoreset_mode=AutoresetMode.DISABLED)
        self._seen, self._acted = SpaceTree(self.single_observation_space), SpaceTree(self.single_action_space)
        self._shapes = [array_shape(leaf) for leaf in self._seen.leaves.values()]
        dtypes = [array_dtype(leaf) for leaf in self._seen.leaves.values()]
        self._whole = [dtype if dtype.kind in "iub" else None for dtype in dtypes]  # they do not hold each number
        self._taken = [_NUMBERS if whole is None else _INTEGERS for whole in self._whole]  # for shape []
        self._plain = self._seen.plain and self._acted.plain
        self.write_into(self._seen.split(self._observations), self._rewards, self._terminations, self._truncations)

    def write_into(
        self, observations: Sequence[Array], rewards: Array, terminations: Array, truncations: Array
    ) -> None:
        """Write results into this memory from now on: observations as leaves [envs, ...], the others [envs]."""
        self._rows: list[Any] = list(observations)
        self._observations = self._seen.join(observations)
        self._rewards, self._terminations, self._truncations = rewards, terminations, truncations
        self._outcomes: Any = rewards.data, terminations.data, truncations.data  # None is no number to them

    def step(self, actions: Any) -> Step:
        """Step each environment. One whose episode has ended must have been reset before.

        Raises:
            EnvironmentInvalid: An environment returned an observation of another shape than its space's, or with a
                number that the space's dtype cannot hold, or a reward or a flag that is not a number.
        """
        if not self._plain:
            return self._step_trees(actions)
        observations, (rewards, terminations, truncations) = self._observations, self._outcomes
        shape, whole, taken, keys = self._shapes[0], self._whole[0], self._taken[0], self.info_keys
        infos: dict[str, Any] = {}
        checks = self.failures is not None and self.failures.check_observations
        for i, env in enumerate(self.envs):
            try:
                outcome = env.step(actions[i])
            except Exception as error:
                self._begin_again(i, error, infos)
                continue
            try:
                observation, reward, terminated, truncated, info = outcome
                # numpy would repeat a smaller observation, and cut a fraction; only one number fits into one number
                if shape:
                    if observation.shape != shape or (whole is not None and observation.dtype is not whole):
                        observation = self._fitting(observation, i)
                elif not isinstance(observation, taken):
                    observation = self._fitting(observation, i)
                observations[i] = observation
                if (terminated is not False and type(terminated) not in _FLAGS) or (
                    truncated is not False and type(truncated) not in _FLAGS
                ):
                    raise TypeError
                rewards[i], terminations[i], truncations[i] = reward, terminated, truncated
            except (AttributeError, TypeError, ValueError):
                info = self._take(i, outcome)
            if checks and (outside := self._outside(i)):
                self._begin_again(i, outside, infos)
                continue
            if keys:
                self._keep(info, i, infos)
            if info and (terminated or truncated):
                keep_numbers(info, i, infos.setdefault("final_info", {}), self.num_envs)
        return observations, self._rewards, self._terminations, self._truncations, infos

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset the environments in `options["reset_mask"]` (bool [envs]), or all."""
        mask = (options or {}).get("reset_mask")
        chosen = range(self.num_envs) if mask is None else mask.nonzero()[0].tolist()
        seeds = [seed + i for i in range(self.num_envs)] if isinstance(seed, int) else seed
        infos: dict[str, Any] = {}
        for i in chosen:
            if seeds is not None:
                self._seeds[i], self._times[i] = seeds[i], 0
            try:
                self._reset(i, None if seeds is None else seeds[i], infos)
            except Exception as error:
                self._begin_again(i, error, infos)
        return self._observations, infos

    def step_again(self, chosen: Iterable[int], actions: Any, infos: dict[str, Any]) -> Step:
        """Step these environments alone, which have begun again in a step: the results replace those of that step.

        Args:
            chosen: The environments.
            actions: Actions of all; those of the others are ignored.
            infos: The vector's infos of that step. They are changed.
        """
        del infos[FAILURES]
        leaves = self._acted.split(actions)
        for i in chosen:
            self._step(i, self._acted.join([leaf[i] for leaf in leaves]), infos)
        return self._observations, self._rewards, self._terminations, self._truncations, infos

    def _reset(self, i: int, seed: int | None, infos: dict[str, Any], **options: Any) -> Mapping[str, Any]:
        """Reset an environment, and write its observation. Returns its info."""
        env, given = self.envs[i], self.settings
        first: Any = env.reset(seed=seed, **options) if given is None else given.reset(env, i, seed)
        if not (isinstance(first, tuple | list) and len(first) == 2):
            raise self._old(i, "reset", "a pair (observation, info)", first)
        observation, info = first
        self._keep(info, i, infos)
        self._write(i, observation)
        return info  # type: ignore[no-any-return]

    def _begin_again(self, i: int, error: Exception, infos: dict[str, Any]) -> None:
        """Replace an environment, and begin its next episode. Call it where its error is handled.

        Raises:
            Exception: The error: environments are not replaced, or it is of the job.
            EnvironmentFailed: The environment has failed `ATTEMPTS` times, each time without a first observation.
        """
        if self.failures is None or isinstance(error, JobInvalid):
            raise error
        for _ in range(ATTEMPTS):
            note(Failure.of(error), i, infos, self.num_envs)
            self._times[i] += 1
            with suppress(Exception):
                self.envs[i].close()
            try:
                self.envs[i] = self._again[i]()
                self._reset(i, seed_again(self._seeds[i], self._times[i]), infos)
            except JobInvalid:
                raise
            except Exception as next_error:
                error = next_error
            else:
                self._outcomes[0][i], self._outcomes[1][i], self._outcomes[2][i] = 0.0, False, False
                return
        raise EnvironmentFailed(f"environment {i} was replaced {ATTEMPTS} times, and failed each time") from error

    def _step_trees(self, actions: Any) -> Step:
        leaves = self._acted.split(actions)
        infos: dict[str, Any] = {}
        for i in range(self.num_envs):
            self._step(i, self._acted.join([leaf[i] for leaf in leaves]), infos)
        return self._observations, self._rewards, self._terminations, self._truncations, infos

    def _step(self, i: int, action: Any, infos: dict[str, Any]) -> None:
        try:
            outcome = self.envs[i].step(action)
        except Exception as error:
            self._begin_again(i, error, infos)
            return
        info = self._take(i, outcome)
        if outside := self._outside(i):
            self._begin_again(i, outside, infos)
            return
        self._keep(info, i, infos)
        if info and (self._terminations[i] or self._truncations[i]):
            keep_numbers(info, i, infos.setdefault("final_info", {}), self.num_envs)

    def _outside(self, i: int) -> ObservationOutside | None:
        """Return the error of environment `i`'s observation, if it has one, and the job counts it as a failure."""
        if self.failures is not None and self.failures.check_observations:
            for rows, leaf in zip(self._rows, self._seen.leaves.values(), strict=True):
                low, high = bounds(leaf)
                if not (np.isfinite(rows[i]) & (low <= rows[i]) & (rows[i] <= high)).all():
                    return ObservationOutside(f"the observation {shown(rows[i])} is not finite, or outside of {leaf}")
        return None

    def _keep(self, info: Mapping[str, Any], i: int, infos: dict[str, Any]) -> None:
        """Put the wanted values of environment `i` into the vector's infos."""
        if not self.info_keys:
            return
        self.info_names.update(info)
        for key in self.info_keys:
            holder, name = place_of(info, key)
            if name in holder:
                if key not in infos:
                    infos[key] = np.empty(self.num_envs, object)
                    infos[f"_{key}"] = np.zeros(self.num_envs, np.bool_)
                infos[key][i], infos[f"_{key}"][i] = holder[name], True

    def _take(self, i: int, outcome: Any) -> Any:
        """Write what an environment's step returned, checked. Returns its info."""
        if not (isinstance(outcome, tuple | list) and len(outcome) == 5):
            raise self._old(i, "step", "(observation, reward, terminated, truncated, info)", outcome)
        observation, reward, terminated, truncated, info = outcome
        self._write(i, observation)
        try:
            if type(terminated) not in _FLAGS or type(truncated) not in _FLAGS:
                raise TypeError
            self._outcomes[0][i], self._outcomes[1][i], self._outcomes[2][i] = reward, terminated, truncated
        except (TypeError, ValueError):
            self._write_outcome(i, reward, terminated, truncated)
        return info

    def _old(self, i: int, method: str, expected: str, found: object) -> EnvironmentInvalid:
        size = f" of {len(found)}" if isinstance(found, tuple) else ""
        return EnvironmentInvalid(
            f"environment {i} ({self.envs[i]}): {method} returned a {type(found).__name__}{size}, not {expected}; it "
            "follows the interface of old Gym; change it to that of Gymnasium"
        )

    def _write(self, i: int, observation: Any) -> None:
        try:
            leaves = self._seen.split(observation)
        except EnvironmentInvalid as error:
            raise EnvironmentInvalid(f"environment {i} ({self.envs[i]}): {error}") from None
        for n, (rows, leaf) in enumerate(zip(self._rows, leaves, strict=True)):
            single = not self._shapes[n] and isinstance(leaf, self._taken[n])
            rows[i] = leaf if single else self._fitting(leaf, i, n)

    def _fitting(self, observation: Any, i: int, leaf: int = 0) -> Array:
        """Return an observation, or one leaf of it, as an array of its space's shape and of numbers of its dtype."""
        found, shape, whole = np.asarray(observation), self._shapes[leaf], self._whole[leaf]
        if found.shape != shape:
            raise self._misfit(i, leaf, "shape", str(list(found.shape)), list(shape))
        if whole is not None and found.dtype is not whole and (number := unheld(found, whole)):
            raise self._misfit(i, leaf, "dtype", f"{found.dtype}, such as {number[0]}", whole)
        return found

    def _misfit(self, i: int, leaf: int, what: str, found: str, expected: object) -> EnvironmentInvalid:
        path, space = list(self._seen.leaves.items())[leaf]
        where = f" at {list(path)}" if path else ""
        return EnvironmentInvalid(
            f"environment {i} ({self.envs[i]}) returned an observation of {what} {found}{where}; its observation space "
            f"has {expected}: return that {what}, or declare the other one in the space {space}"
        )

    def _write_outcome(self, i: int, *outcome: Any) -> None:
        """Write a reward and flags of other kinds, such as arrays of one number."""
        for name, array, value in zip(("reward", "terminated", "truncated"), self._outcomes, outcome, strict=True):
            try:
                number = np.asarray(value).item()
                array[i] = number + 0.0 if name == "reward" else {0: False, 1: True}[number]
            except (KeyError, TypeError, ValueError):
                wanted = "one number" if name == "reward" else "True or False"
                raise EnvironmentInvalid(
                    f"environment {i} ({self.envs[i]}) returned {name} {value!r}; return {wanted}"
                ) from None


def keep_numbers(info: Mapping[str, Any], i: int, infos: dict[str, Any], num_envs: int) -> None:
    """Put numbers and texts of environment `i`'s info into a vector's infos; of a nested dict as `outer.inner`."""
    for key, value in info.items():
        name = str(key)
        if isinstance(value, Mapping):
            keep_numbers({f"{name}.{inner}": each for inner, each in value.items()}, i, infos, num_envs)
        elif isinstance(value, _SCALARS) and not (name.startswith("_") and name[1:] in infos):  # the mask of another
            if name not in infos:
                infos[name], infos[f"_{name}"] = np.full(num_envs, np.nan), np.zeros(num_envs, np.bool_)
            infos[name][i], infos[f"_{name}"][i] = value, True
        elif isinstance(value, str) and len(value) <= LONGEST_NAME:
            infos.setdefault(f"{TEXT}{name}", np.full(num_envs, None))[i] = value


def place_of(info: Mapping[str, Any], key: str) -> tuple[Mapping[str, Any], str]:
    """Return the dict of an info that may hold a value, and the value's key in it."""
    outer, dot, inner = key.partition(".")
    if key in info or not dot:
        return info, key
    nested = info.get(outer)
    return place_of(nested, inner) if isinstance(nested, Mapping) else ({}, inner)
