"""Entry points of a cluster's workers, for arguments of a collector that a job has no field for.

`rollfleet.learner.on_cluster` writes their names and keyword arguments into a job.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium

from rollfleet.policies.factory import spaces_taken
from rollfleet.system.entrypoints import load
from rollfleet_api.address import WORKER


def named(*, name: str) -> Callable[..., object]:
    """Return a policy that is a function: the callable itself.

    Example:
        >>> named(name="math:sqrt")(4.0)
        2.0
    """
    return load(name)


def env_of_worker(*, entries: Sequence[Mapping[str, Any]], **more: Any) -> object:
    """Make the environment of this worker, of a list with one entry for each worker.

    Args:
        entries: The `id` or `entrypoint` of each worker, and its `kwargs`.
        more: Further keyword arguments.
    """
    entry = _of_worker(entries)
    kwargs = {**entry.get("kwargs", {}), **more}
    if "id" in entry:
        return gymnasium.make(entry["id"], disable_env_checker=True, **kwargs)
    return load(entry["entrypoint"])(**kwargs)


def policy_of_worker(*spaces: gymnasium.Space[Any], entries: Sequence[Mapping[str, Any]]) -> object:
    """Make the policy of this worker, of a list with one entry for each worker: its `entrypoint` and its `kwargs`."""
    entry = _of_worker(entries)
    factory, kwargs = load(entry["entrypoint"]), entry.get("kwargs", {})
    return factory(*spaces[: spaces_taken(factory, **kwargs)], **kwargs)


def _of_worker(entries: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    return entries[int(os.environ[WORKER]) % len(entries)]
