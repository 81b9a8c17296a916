"""A learner that only counts batches. It sends the initial weights of the job's policy once and never trains.

`rollfleet run` without `--learner` starts `python -m rollfleet.cli.default_learner`.
"""

import sys
from contextlib import closing, suppress

import torch

from rollfleet.connection import connect
from rollfleet.envs.factory import make_one
from rollfleet.errors import JobInvalid, RollfleetError, WorkerFailed
from rollfleet.policies.factory import make_policy


def main() -> None:
    """Take batches until the job ends."""
    with connect() as collector:
        policy, spec = None, collector.job.spec
        torch.manual_seed(spec.collect.seed)
        with suppress(JobInvalid), closing(make_one(spec.env)) as env:  # workers fail by the same cause, and show it
            policy = make_policy(spec.policy, env.single_observation_space, env.single_action_space)
        if isinstance(policy, torch.nn.Module) and policy.state_dict():
            collector.update_policy_weights_(policy)
        for _ in collector:
            pass


if __name__ == "__main__":
    try:
        main()
    except RollfleetError as error:  # the user has written no learner: its traceback shows none of their code
        sys.exit(1 if isinstance(error, WorkerFailed) else str(error))
