"""The work of a worker: the job, and functions that make its environments and its policy."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import gymnasium
import torch

from rollfleet.envs.factory import VectorEnv, make_env
from rollfleet.policies.actor import Policy
from rollfleet.policies.factory import make_policy
from rollfleet.schemes import WeightScheme, scheme_of
from rollfleet.transports.hooks import Hooks
from rollfleet_api.job import CollectorJob

Space = gymnasium.Space[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The work that all workers of a job share. Each worker passes its own index.

    Example:
        >>> from rollfleet.testing import small_job
        >>> workload = Workload.of(small_job())
        >>> env = workload.make_env(0)
        >>> policy = workload.make_policy(0, env.single_observation_space, env.single_action_space)
        >>> env.close()

    Attributes:
        make_env: Makes the environments of a worker, from its index.
        make_policy: Makes the policy of a worker, from its index and the spaces of a single environment.
        scheme: Chooses the weights that travel from the learner.
        make_hooks: Imports the functions that each worker calls.
    """

    job: CollectorJob
    make_env: Callable[[int], VectorEnv]
    make_policy: Callable[[int, Space, Space], Policy]
    scheme: WeightScheme
    make_hooks: Callable[[], Hooks] = Hooks

    @classmethod
    def of(cls, job: CollectorJob) -> Self:
        """Return the workload that the job's spec describes."""
        return cls(
            job=job,
            make_env=partial(_env, job),
            make_policy=partial(_policy, job),
            scheme=scheme_of(job.spec.weights),
            make_hooks=partial(Hooks.of, job.spec.collect),
        )


def _env(job: CollectorJob, _worker: int) -> VectorEnv:
    device = job.spec.env.device
    return make_env(job.spec.env, device=None if device is None else torch.device(device))


def _policy(job: CollectorJob, _worker: int, observation_space: Space, action_space: Space) -> Policy:
    return make_policy(job.spec.policy, observation_space, action_space)
