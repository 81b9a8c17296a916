"""What the operator calls the objects that it makes, and the labels by which it finds them again."""

import re
from dataclasses import dataclass
from typing import Final, Self

from rollfleet_api.metadata import TEMPLATE_HASH_LENGTH
from rollfleet_api.permissions import Role

FIELD_MANAGER: Final = "rollfleet"

MANAGED_BY: Final = "app.kubernetes.io/managed-by"
JOB: Final = "rollfleet.dev/job"
ROLE: Final = "rollfleet.dev/role"
REVISION: Final = "rollfleet.dev/revision"
APPLIED: Final = "rollfleet.dev/applied"
"""Annotation: a hash of what was applied, so that a field that is no longer wanted is noticed."""

KUEUE_PREFIX: Final = "kueue.x-k8s.io/"
QUEUE_NAME: Final = "kueue.x-k8s.io/queue-name"

SELECTOR: Final = f"{MANAGED_BY}={FIELD_MANAGER}"
"""Finds everything that any operator of ours made."""

_PLURAL: Final = {Role.WORKER: "workers", Role.LEARNER: "learner"}
_ROLE: Final = {plural: role for role, plural in _PLURAL.items()}
_WORKLOAD: Final = re.compile(rf"(.+)-(workers|learner)-([0-9a-f]{{{TEMPLATE_HASH_LENGTH}}})")


@dataclass(frozen=True, slots=True)
class Workload:
    """The name of a Kubernetes Job: `<job>-workers-<revision>` or `<job>-learner-<revision>`."""

    job: str
    role: Role
    revision: str

    def __str__(self) -> str:
        """The name."""
        return f"{self.job}-{_PLURAL[self.role]}-{self.revision}"

    @classmethod
    def parse(cls, name: str) -> Self:
        """The inverse of `str`.

        Raises:
            ValueError: It is no name of ours.
        """
        match = _WORKLOAD.fullmatch(name)
        if match is None:
            raise ValueError(f"{name!r} is no name of a job's workers or learner")
        return cls(match[1], _ROLE[match[2]], match[3])


def account(job: str) -> str:
    """The ServiceAccount of a job's pods."""
    return f"{job}-rollfleet"


def secret(job: str, role: Role) -> str:
    """The Secret that tells a role where NATS is, and lets it in."""
    return f"{job}-{role}-nats"


def network_policy(job: str, role: Role) -> str:
    """The NetworkPolicy of a role's pods."""
    return f"{job}-{role}-rollfleet"


def labels(job: str, role: Role | None = None) -> dict[str, str]:
    """The labels of what is made for a job."""
    found = {MANAGED_BY: FIELD_MANAGER, JOB: job}
    return found if role is None else found | {ROLE: role.value}


def selector(job: str, role: Role) -> str:
    """Finds the pods of a role."""
    return f"{JOB}={job},{ROLE}={role}"
