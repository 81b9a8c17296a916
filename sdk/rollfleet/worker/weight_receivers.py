"""The receivers of weights in a worker: collectors inside it, which pass weights on to their own workers.

A policy or an environment may have a method `receive_weights(policy, version)`. The worker calls it when it has applied
a version, before the first frame on it. `Collector.receive_weights` can be that method:

    class Nested(gymnasium.Env):
        def __init__(self):
            self.inner = rollfleet.Collector(..., workers=4)
            self.receive_weights = self.inner.receive_weights
"""

from collections.abc import Iterator
from typing import Any, Protocol

from rollfleet.envs.factory import VectorEnv


class Receiver(Protocol):
    """A method `receive_weights` of a policy, an environment or a wrapper."""

    def __call__(self, policy: Any, version: int, /) -> object:
        """Copy the weights of the worker's policy, which has this version. An error fails the worker."""
        ...


def receivers_of(policy: object, env: VectorEnv) -> list[Receiver]:
    """Return the receivers of a worker's policy, of its environments and of their wrappers, each once.

    Environments in separate processes are out of reach.
    """
    found: list[Receiver] = []
    owners: list[object] = [policy, *_layers(env)]
    for single in getattr(env.unwrapped, "envs", ()):
        owners.extend(_layers(single))
    for owner in owners:
        receiver = getattr(owner, "receive_weights", None)
        if callable(receiver) and receiver not in found:
            found.append(receiver)
    return found


def _layers(env: Any) -> Iterator[object]:
    """Yield an environment's wrappers, then the environment."""
    while env is not None:
        yield env
        env = vars(env).get("env")
