"""What a worker has to do: the job, and how its environments and its policy are made."""

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
from rollfleet_api.job import CollectorJob

Space = gymnasium.Space[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Of any worker of a job: each asks with its own index.

    Attributes:
        job: What is collected, and how much.
        make_env: The environments of a worker, from its index.
        make_policy: The policy of a worker, from its index and the spaces of a single environment.
        scheme: How its weights travel.
    """

    job: CollectorJob
    make_env: Callable[[int], VectorEnv]
    make_policy: Callable[[int, Space, Space], Policy]
    scheme: WeightScheme

    @classmethod
    def of(cls, job: CollectorJob) -> Self:
        """What a job says in words."""
        return cls(
            job=job, make_env=partial(_env, job), make_policy=partial(_policy, job), scheme=scheme_of(job.spec.weights)
        )


def _env(job: CollectorJob, _worker: int) -> VectorEnv:
    device = job.spec.env.device
    return make_env(job.spec.env, device=None if device is None else torch.device(device))


def _policy(job: CollectorJob, _worker: int, observation_space: Space, action_space: Space) -> Policy:
    return make_policy(job.spec.policy, observation_space, action_space)
