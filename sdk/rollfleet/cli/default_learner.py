"""A learner that only counts batches. It sends the initial weights of the job's policy once and never trains.

`rollfleet run` without `--learner` starts `python -m rollfleet.cli.default_learner`.
"""

import sys
from contextlib import suppress

import torch

from rollfleet.connection import connect
from rollfleet.envs.factory import make_one
from rollfleet.errors import JobInvalid, RollfleetError, WorkerFailed
from rollfleet.policies.factory import make_policy
from rollfleet_api.job import CollectorJob


def main() -> None:
    """Take batches until the job ends."""
    with connect(policy=None) as collector:
        policy = None
        with suppress(JobInvalid):  # workers fail by the same cause, and the run shows theirs
            policy = _policy(collector.job)
        if isinstance(policy, torch.nn.Module) and policy.state_dict():
            collector.update_policy_weights_(policy)
        for _ in collector:
            pass


def _policy(job: CollectorJob) -> object:
    torch.manual_seed(job.spec.collect.seed)
    env = make_one(job.spec.env)
    try:
        return make_policy(job.spec.policy, env.single_observation_space, env.single_action_space)
    finally:
        env.close()


if __name__ == "__main__":
    try:
        main()
    except RollfleetError as error:  # the user has written no learner: its traceback shows none of their code
        sys.exit(1 if isinstance(error, WorkerFailed) else str(error))
