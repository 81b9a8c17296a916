"""A worker's fragment, and the batch that a learner gets from it: a TensorDict in TorchRL's layout."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rollfleet.data.tensor_memory import Array, Empty, as_array, fresh, indexable
from rollfleet.data.tensor_tree import UNEVEN, Structure, grouped, rebuild
from rollfleet.errors import JobInvalid, MessageCorrupt
from rollfleet_api.collection import CatResults
from rollfleet_api.messages import LONGEST_NAME, MOST_NUMBERS

if TYPE_CHECKING:
    # Imported only where it is needed: it adds a third to a worker's memory.
    from tensordict import TensorDict

Key = tuple[str, ...]
Flags: TypeAlias = NDArray[np.bool_]

OBSERVATION: Key = ("observation",)
ACTION: Key = ("action",)
LOG_PROB: Key = ("action_log_prob",)
REWARD: Key = ("next", "reward")
TERMINATED: Key = ("next", "terminated")
TRUNCATED: Key = ("next", "truncated")
INFO: Key = ("next", "info")
TRAJECTORY: Key = ("collector", "traj_ids")
VERSION: Key = ("collector", "policy_version")
MASK: Key = ("collector", "mask")
FAILED: Key = ("collector", "failed")
ENV_VERSION: Key = ("collector", "env_version")
STEP_COUNT: Key = ("step_count",)
IS_INIT: Key = ("is_init",)

NO_TRAJECTORY = -1
"""The trajectory id of padding."""

RESERVED = ("action", "next", "reward", "done", "terminated", "truncated", "collector", "step_count", "is_init")
"""The root keys of a batch, apart from observations, the policy's outputs and its hidden state."""

Layout: TypeAlias = Mapping[Key, tuple[torch.dtype, tuple[int, ...]]]
"""The dtype and the shape in one frame of values."""

FIXED: Layout = {  # in every fragment of Gymnasium's environments
    REWARD: (torch.float32, (1,)),
    TERMINATED: (torch.bool, (1,)),
    TRUNCATED: (torch.bool, (1,)),
    TRAJECTORY: (torch.int64, ()),
}
OPTIONAL: Layout = {
    VERSION: (torch.int64, ()),
    MASK: (torch.bool, ()),
    STEP_COUNT: (torch.int64, (1,)),
    IS_INIT: (torch.bool, (1,)),
    FAILED: (torch.bool, ()),
    ENV_VERSION: (torch.int64, ()),
}

Episodes: TypeAlias = dict[str, Tensor]
"""What is said of the episodes that ended in a fragment, [m, ...] each, in order of their end: `EPISODES`, and more.

Other names are `EPISODE_INFO` and that of a number in the last infos: float64, NaN of an episode without it.
"""

EPISODES: Mapping[str, tuple[torch.dtype, tuple[int, ...]]] = {
    "returns": (torch.float64, ()),
    "lengths": (torch.int64, ()),
    "versions": (torch.int64, (2,)),
}
"""Sums of rewards, frames of the environment, and the versions of the policy in an episode's first and last frame."""
EPISODE_INFO = "info."
EPISODE_LABEL = "label"
"""The position of an episode's label in `Fragment.labels`: float64 [m], NaN of an episode without one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fragment:
    """The frames that one worker collected for a batch, without values that can be rebuilt.

    Rebuilt are next observations, `done`, and the flags at the root.

    Attributes:
        steps: CPU tensors [envs, T, ...], contiguous. Always: observations (a Dict space's one by one), action, the
            policy's other outputs, the hidden state that it acted with, next.reward float32, next.terminated and
            next.truncated bool [envs, T, 1], collector.traj_ids int64 [envs, T]. If frames can come from several
            versions: collector.policy_version int64 [envs, T]. If rows differ in length: collector.mask bool [envs, T];
            False marks padding, which is zero, under the trajectory id -1. On request: step_count int64 and is_init
            bool [envs, T, 1], (next, info, ...) float64 [envs, T, ...], collector.failed bool [envs, T]. Once
            environments have settings: collector.env_version int64 [envs, T].
        final: [n, ...] for each leaf of the observation and of the hidden state: the true next values of frames that
            ended an episode or are the last of their row, in row-major (env, t) order.
        episodes: The episodes that ended in this fragment.
        version: The version of the policy that acted.
        structure: The form of frames that are TensorDicts from the start, of TorchRL's environments; None: the layout
            above. With it, `steps` holds all keys, also those under `next`, except those that `final` rebuilds.
        non_finite: Frames with NaN or infinity; 0 once it was sent: its `BatchMeta` has the number.
        failed_episodes: Episodes that a failure of their environment ended, by the class of its error; likewise.
        newest_failure: What the newest of these was; empty: there was none.
        labels: The values of `episode_label` so far; likewise.
    """

    steps: dict[Key, Tensor]
    final: dict[Key, Tensor]
    episodes: Episodes
    version: int
    structure: Structure | None = None
    non_finite: int = 0
    failed_episodes: Mapping[str, int] = field(default_factory=dict)
    newest_failure: str = ""
    labels: tuple[str, ...] = ()

    @property
    def frames(self) -> int:
        """Number of frames, without padding."""
        mask = self.steps.get(MASK)
        return self.steps[TRAJECTORY].numel() if mask is None else int(torch.count_nonzero(mask))


def to_batch(fragment: Fragment, *, empty: Empty = fresh) -> "TensorDict":
    """Expand to a TensorDict [envs, T], dimensions named (None, "time"), in TorchRL's layout.

    Its values share memory with `fragment.steps`; rebuilt values are new. `empty` allocates next observations.

    Raises:
        MessageCorrupt: Shapes, dtypes or counts disagree. All are checked before use: a hostile peer may have sent
            them.
    """
    _check_size(fragment)
    # numpy does all of this: each of torch's functions would give other threads the GIL, and wait for it.
    steps, mask = fragment.steps, None
    if fragment.structure is None:
        _check_layout(fragment)
        mask = steps[MASK].numpy() if MASK in steps else None
        done = steps[TERMINATED].numpy() | steps[TRUNCATED].numpy()
        ends = _row_ends(done[:, :, 0], mask)
    else:
        ends = _trajectory_ends(as_array(steps[TRAJECTORY]))
    flat: dict[Key, Tensor] = dict(steps)
    count = int(np.count_nonzero(ends)) if fragment.final else 0
    for key, final in fragment.final.items():
        flat[("next", *key)] = _next(key, steps[key], final, ends, count, mask, empty)
    if fragment.structure is not None:
        return rebuild(flat, fragment.structure)
    flat[("next", "done")] = torch.from_numpy(done)
    for name in ("done", "terminated", "truncated"):
        flat[(name,)] = torch.from_numpy(np.zeros_like(done))
    if VERSION not in flat:
        flat[VERSION] = torch.from_numpy(np.full(ends.shape, fragment.version, np.int64))
    if STEP_COUNT in flat:
        flat[("next", *STEP_COUNT)] = torch.from_numpy(
            steps[STEP_COUNT].numpy() + (1 if mask is None else mask[:, :, None])
        )
    if IS_INIT in flat:
        flat[("next", *IS_INIT)] = torch.from_numpy(np.zeros_like(done))
    return grouped(flat, steps[TRAJECTORY].shape, [None, "time"])


def compact(fragment: Fragment) -> Fragment:
    """Return a TorchRL environment's fragment without those next values that the next frame's values can rebuild."""
    steps, final = {key: value.cpu() for key, value in fragment.steps.items()}, {}
    ends = _trajectory_ends(as_array(steps[TRAJECTORY]))
    count = int(np.count_nonzero(ends))
    for key in [key for key in steps if key[:1] == ("next",) and key[1:] in steps]:
        now, following = steps[key[1:]], steps[key]
        if now.shape == following.shape and now.dtype == following.dtype:
            last = indexable(following)[torch.from_numpy(ends)].view(following.dtype)
            if torch.equal(_next(key, now, last, ends, count, None, fresh), following):
                final[key[1:]] = last
                del steps[key]
    return replace(fragment, steps=steps, final=final)


def _trajectory_ends(trajectories: Array) -> Flags:
    """Return which frames have no successor of their trajectory in their row: bool [envs, T]."""
    ends: Flags = np.ones(trajectories.shape, np.bool_)
    ends[:, :-1] = trajectories[:, 1:] != trajectories[:, :-1]
    return ends


def _row_ends(done: Flags, mask: Flags | None) -> Flags:
    """Return which frames have no successor in their row: bool [envs, T]."""
    ends = done.copy()
    ends[:, -1] = True
    if mask is not None:
        ends[:, :-1] |= ~mask[:, 1:]
        ends &= mask
    return ends


def is_episode_info(key: Key) -> bool:
    """Whether a key in `Episodes` is that of the label, or of a number in the last infos that fits into a heartbeat."""
    is_info = len(key) == 1 and key[0].startswith(EPISODE_INFO) and len(key[0]) <= len(EPISODE_INFO) + LONGEST_NAME
    return is_info or key == (EPISODE_LABEL,)


def _check_size(fragment: Fragment) -> None:
    steps = fragment.steps
    if TRAJECTORY not in steps or steps[TRAJECTORY].dtype is not torch.int64:
        raise MessageCorrupt(f"a fragment without {TRAJECTORY} of int64")
    if not fragment.final.keys() <= steps.keys():
        raise MessageCorrupt(f"final observations for {sorted(fragment.final)}, which are not in the fragment")
    ended = {name: (value.dtype, tuple(value.shape)) for name, value in fragment.episodes.items()}
    m = fragment.episodes["returns"].numel() if "returns" in ended else 0
    infos = [name for name in ended if is_episode_info((name,))]
    expected = {**EPISODES, **dict.fromkeys(infos, (torch.float64, ()))}
    if (
        ended != {name: (dtype, (m, *shape)) for name, (dtype, shape) in expected.items()}
        or len(infos) > MOST_NUMBERS + 1
    ):
        raise MessageCorrupt(f"numbers of episodes: {ended}; expected {EPISODES}, [m, ...] each")
    if not 0 <= fragment.version < 1 << 63:
        raise MessageCorrupt(f"policy version {fragment.version} is out of range")
    trajectories = steps[TRAJECTORY]
    if trajectories.ndim != 2 or trajectories.numel() == 0:
        raise MessageCorrupt(f"{TRAJECTORY} has shape {tuple(trajectories.shape)}; expected [envs, T], both at least 1")
    envs, time = trajectories.shape
    uneven = () if fragment.structure is None else UNEVEN
    for key, value in steps.items():
        if not key or (value.shape[:2] != (envs, time) and (key[0] not in uneven or key in fragment.final)):
            raise MessageCorrupt(f"{key} has shape {tuple(value.shape)}; expected [{envs}, {time}, ...]")


def _check_layout(fragment: Fragment) -> None:
    steps, final = fragment.steps, fragment.final.keys()
    for key in FIXED:
        if key not in steps:
            raise MessageCorrupt(f"a fragment without {key}")
    if not any(key[:1] == ACTION for key in steps):
        raise MessageCorrupt("a fragment without an action")
    if not final or any(key[:1] in (("next",), ("collector",), ACTION) for key in final):
        raise MessageCorrupt(f"final observations for {sorted(final)}; expected those of the observations")
    envs, time = steps[TRAJECTORY].shape
    for key, (dtype, shape) in {**FIXED, **OPTIONAL}.items():
        value = steps.get(key)
        if value is not None and (value.dtype != dtype or value.shape != (envs, time, *shape)):
            expected = f"{dtype} {[envs, time, *shape]}"
            raise MessageCorrupt(f"{key} is {value.dtype} {tuple(value.shape)}; expected {expected}")


def _next(
    key: Key,
    now: Tensor,
    final: Tensor,
    ends: Flags,
    count: int,
    mask: Flags | None,
    empty: Empty,
) -> Tensor:
    """Return the observations after each step: those of the next frame, or `final` at a row's end. One allocation."""
    if final.shape != (count, *now.shape[2:]) or final.dtype != now.dtype:
        raise MessageCorrupt(
            f"final {key} is {final.dtype} {tuple(final.shape)}; its flags say {now.dtype} {(count, *now.shape[2:])}"
        )
    following = empty(now.shape, now.dtype)
    writing = as_array(following)
    writing[:, :-1] = as_array(now)[:, 1:]
    writing[ends] = as_array(final)
    if mask is not None:
        writing[~mask] = 0
    return following


def pad(batch: "TensorDict", time: int, rows: int = 0) -> "TensorDict":
    """Pad a batch [envs, T] with zeros to `time` frames a row and at least `rows` rows, and give it a mask.

    In `("collector", "mask")` padding is False; its trajectory id is -1. A batch of that shape shares its memory.

    Raises:
        ValueError: Its rows are longer than that.
    """
    envs, own = batch.shape
    if own > time:
        raise ValueError(f"a batch of {own} frames a row cannot be padded to {time}")
    if MASK not in batch.keys(True):
        batch = batch.copy()
        batch[MASK] = torch.ones(envs, own, dtype=torch.bool, device=batch[TRAJECTORY].device)
    if own == time and envs >= rows:
        return batch
    padded = batch.new_zeros(max(envs, rows), time)
    padded[:envs, :own] = batch
    padded[TRAJECTORY][~padded[MASK]] = NO_TRAJECTORY
    return padded


def join(fragments: Sequence["TensorDict"], how: CatResults = CatResults.ENVS, *, empty: Empty = fresh) -> "TensorDict":
    """Join the workers' fragments `[envs, T]` into one batch, in their order.

    A shorter fragment is padded to the longest (see `pad`). All fragments then have that mask.

    Args:
        fragments: One fragment of each worker.
        how: `Envs`: `[all envs, T]`, and a single fragment as it is. `Time`: `[envs, workers * T]`. `Stack`:
            `[workers, envs, T]`.
        empty: Allocates what is on the CPU.

    Raises:
        JobInvalid: The fragments differ in a key, dtype or shape, or in a number of environments that must be equal.
        ValueError: The sequence is empty.
    """
    if not fragments:
        raise ValueError("no batches to join")
    if how is CatResults.ENVS and len(fragments) == 1:
        return fragments[0]
    if not all(map(is_dense, fragments)):
        return _stacked(fragments, how)
    time = max(fragment.shape[1] for fragment in fragments)
    if any(fragment.shape[1] < time or MASK in fragment.keys(True) for fragment in fragments):
        fragments = [pad(fragment, time) for fragment in fragments]
    _check_alike(fragments)
    if how is not CatResults.ENVS and len({fragment.shape[0] for fragment in fragments}) > 1:
        raise JobInvalid(
            f"workers with {', '.join(str(fragment.shape[0]) for fragment in fragments)} environments cannot be joined "
            f"along {how.value.lower()}; write cat_results 'envs', or trajs_per_batch 0"
        )
    if how is CatResults.STACK:
        fragments, how = [fragment.unsqueeze(0) for fragment in fragments], CatResults.ENVS
    return _concatenated(fragments, 0 if how is CatResults.ENVS else 1, empty)


def is_dense(batch: Any) -> bool:
    """Whether a batch holds only tensors of one shape each, as all batches of Gymnasium's environments do."""
    from tensordict import LazyStackedTensorDict, is_tensor_collection

    groups = (value for value in batch.values() if is_tensor_collection(value))
    return not isinstance(batch, LazyStackedTensorDict) and all(map(is_dense, groups))


def _stacked(fragments: "Sequence[TensorDict]", how: CatResults) -> Any:
    """Join fragments of which some are lazy stacks. They may differ in shapes, and not in their number of frames."""
    from tensordict import TensorDict

    if how is CatResults.STACK:
        return TensorDict.maybe_dense_stack(list(fragments), 0)
    dim = 0 if how is CatResults.ENVS else 1
    return TensorDict.maybe_dense_stack([part for fragment in fragments for part in fragment.unbind(dim)], dim)


def _concatenated(batches: "Sequence[TensorDict]", dim: int, empty: Empty) -> "TensorDict":
    """Return what `torch.cat` does, with CPU tensors in memory from `empty`."""
    from tensordict import TensorDict

    def whole(parts: Sequence[Any]) -> Any:
        first = parts[0]
        if type(first) is TensorDict:
            return _concatenated(parts, dim, empty)
        if type(first) is not Tensor or not first.is_cpu:
            return torch.cat(list(parts), dim)
        return torch.cat(list(parts), dim, out=empty(_summed(parts, dim), first.dtype))

    first = batches[0]
    values = {name: whole([batch.get(name) for batch in batches]) for name, _ in first.items()}
    names = first.names if any(first.names) else None
    return TensorDict._new_unsafe(values, batch_size=_summed(batches, dim), names=names, device=first.device)


def _summed(parts: Sequence[Any], dim: int) -> torch.Size:
    sizes = [*parts[0].shape]
    sizes[dim] = sum(part.shape[dim] for part in parts)
    return torch.Size(sizes)


def _check_alike(batches: Sequence["TensorDict"]) -> None:
    """Check that batches can be joined: they may differ only in their number of environments.

    Raises:
        JobInvalid: They differ in a key, dtype or shape; the message names the first that does.
    """

    def layout(batch: "TensorDict") -> dict[object, tuple[torch.dtype, torch.Size]]:
        return {key: (value.dtype, value.shape[1:]) for key, value in batch.items(True, True)}

    first = layout(batches[0])
    for index, batch in enumerate(batches[1:], start=1):
        other = layout(batch)
        for key in [*first, *other]:
            if first.get(key) != other.get(key):
                raise JobInvalid(
                    f"batches 0 and {index} cannot be joined: {key!r} is {_described(first.get(key))} in one and "
                    f"{_described(other.get(key))} in the other; all workers must run the same environment and policy"
                )


def _described(layout: tuple[torch.dtype, torch.Size] | None) -> str:
    return "missing" if layout is None else f"{layout[0]} {list(layout[1])} for each environment"
