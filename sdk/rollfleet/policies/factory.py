"""A worker's policy, built from a job's `policy`."""

from collections.abc import Callable
from contextlib import suppress
from inspect import signature
from typing import Any

import gymnasium
from torch import nn

from rollfleet.arguments import shown
from rollfleet.errors import JobInvalid, PolicyInvalid
from rollfleet.policies.actor import Policy
from rollfleet.policies.actor_critic import ActorCritic
from rollfleet.policies.lazy import initialise
from rollfleet.policies.random_policy import random_policy
from rollfleet.system.entrypoints import load
from rollfleet_api.job import PolicySpec

__all__ = ["Policy", "make_policy"]


def make_policy(
    spec: PolicySpec, observation_space: gymnasium.Space[object], action_space: gymnasium.Space[object]
) -> Policy:
    """Build a worker's policy on `spec.device`. Its lazy parameters are initialised by one call.

    Args:
        spec: A job's `policy`; an entrypoint is called as `make(observation_space, action_space, **kwargs)`, or as
            `make(**kwargs)` if it takes no spaces.
        observation_space: The observation space of a single environment.
        action_space: The action space of a single environment.

    Raises:
        PolicyInvalid: It could not be built; the message names the entrypoint or kind, the cause, and the fix.
        EnvironmentInvalid: A built-in policy does not support a space.

    Example:
        >>> from rollfleet import make_env, make_policy
        >>> from rollfleet_api.job import EnvSpec, MlpSpec, PolicySpec
        >>> env = make_env(EnvSpec(id="CartPole-v1"))
        >>> spec = PolicySpec(mlp=MlpSpec(hidden=[32, 32]))
        >>> make_policy(spec, env.single_observation_space, env.single_action_space).actor[0]
        Linear(in_features=4, out_features=32, bias=True)
        >>> env.close()
    """
    if not isinstance(spec, PolicySpec):
        raise PolicyInvalid(f"spec: expected a rollfleet_api.job.PolicySpec, got {shown(spec)}")
    if spec.random is not None:
        return random_policy(action_space)
    policy: Policy
    if spec.mlp is not None:
        policy = ActorCritic(
            observation_space,
            action_space,
            hidden=tuple(spec.mlp.hidden),
            activation=spec.mlp.activation.value,
        )
    else:
        policy = _from_entrypoint(spec, observation_space, action_space)
    if isinstance(policy, nn.Module):
        try:
            policy.to(spec.device)
        except (RuntimeError, AssertionError) as exc:
            raise PolicyInvalid(
                f"the policy cannot be moved to device {spec.device!r}: {exc}; write device: cpu"
            ) from exc
    initialise(policy, observation_space, action_space)
    return policy


def _from_entrypoint(
    spec: PolicySpec, observation_space: gymnasium.Space[object], action_space: gymnasium.Space[object]
) -> Policy:
    source = f"policy entrypoint {spec.entrypoint!r}"
    try:
        make: Callable[..., object] = load(spec.entrypoint or "")
    except ValueError as exc:
        raise PolicyInvalid(f"{source}: {exc}") from exc
    try:
        policy = make(*(observation_space, action_space)[: spaces_taken(make, **spec.kwargs)], **spec.kwargs)
    except JobInvalid:
        raise
    except Exception as exc:
        raise PolicyInvalid(
            f"{source} failed with kwargs {dict(spec.kwargs)}: {type(exc).__name__}: {exc}. It is called as "
            "make(observation_space, action_space, **kwargs), or as make(**kwargs)"
        ) from exc
    if not callable(policy):
        raise PolicyInvalid(f"{source} returned a {type(policy).__name__}; return an nn.Module or another callable")
    return policy


def spaces_taken(factory: Callable[..., object], **kwargs: Any) -> int | None:
    """Return with how many spaces a factory is called: two, or none as in TorchRL; None: it takes neither."""
    try:
        taken = signature(factory)
    except (TypeError, ValueError):  # some built-in callables have no signature
        return 2
    for count in (2, 0):
        with suppress(TypeError):
            taken.bind(*[None] * count, **kwargs)
            return count
    return None
