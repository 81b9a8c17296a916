"""TorchRL's environments: a worker's one `EnvBase`, with the batch size that it has.

TorchRL is imported only once a function has returned one of its environments.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_map_only

from rollfleet.data.tensor_tree import Key, key_of
from rollfleet.errors import EnvironmentInvalid
from rollfleet_api.job import EnvSpec, Vectorization

KEEPS_SEEDS = "rollfleet_keeps_seeds"
"""An attribute that is true of an `EnvBase` whose rollout is TorchRL's: nothing is seeded, noise gets no `is_init`."""

UNCALLED = "rollfleet_uncalled"
"""An attribute of an `EnvBase` that is true if the policy is not called before the first batch, to know its outputs."""

STAYS_OPEN = "rollfleet_stays_open"
"""An attribute of an `EnvBase` that is true if the next call that would close it leaves it open."""


def is_torchrl(env: object) -> bool:
    """Whether an object is an environment of TorchRL, without importing TorchRL."""
    return any(each.__name__ == "EnvBase" and each.__module__.startswith("torchrl.") for each in type(env).__mro__)


class TorchRLEnv:
    """An `EnvBase` of TorchRL, in the place of a vector environment.

    Attributes:
        base: The environment, with any batch size.
        num_envs: The number of environments: the product of its batch size; 1 without one.
        single_observation_space: The spec of observations: a `Composite` of TorchRL.
        single_action_space: The spec of actions.

    Example:
        >>> from torchrl.envs import GymEnv
        >>> env = TorchRLEnv(GymEnv("CartPole-v1"))
        >>> env.num_envs, env.call("batch_size")
        (1, [torch.Size([])])
        >>> env.close()
    """

    def __init__(self, env: Any, device: torch.device | None = None) -> None:
        self.base = env if device is None else env.to(device)
        self.num_envs = math.prod(env.batch_size)
        self.single_observation_space = env.observation_spec
        self.single_action_space = env.full_action_spec

    @property
    def unwrapped(self) -> "TorchRLEnv":
        """This object."""
        return self

    def call(self, name: str, *args: Any, **kwargs: Any) -> list[Any]:
        """Call a method of the environment, or read an attribute. Returns a list of one result."""
        if name == "load_state_dict":  # a learner's call brings arrays, and torch loads only tensors
            args = tree_map_only(np.ndarray, torch.as_tensor, args)
        found = getattr(self.base, name)
        return [found(*args, **kwargs) if callable(found) else found]

    def close(self) -> None:
        """Close the environment. May be called again."""
        _close(self.base)

    def __str__(self) -> str:
        return type(self.base).__name__


def build_torchrl(first: Any, build: Callable[[], Any], spec: EnvSpec, source: str) -> Any:
    """Return the environments of one worker: `first` if it has their batch size, or a batch of new ones.

    Raises:
        EnvironmentInvalid: The batch size does not fit, or there are wrappers of Gymnasium.
    """
    if spec.wrappers:
        raise EnvironmentInvalid(
            f"{source} returned an environment of TorchRL; write transforms in place of `wrappers`"
        )
    own = math.prod(first.batch_size)
    if own == spec.num_envs and (first.batch_size or spec.vectorization is Vectorization.SYNC):
        return first
    _close(first)
    if first.batch_size:
        raise EnvironmentInvalid(
            f"{source} returned environments of batch size {list(first.batch_size)}, but {spec.num_envs} are asked "
            f"for; ask for {own} (`num_envs`, in a job `numEnvs`), or pass the number to the factory in its kwargs"
        )
    from torchrl.envs import ActionMask, ParallelEnv, SerialEnv

    kind: Any = SerialEnv if spec.vectorization is Vectorization.SYNC else ParallelEnv
    masks = [each.in_keys for each in first.modules() if isinstance(each, ActionMask)]

    class MaskedBatch(kind):  # type: ignore[misc]
        def rand_action(self, tensordict: Any = None) -> Any:
            for action, mask in masks if tensordict is not None else ():  # the single environments mask their own specs
                self.full_action_spec[action].update_mask(tensordict.get(mask, None))
            return super().rand_action(tensordict)

    return (MaskedBatch if masks else kind)(spec.num_envs, build)


def _close(env: Any) -> None:
    """Close an environment. A `SerialEnv` that never ran is closed, and closing it again is an error."""
    if not vars(env).pop(STAYS_OPEN, False) and not env.is_closed:
        env.close()


def with_transforms(env: Any, options: Mapping[str, Any], policy: object) -> Any:
    """Return an environment with the transforms that options and a policy's hidden states need, unless it has them.

    Args:
        env: An `EnvBase`.
        options: Those of a job's `collect`: `max_frames_per_traj`, `step_count` and `is_init` count.
        policy: The policy. Its recurrent modules need `InitTracker` and primers, and some noise needs `InitTracker`.

    Raises:
        EnvironmentInvalid: The environment counts steps itself, and a limit would contradict its own.
    """
    from torchrl.envs import InitTracker, StepCounter
    from torchrl.modules.utils import get_primers_from_module

    limit = options.get("max_frames_per_traj")
    if limit and any("step_count" in key_of(key) for key in env.observation_spec.keys(True, True)):
        raise EnvironmentInvalid(
            f"environment {type(env).__name__} has `step_count` already; remove `max_frames_per_traj`, and write "
            f"StepCounter(max_steps={limit}) in its transforms"
        )
    modules = list(policy.modules()) if isinstance(policy, torch.nn.Module) else []
    made = get_primers_from_module(policy, warn=False, strict=False) if modules else None
    primers = [] if made is None else list(getattr(made, "transforms", [made]))
    reads_starts = any(getattr(module, "is_init_key", None) == "is_init" for module in modules)
    wanted: list[tuple[set[Key], Any]] = []  # transforms, and the keys that they make
    if limit or options.get("step_count"):
        wanted.append(({("step_count",)}, StepCounter(max_steps=limit or None)))
    if options.get("is_init") or primers or (reads_starts and not vars(env).get(KEEPS_SEEDS)):
        wanted.append(({("is_init",)}, InitTracker()))
    wanted += [({key_of(key) for key in primer.primers.keys(True, True)}, primer) for primer in primers]
    for makes, transform in wanted:
        present = {key_of(key) for spec in (env.observation_spec, env.state_spec) for key in spec.keys(True, True)}
        if not makes <= present:
            env = env.append_transform(transform)
    return env
