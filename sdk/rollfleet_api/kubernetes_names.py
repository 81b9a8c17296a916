"""The labels and names by which the SDK finds a job's objects in a cluster; the operator sets them."""

from typing import Final

from rollfleet_api.permissions import Role

MANAGER: Final = "rollfleet"
"""The value of `MANAGED_BY_LABEL` on all objects of jobs."""

MANAGED_BY_LABEL: Final = "app.kubernetes.io/managed-by"
JOB_LABEL: Final = "rollfleet.dev/job"
ROLE_LABEL: Final = "rollfleet.dev/role"
INDEX_LABEL: Final = "batch.kubernetes.io/job-completion-index"
"""The index of a worker: a label of its pod, and an annotation; set by Kubernetes."""

CONTAINER: Final = "kubectl.kubernetes.io/default-container"
"""Annotation of a pod: the name of the role's own container, whose log kubectl shows."""

OPERATORS: Final = "app.kubernetes.io/name=rollfleet,app.kubernetes.io/component=operator"
"""The label selector of operators and their pods, which the chart labels."""


def nats_server(job: str) -> str:
    """Return the name of the Service of a job's NATS server, and of its Deployment."""
    return _service(job, "nats")


def env_servers(job: str) -> str:
    """Return the name of the Service of a job's environment servers."""
    return _service(job, "servers")


def _service(job: str, of: str) -> str:
    """Return the name of a Service: it begins with a letter."""
    return f"{of}-{job}" if job[0].isdigit() else f"{job}-{of}"


def credentials_secret(job: str, role: Role) -> str:
    """Return the name of the Secret with a role's NATS address and credentials.

    Example:
        >>> credentials_secret("cartpole", Role.LEARNER)
        'cartpole-learner-nats'
    """
    return f"{job}-{role}-nats"


def selector(job: str, role: Role) -> str:
    """Return the label selector of a role's pods."""
    return f"{JOB_LABEL}={job},{ROLE_LABEL}={role}"
