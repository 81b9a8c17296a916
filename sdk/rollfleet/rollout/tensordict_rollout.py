"""TorchRL's environments stepped by a policy, and recorded key by key as TorchRL's own collectors record them."""

from collections.abc import Callable
from contextlib import nullcontext, suppress
from traceback import walk_tb
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rollfleet.data.batch import MASK, NO_TRAJECTORY, TRAJECTORY, VERSION, Fragment, is_dense
from rollfleet.data.tensor_tree import Key, flatten, key_of
from rollfleet.data.whole_trajectories import WholeTrajectories, add_batch, batch_of, flag_last
from rollfleet.envs.factory import give
from rollfleet.envs.settings import Settings
from rollfleet.envs.torchrl_env import KEEPS_SEEDS, UNCALLED, TorchRLEnv, with_transforms
from rollfleet.errors import EnvironmentInvalid, JobInvalid
from rollfleet.exploration import exploring
from rollfleet.policies.actor import device_of_policy
from rollfleet.policies.tensordict_call import Interacting
from rollfleet.policies.tensordict_policy import check_actions, tensordict_policy
from rollfleet.rollout.episodes import EpisodeCounts, LongEpisodes
from rollfleet.rollout.finite_check import FINITE, NOT_NAN, FiniteCheck, Frames
from rollfleet.rollout.seeding import Seeds, TorchStream
from rollfleet.rollout.trajectory_ids import TrajectoryIds, split
from rollfleet.system.generators import generators_kept
from rollfleet.system.interrupts import interruptible
from rollfleet_api.collection import CollectSpec, NonFinite

if TYPE_CHECKING:
    from tensordict import TensorDict

PlainFrames: Any = None
with suppress(ModuleNotFoundError):  # the folder can be removed
    from rollfleet.plain_tensors.frames import PlainFrames


class TensorDictRollout:
    """A `Rollouts` over an `EnvBase`: the policy and the environment pass one TensorDict to each other.

    How options of `CollectSpec` act here, where they differ from `Rollout`:
        reset_when_done: Must be true: the environments of TorchRL reset as each of them is done.
        step_count, is_init, max_frames_per_traj: `StepCounter` and `InitTracker` are appended to the environment.
        info_keys: Must be empty: infos are keys of the environment.
    """

    environments_s = 0.0  # policy and environment are one call

    def __init__(
        self,
        env: TorchRLEnv,
        policy: Any,
        *,
        steps: int,
        seeds: Seeds,
        trajectories: TrajectoryIds,
        collect: CollectSpec | None = None,
        trained_here: bool = False,
    ) -> None:
        """Prepare; neither the environment nor the policy are called before the first `collect`. See `Rollout`.

        Raises:
            EnvironmentInvalid: The environment does not suit the options.
            PolicyInvalid: The policy takes no TensorDict, and its parameters are not observations.
        """
        self._spec = spec = collect or CollectSpec(frames_per_batch=steps * env.num_envs)
        if not spec.reset_when_done:
            raise EnvironmentInvalid(
                f"environment {env}: TorchRL's environments reset when they are done; remove `reset_when_done`"
            )
        if about_infos := [name for name in ("info_keys", "episode_label") if getattr(spec, name)]:
            raise EnvironmentInvalid(
                f"environment {env}: infos of TorchRL's environments are keys of the batch; remove `{about_infos[0]}`, "
                "and write set_info_dict_reader() on the environment"
            )
        self._env, self._num_envs, self._steps = env, env.num_envs, steps
        self._keeps_seeds = bool(vars(env.base).get(KEEPS_SEEDS))
        self._uncalled = self._keeps_seeds and bool(vars(env.base).get(UNCALLED))
        env.base = with_transforms(env.base, spec.model_dump(), policy)
        self._act = tensordict_policy(policy, env.base)
        self._writes = getattr(self._act, "out_keys", None) or None  # all
        self._device = device_of_policy(policy)
        self._moves = (env.base.device or torch.device("cpu")).type != self._device.type
        self._plain = PlainFrames and PlainFrames(self._act, "its device" if self._moves else "")
        self._done_keys = flags = [("next", *key_of(key)) for key in env.base.done_keys]
        self._reward_keys = [("next", *key_of(key)) for key in env.base.reward_keys]
        truncated = [key for key in flags if key[-1] == "truncated"]
        self._cut_flags = [*truncated, *(key for key in flags if key[-1] == "done")]
        self._last_flags = [each for key in truncated for each in (key, (*key[:-1], "done")) if spec.set_truncated]
        if spec.set_truncated and not truncated:
            raise EnvironmentInvalid(f"environment {env} has no key `truncated`; remove `set_truncated`")
        limits = {key_of(key): FINITE for key in env.base.observation_spec.keys(True, True)}
        limits |= {key_of(key): NOT_NAN for key in (*getattr(self._act, "out_keys", ()), *env.base.action_keys)}
        limits |= dict.fromkeys(self._reward_keys, FINITE)
        self._finite = FiniteCheck(env, raises=spec.non_finite is NonFinite.ERROR)
        self._finite.limits = {} if spec.non_finite is NonFinite.IGNORE else limits
        self._episodes, self._long = EpisodeCounts(env.num_envs), LongEpisodes("trajs_per_batch")
        self._in_collect = self._worked = self._started = False
        self._trajectories = trajectories
        self._carrier: Any = None
        self._outputs: dict[Key, Tensor] | None = None
        self._order: dict[Key, int] = {}  # of keys in batches
        self.reseed(seeds, trajectories)
        if self._keeps_seeds and trained_here:
            with torch.no_grad():
                self._begin()

    @property
    def path(self) -> str:
        """See `Rollouts`."""
        return self._plain.path if self._plain else ""

    def reseed(self, seeds: Seeds, trajectories: TrajectoryIds) -> None:
        """See `Rollouts`. TorchRL's own collector keeps its environments as they are where a run is restored."""
        stays = self._keeps_seeds and self._started and trajectories is not self._trajectories
        self._seeds, self._trajectories = seeds, trajectories
        self._stream = TorchStream(seeds.torch, self._device)
        self._seeded, self._started, self._frames_before = 0, stays, 0
        self._whole = WholeTrajectories[Any]()
        if stays:
            self._ids = trajectories.take(self._num_envs)
        elif self._carrier is not None:
            self._carrier = self._carrier.clone().zero_() if self._keeps_seeds else None

    def collect(
        self,
        *,
        version: int,
        steps: int = 0,
        random_actions: bool = False,
        stop: Callable[[], bool] = lambda: False,
    ) -> Fragment:
        """See `Rollouts`. The fragment has new memory.

        Raises:
            EnvironmentInvalid: The environment fails TorchRL's `check_env_specs`, which explains another error.
        """
        if self._in_collect:
            self.start_over()
        self._in_collect, self._steps = True, steps or self._steps
        self._version, wanted = version, self._spec.trajs_per_batch
        self._episodes.act(version)
        try:
            with (
                nullcontext() if self._keeps_seeds else self._stream.active(),
                torch.no_grad(),
                exploring(self._spec.exploration),
                Interacting(self._spec.exploration),
                interruptible(),
            ):
                self._prepare()
                if wanted:
                    batch = self._trajectories_of(wanted, stop, random_actions)
                else:
                    batch, _ = self._frames(stop, random_actions)
        except Exception as error:
            self._explain(error)
            raise
        tensors, structure = flatten(batch)
        self._in_collect, self._worked = False, True
        for key in tensors:
            self._order.setdefault(key, len(self._order))
        return Fragment(
            steps={key: tensors[key].contiguous() for key in sorted(tensors, key=self._order.__getitem__)},
            final={},
            episodes=self._episodes.take(),
            version=version,
            structure=structure,
            non_finite=self._finite.take(),
        )

    @property
    def first_reset_failed(self) -> bool:
        """See `Rollouts`."""
        return self._seeded == 1 and not self._started

    def set_env(self, settings: Settings) -> None:
        """See `Rollouts`."""
        give(self._env, settings)

    def start_over(self) -> None:
        """See `Rollouts`."""
        self._started = False
        self._episodes.take()

    def outcomes(self, fragment: Fragment) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """See `Rollouts`. The reward of several agents is their mean."""
        return self._outcomes

    def close(self) -> None:
        """See `Rollouts`."""
        self._env.close()

    def _frames(self, stop: Callable[[], bool], random_actions: bool) -> "tuple[TensorDict, Tensor]":
        """Return T frames of each environment, fewer once `stop` is true, and where episodes ended: `[envs, T]`."""
        from tensordict import TensorDict

        env, carrier = self._env.base, self._carrier
        act, ended, frames = env.rand_action if random_actions else self._called, self._ended, []
        ends: list[Tensor] = []
        batch: Any
        if self._plain and (found := self._plain.collect(env, carrier, act, self._steps, stop, ended, random_actions)):
            batch, ended_at, self._carrier = found
        else:
            for t in range(self._steps):
                if t and stop():
                    break
                frame, carrier = env.step_and_maybe_reset(act(carrier))
                frames.append(frame)
                ends.append(ended(frame))  # at once: some environments write into the same flags again
            batch, ended_at, self._carrier = TensorDict.maybe_dense_stack(frames, -1), torch.stack(ends, -1), carrier
        if random_actions:
            self._complete(batch)
        ended_at = ended_at.reshape(self._num_envs, -1)
        batch = _rows(batch, batch.batch_dims - 1)
        if private := [key for key in batch.keys(True) if any(part.startswith("_") for part in key_of(key))]:
            batch = batch.exclude(*private)
        if batch.device is not None:
            batch = batch.to("cpu").clear_device_()
        self._identify(batch, ended_at.numpy())
        if self._finite.limits and is_dense(batch):
            self._check(batch)
        self._frames_before += batch.shape[1]
        flag_last(batch, self._last_flags)
        return batch, ended_at

    def _prepare(self) -> None:
        """Reset where that is due, once for a batch: `_carrier` is then what the next action is taken for."""
        if not self._started:
            self._begin()
        if self._spec.reset_at_each_iter:  # once more, as TorchRL's, which resets when it is made, too
            self._reset()

    def _begin(self) -> None:
        """Reset all environments, and call the policy once to know its outputs, as TorchRL's collector when made."""
        if not self._keeps_seeds:
            seeds = self._seeds.again(self._seeded).envs
            self._env.base.set_seed(seeds[0], static_seed=len(seeds) > 1 and len(set(seeds)) == 1)
            self._seeded, self._frames_before = self._seeded + 1, 0
        self._reset()
        if self._outputs is None and not self._uncalled:
            keys = self._env.base.fake_tensordict().keys(True, True) if self._keeps_seeds else ()
            self._order = {key_of(name): number for number, name in enumerate(keys)}  # as in TorchRL's batches
            self._show()
        self._started = True

    def _reset(self) -> None:
        """Begin new trajectories. The policy's outputs stay for its next call, as in TorchRL."""
        found = self._env.base.reset()
        self._carrier = found if self._carrier is None else self._carrier.update(found)
        self._episodes.discard(slice(None))
        self._ids = self._trajectories.take(self._num_envs)
        self._whole.forget()

    def _show(self) -> None:
        """Learn the form of the policy's outputs, by key, from one call."""
        with nullcontext() if self._keeps_seeds and not self._uncalled else generators_kept():
            shown = self._called(self._carrier.clone(recurse=not self._keeps_seeds))
        check_actions(shown, self._env.base)
        found = {key: shown.get(key, None) for key in self._writes or ()}
        self._outputs = {key: torch.zeros_like(value) for key, value in found.items() if isinstance(value, Tensor)}

    def _complete(self, batch: Any) -> None:
        """Put zeros under the policy's missing outputs, as in TorchRL: frames of random actions have them, too."""
        missing = [key for key in self._writes or () if batch.get(key, None) is None]
        if missing and self._outputs is None:
            self._show()
        for key in missing:
            if (value := (self._outputs or {}).get(key)) is not None:
                value = value.unsqueeze(batch.batch_dims - 1)
                batch.set(key, value.expand(*batch.batch_size, *value.shape[batch.batch_dims :]))

    def _called(self, carrier: Any) -> Any:
        """Return the TensorDict with the policy's outputs."""
        if self._moves:
            output = self._act(carrier.to(self._device)).to(self._env.base.device or "cpu")
        else:
            output = self._act(carrier)
        return carrier if output is carrier else carrier.update(output, keys_to_update=self._writes)

    def _ended(self, frame: Any) -> Tensor:
        """Return which environments' trajectories end with a frame, bool `[*batch size]`: of several agents, any."""
        dims, (first, *others) = frame.batch_dims, self._done_keys
        found: Tensor = frame.get(first).flatten(dims).any(-1)
        for key in others:
            found = found | frame.get(key).flatten(dims).any(-1)
        return found.cpu()

    def _check(self, batch: Any) -> None:
        def frames() -> Frames:
            ids, none = batch.get(TRAJECTORY).numpy(), np.zeros(batch.shape, np.bool_)
            seeds = [] if self._keeps_seeds else self._seeds.again(self._seeded - 1).envs[:1] * self._num_envs
            return Frames(ids, ~none, none, seeds, [self._frames_before] * self._num_envs)

        found = ((key, batch.get(key, None)) for key in self._finite.limits)
        self._finite.check({key: value for key, value in found if isinstance(value, Tensor)}, (), frames)

    def _identify(self, batch: Any, ended: NDArray[np.bool_]) -> None:
        """Write trajectory ids, and count episodes. `ended`: whether an episode ended with a frame, `[envs, T]`."""
        found = [batch.get(key) for key in self._reward_keys if key in batch.keys(True)]
        rewards = [each.reshape(*ended.shape, -1).double().mean(-1) for each in found]
        reward = torch.stack(rewards).mean(0).numpy() if rewards else np.zeros(ended.shape)
        self._outcomes = reward, ended
        ids = np.ascontiguousarray(self._trajectories.along(ended.T, self._ids).T)
        start = 0
        for t in [*np.flatnonzero(ended.any(0)).tolist(), ended.shape[1] - 1]:
            self._episodes.returns += reward[:, start : t + 1].sum(1)
            self._episodes.lengths += t + 1 - start
            if t >= start and len(envs := ended[:, t].nonzero()[0]):
                self._episodes.end(envs)
            start = t + 1
        batch.set(TRAJECTORY, torch.from_numpy(ids))
        batch.set(VERSION, torch.full_like(batch.get(TRAJECTORY), self._version))

    def _trajectories_of(self, wanted: int, stop: Callable[[], bool], random_actions: bool) -> "TensorDict":
        """Return whole trajectories `[trajectories, T]`; once `stop` is true, which it stays, what there is of them."""
        stopped = False
        while len(self._whole) < wanted and not (stopped and self._whole):
            batch, ended = self._frames(stop, random_actions)
            add_batch(self._whole, batch, ended)
            self._long.check(self._episodes.lengths)
            stopped = stop()
            if stopped and not self._whole:  # what follows is not their beginning: begin new episodes
                for pieces in self._whole.cut():
                    pieces[:] = [torch.cat(pieces)]
                    flag_last(pieces[0], self._cut_flags)
                self.start_over()
        batch = batch_of(self._whole.take(wanted))
        batch.get(TRAJECTORY)[~batch.get(MASK)] = NO_TRAJECTORY
        return batch

    def _explain(self, error: Exception) -> None:
        """Raise the error of TorchRL's `check_env_specs`, if an environment that never worked raised it and fails."""
        called = [frame.f_code for frame, _ in walk_tb(error.__traceback__)]
        acts = {TensorDictRollout._called.__code__, getattr(PlainFrames, "ACTS", None)}
        _, incarnation, _ = split(self._trajectories.next)  # one that was restarted may have worked before
        if self._worked or incarnation or isinstance(error, JobInvalid) or acts & {*called}:
            return
        from torchrl.envs.utils import check_env_specs

        try:
            check_env_specs(self._env.base)
        except Exception as found:
            raise EnvironmentInvalid(
                f"environment {self._env} fails torchrl.envs.utils.check_env_specs: {found}"
            ) from error


def _rows(batch: Any, dims: int) -> Any:
    """Return a TensorDict `[*envs, T]`, with this number of dimensions of environments, as `[envs, T]`."""
    from tensordict import TensorDict

    if dims == 1:
        return batch
    if not dims:
        return batch.unsqueeze(0)
    if is_dense(batch):
        return batch.flatten(0, dims - 1)
    parts = [batch]
    for _ in range(dims):  # a lazy stack that is flattened mixes up its dimensions
        parts = [part for whole in parts for part in whole.unbind(0)]
    return TensorDict.maybe_dense_stack(parts, 0)
