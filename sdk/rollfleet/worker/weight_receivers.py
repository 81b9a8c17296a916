"""Who in a worker is told of new weights besides its policy: collectors inside it, which pass them on to their workers.

A policy or an environment that has `receive_weights(policy, version)` is called after each version that the worker has
applied, before the first frame that acts on it. `Collector.receive_weights` can be that method as it is:

    class Nested(gymnasium.Env):
        def __init__(self):
            self.inner = rollfleet.Collector(..., workers=4)
            self.receive_weights = self.inner.receive_weights
"""

from collections.abc import Iterator
from typing import Any, Protocol

from rollfleet.envs.factory import VectorEnv


class Receiver(Protocol):
    """What is called."""

    def __call__(self, policy: Any, version: int, /) -> object:
        """Take over the weights of the worker's policy, as they are now: the learner's of this version.

        What it raises fails the worker.
        """
        ...


def receivers_of(policy: object, env: VectorEnv) -> list[Receiver]:
    """Those of a worker: its policy's, its environments' and those of their wrappers, each once.

    Environments in processes of their own are out of reach.
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
    """An environment's wrappers, and itself."""
    while env is not None:
        yield env
        env = vars(env).get("env")
