"""Policies from what a job says."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import gymnasium
from torch import nn

from rollfleet.envs.space_tree import Space, SpaceTree
from rollfleet.envs.spaces import supported
from rollfleet.errors import PolicyInvalid
from rollfleet.policies.actor import Policy
from rollfleet.policies.actor_critic import ActorCritic
from rollfleet.policies.uniform import UniformActions
from rollfleet.system.entrypoints import load

if TYPE_CHECKING:
    from rollfleet_api.job import PolicySpec

__all__ = ["ActorCritic", "Policy", "RandomPolicy", "make_policy"]


class RandomPolicy:
    """Uniform random elements of the action space; no parameters, and no look at the observation.

    Reproducible as other policies are: it draws from torch's default generator.
    """

    def __init__(self, action_space: Space) -> None:
        """For any number of environments, which the observation tells."""
        self._tree, self._uniform = SpaceTree(action_space), UniformActions(action_space)

    def __call__(self, observation: Any) -> Any:
        """Actions [envs, ...] for observations [envs, ...]; of a Dict or Tuple space under `action`."""
        actions = self._tree.join(self._uniform.sample(_rows(observation))[0])
        return actions if self._tree.plain else {"action": actions}


def _rows(observation: Any) -> int:
    """How many environments are seen: of a tensor, or of dicts and tuples of tensors."""
    while isinstance(observation, dict | tuple):
        observation = next(iter(observation.values() if isinstance(observation, dict) else observation))
    return len(observation)


def make_policy(
    spec: "PolicySpec", observation_space: gymnasium.Space[object], action_space: gymnasium.Space[object]
) -> Policy:
    """Build a worker's policy, on `spec.device`.

    Args:
        spec: The job's policy; an entrypoint is called as `make(observation_space, action_space, **kwargs)`.
        observation_space: Of a single environment.
        action_space: Of a single environment.

    Raises:
        PolicyInvalid: It could not be built; names the entrypoint or kind, what went wrong, and what to write.
        EnvironmentInvalid: A built-in policy does not support a space.
    """
    if spec.random is not None:
        return RandomPolicy(supported(action_space, "action", "policy random"))
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
    return policy


def _from_entrypoint(
    spec: "PolicySpec", observation_space: gymnasium.Space[object], action_space: gymnasium.Space[object]
) -> Policy:
    source = f"policy entrypoint {spec.entrypoint!r}"
    try:
        make: Callable[..., object] = load(spec.entrypoint or "")
    except ValueError as exc:
        raise PolicyInvalid(f"{source}: {exc}") from exc
    try:
        policy = make(observation_space, action_space, **spec.kwargs)
    except Exception as exc:
        raise PolicyInvalid(
            f"{source} failed with kwargs {dict(spec.kwargs)}: {type(exc).__name__}: {exc}. It is called as "
            "make(observation_space, action_space, **kwargs)"
        ) from exc
    if not callable(policy):
        raise PolicyInvalid(f"{source} returned a {type(policy).__name__}; return an nn.Module or another callable")
    return policy
