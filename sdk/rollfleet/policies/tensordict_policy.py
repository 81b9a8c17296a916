"""Policies of TorchRL's environments: called with a TensorDict, they read any of its keys and write their outputs."""

from collections.abc import Callable
from inspect import Parameter, signature
from typing import Any

from rollfleet.errors import PolicyInvalid
from rollfleet.policies.tensordict_call import takes_tensordict


def tensordict_policy(policy: Any, env: Any) -> Callable[[Any], Any]:
    """Return a policy as a function from a TensorDict to a TensorDict, as TorchRL's collectors call it.

    Args:
        policy: A TensorDictModule, or another callable with a TensorDict; a module or function of tensors, whose
            parameters have the names of observations, or whose one parameter takes the one observation.
        env: The environment, an `EnvBase`.

    Raises:
        PolicyInvalid: Its parameters are not observations of the environment.
    """
    if type(policy).__name__ == "RandomPolicy" and policy.action_spec is None:
        return env.rand_action  # type: ignore[no-any-return]  # it obeys masks of the environment
    if takes_tensordict(policy):
        return policy  # type: ignore[no-any-return]
    try:
        parameters = signature(getattr(policy, "forward", policy)).parameters.values()
    except (TypeError, ValueError):  # a built-in function has no signature
        return policy  # type: ignore[no-any-return]
    from tensordict.nn import TensorDictModule

    observations = [key for key in env.observation_spec.keys(True, True) if isinstance(key, str)]
    names = [each.name for each in parameters if each.name in observations]
    required = {
        each.name
        for each in parameters
        if each.default is Parameter.empty and each.kind not in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
    }
    if len(required) == 1 and len(observations) == 1:
        names = observations
    elif not names or not required <= set(names):
        raise PolicyInvalid(
            f"the policy takes {', '.join(sorted(required)) or 'no parameters'}, and the environment has the "
            f"observations {', '.join(observations)}; pass a TensorDictModule with in_keys and out_keys"
        )
    return TensorDictModule(policy, in_keys=names, out_keys=list(env.action_keys))  # type: ignore[no-any-return]


def check_actions(output: Any, env: Any) -> None:
    """Check the actions in a policy's TensorDict for an `EnvBase`, which may execute others without an error.

    Raises:
        PolicyInvalid: One has not as many numbers as its spec, or has floats, as scores are, in place of an integer.
    """
    for name in env.action_keys:
        spec = env.full_action_spec[name]
        if -1 in spec.shape or (action := output.get(name, None)) is None:
            continue
        integer = not spec.dtype.is_floating_point and not type(spec).__name__.endswith(("OneHot", "Binary"))
        if action.numel() != spec.shape.numel() or (integer and action.is_floating_point()):
            wanted = f"{spec.dtype} {list(spec.shape)} from {type(spec).__name__} of environment {type(env).__name__}"
            raise PolicyInvalid(f"the policy's {name!r} is {action.dtype} {list(action.shape)}; expected {wanted}")
