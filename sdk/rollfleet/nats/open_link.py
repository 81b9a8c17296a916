"""Opens the connection of whoever takes a job's batches: a learner, an evaluator, a recorder."""

import os
from pathlib import Path

from rollfleet.errors import ConnectionFailed, JobInvalid
from rollfleet.nats.link import Link
from rollfleet.system.container_init import heed_sigterm
from rollfleet_api.environment import Address, EnvironmentIncomplete
from rollfleet_api.job import CollectorJob
from rollfleet_api.permissions import Role
from rollfleet_api.subjects import Subjects


def open_link(
    job: str | CollectorJob | None, *, address: str | None, credentials: str | Path | None, timeout_s: float
) -> Link:
    """As a learner of a job; what is None is said by the environment.

    Raises:
        ConnectionFailed: No server was named, none answered, or it refused the credentials.
        JobInvalid: No job can have that name.
    """
    name = job.key if isinstance(job, CollectorJob) else job
    try:
        where = Address.read(os.environ, url=address, job=name).with_credentials(credentials)
        Subjects.parse(where.job)
    except EnvironmentIncomplete as error:
        raise ConnectionFailed(str(error)) from error
    except ValueError as error:
        raise JobInvalid(str(error)) from error
    heed_sigterm()
    return Link(where, role=Role.LEARNER, timeout_s=timeout_s)
