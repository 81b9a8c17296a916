"""Lazy parameters: their shape is unknown until the first call, which initialises them."""

import copy
from collections.abc import Callable

import gymnasium
import numpy as np
import torch
from torch import nn
from torch.nn.parameter import is_lazy as _is_uninitialised

from rollfleet.envs.factory import VectorEnv
from rollfleet.envs.spaces import supported
from rollfleet.errors import PolicyInvalid, RollfleetError
from rollfleet.policies.actor import Actor

_ENVS = 2  # in a batch of one, normalisation layers fail


def is_lazy(policy: object) -> bool:
    """Whether a policy has parameters or buffers of unknown shape."""
    if not isinstance(policy, nn.Module):
        return False
    return any(_is_uninitialised(tensor) for tensor in (*policy.parameters(), *policy.buffers()))


def initialise(
    policy: object, observation_space: gymnasium.Space[object], action_space: gymnasium.Space[object]
) -> None:
    """Initialise the lazy parameters of a policy by one call with random observations; any other policy is not called.

    Raises:
        PolicyInvalid: The call failed, or parameters are lazy after it.
        EnvironmentInvalid: A space is not supported.
    """
    if not isinstance(policy, nn.Module) or not is_lazy(policy):
        return
    with torch.inference_mode(False), torch.no_grad():
        if hasattr(observation_space, "zero"):  # a spec of TorchRL
            policy(observation_space.zero())
        else:
            space = copy.deepcopy(supported(observation_space, "observation", "the policy"))
            space.seed(0)
            spaces = (space, supported(action_space, "action", "the policy"))
            actor = Actor(policy, spaces, _ENVS, lambda: np.zeros(_ENVS, np.int64), trained_here=True)
            leaves = zip(*(actor.observations.split(space.sample()) for _ in range(_ENVS)), strict=True)
            actor.advance(actor.observations.join([np.stack(leaf) for leaf in leaves]))
            actor.first()
    named = (*policy.named_parameters(), *policy.named_buffers())
    if unknown := [name for name, tensor in named if _is_uninitialised(tensor)]:
        raise PolicyInvalid(
            f"{unknown[0]} of the policy is lazy, and a call of the policy does not initialise it; call its module "
            "once, before you pass the policy"
        )


def initialise_as_learner(policy: object, make_env: Callable[[], VectorEnv]) -> None:
    """Initialise the lazy parameters of a policy that only workers call, for environments like theirs, then closed.

    Raises:
        PolicyInvalid: They cannot be made here; or see `initialise`.
    """
    if not is_lazy(policy):
        return
    try:
        env = make_env()
    except RollfleetError as error:
        raise PolicyInvalid(
            f"the policy has lazy parameters, and no environment here shows their shapes ({error}); call the policy "
            "once before you pass it"
        ) from error
    try:
        initialise(policy, env.single_observation_space, env.single_action_space)
    finally:
        env.close()
