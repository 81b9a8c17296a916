"""The names and labels of the objects that the operator creates."""

import re
from dataclasses import dataclass
from typing import Final, Self

from rollfleet_api.kubernetes_names import JOB_LABEL, MANAGED_BY_LABEL, MANAGER, ROLE_LABEL, credentials_secret
from rollfleet_api.metadata import DIGEST_LENGTH
from rollfleet_api.permissions import Role

CONFIG: Final = "rollfleet.dev/config"
"""Annotation of a NATS server's pod: a hash of its configuration, at whose change the server starts again."""

APPLIED: Final = "rollfleet.dev/applied"
"""Annotation: a hash of the applied manifest. It shows that a field is no longer wanted."""

INSTALLATION: Final = "rollfleet.dev/installation"
"""Annotation of a job's ServiceAccount: `namespace/name` of the Secret with the key of the job's installation."""

PER_WORKER: Final = "rollfleet.dev/servers-per-worker"
"""Annotation of the Kubernetes Job of environment servers, by which it scales with the workers of its revision."""

ROTATE: Final = "rollfleet.dev/rotate"
"""Annotation of a CollectorJob: any text. When it changes, the job gets new passwords and a new certificate."""

SECRET_TYPE: Final = "rollfleet.dev/nats"
"""A Secret's type never changes: one of this type is a job's own, which the operator may write without reading it."""

SELECTOR: Final = f"{MANAGED_BY_LABEL}={MANAGER}"
"""The label selector of all objects of Rollfleet's operators."""

_PLURAL: Final = {  # no longer than `workers`
    Role.WORKER: "workers",
    Role.LEARNER: "learner",
    Role.EVALUATION: "eval",
    Role.ENV_SERVER: "servers",
}
_ROLE: Final = {plural: role for role, plural in _PLURAL.items()}
_WORKLOAD: Final = re.compile(rf"(.+)-({'|'.join(_ROLE)})-([0-9a-f]{{{DIGEST_LENGTH}}})")


@dataclass(frozen=True, slots=True)
class Workload:
    """The name of a Kubernetes Job: `<job>-workers-<revision>`, and so on."""

    job: str
    role: Role
    revision: str

    def __str__(self) -> str:
        """Return the name."""
        return f"{self.job}-{_PLURAL[self.role]}-{self.revision}"

    @classmethod
    def parse(cls, name: str) -> Self:
        """Parse a name, the inverse of `str`.

        Raises:
            ValueError: It is not the name of a role's Kubernetes Job.
        """
        match = _WORKLOAD.fullmatch(name)
        if match is None:
            raise ValueError(f"{name!r} is not the name of a job's workers or learner")
        return cls(match[1], _ROLE[match[2]], match[3])


def account(job: str) -> str:
    """Return the name of the ServiceAccount of a job's pods."""
    return f"{job}-rollfleet"


def secret(job: str, role: Role) -> str:
    """Return the name of the Secret with a role's files: the learner's, or that of all others."""
    return credentials_secret(job, role if role is Role.LEARNER else Role.WORKER)


def server_secret(job: str) -> str:
    """Return the name of the Secret with the configuration of the job's NATS server."""
    return f"{job}-server-nats"


def network_policy(job: str, role: Role) -> str:
    """Return the name of the NetworkPolicy of a role's pods."""
    return f"{job}-{role}-rollfleet"


def labels(job: str, role: Role | None = None) -> dict[str, str]:
    """Return the labels of a job's objects."""
    found = {MANAGED_BY_LABEL: MANAGER, JOB_LABEL: job}
    return found if role is None else found | {ROLE_LABEL: role.value}
