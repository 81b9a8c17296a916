"""The NATS permissions of each role of a job: the least that its program needs.

They are written into the configuration of the job's server (`nats_server`), on one machine and on a cluster.
"""

from dataclasses import dataclass
from enum import StrEnum

from rollfleet_api.subjects import Subjects


class Role(StrEnum):
    """The role of a job's process, and of its pod. Evaluation workers connect to NATS as workers."""

    WORKER = "worker"
    LEARNER = "learner"
    EVALUATION = "evaluation"
    NATS = "nats"  # the job's server


@dataclass(frozen=True, slots=True, kw_only=True)
class Permissions:
    """The subjects that a role may publish to and subscribe to; all others are refused."""

    publish: list[str]
    subscribe: list[str]


def inbox_prefix(subjects: Subjects, role: Role) -> str:
    """Return the prefix of the role's inboxes, on which no other job may listen."""
    return f"_INBOX.{subjects.namespace}.{subjects.job}.{Role.LEARNER if role is Role.LEARNER else Role.WORKER}"


def permissions(subjects: Subjects, role: Role) -> Permissions:
    """Return the permissions of a role.

    Example:
        >>> "rollfleet.default.cartpole.control" in permissions(Subjects.parse("cartpole"), Role.WORKER).subscribe
        True
    """
    inbox, direct_get = f"{inbox_prefix(subjects, role)}.>", f"$JS.API.DIRECT.GET.{subjects.state_stream}"
    sent = [subjects.spec, subjects.control, subjects.weights]
    taken = f"{subjects.prefix}.taken.*"
    if role is not Role.LEARNER:
        own = [subjects.batches, subjects.leases, subjects.workers, subjects.evaluations, subjects.answers]
        # JetStream sends what is stored to any subject that a request names, also to its own API. Therefore workers get
        # nothing in this way that workers wrote: a lease would be a request of theirs with the server's rights.
        read = [*(f"{direct_get}.{subject}" for subject in sent), subjects.state_get, subjects.state_info]
        return Permissions(publish=[*own, *read], subscribe=[inbox, *sent, taken, subjects.calls])
    own = [subjects.control, subjects.weights, subjects.learner, subjects.learner_leases, taken, subjects.calls]
    # Control is for other ranks. Recorders have the learner's credentials: they need control and batches, too.
    heard = [subjects.spec, subjects.workers, subjects.control, subjects.evaluations, subjects.answers]
    return Permissions(
        publish=[*own, f"{direct_get}.>", subjects.state_get, subjects.state_info],
        subscribe=[inbox, *heard, subjects.learner_leases, subjects.batches],
    )
