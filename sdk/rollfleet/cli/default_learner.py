"""A learner that only counts: it sends the job's policy once, as it was initialised, and takes every batch.

`python -m rollfleet.cli.default_learner` is what `rollfleet run` starts where no learner is named.
"""

import torch

from rollfleet.connection import connect
from rollfleet.envs.factory import make_env
from rollfleet.policies.factory import make_policy
from rollfleet_api.job import CollectorJob


def main() -> None:
    """Count until the job ends."""
    with connect(policy=None) as collector:
        policy = _policy(collector.job)
        if isinstance(policy, torch.nn.Module) and policy.state_dict():
            collector.update_policy_weights_(policy)
        for _ in collector:
            pass


def _policy(job: CollectorJob) -> object:
    torch.manual_seed(job.spec.collect.seed)
    env = make_env(job.spec.env.model_copy(update={"num_envs": 1}))
    try:
        return make_policy(job.spec.policy, env.single_observation_space, env.single_action_space)
    finally:
        env.close()


if __name__ == "__main__":
    main()
