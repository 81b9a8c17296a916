"""What each role of a job may publish and subscribe: the least that its program needs, and nothing of another job.

The local runner writes these into its server's configuration; an operator signs them into identities. One table, so
that what works on one machine works on a cluster.
"""

from dataclasses import dataclass
from enum import StrEnum

from rollfleet_api.subjects import Subjects


class Role(StrEnum):
    """Who connects."""

    WORKER = "worker"
    LEARNER = "learner"


@dataclass(frozen=True, slots=True, kw_only=True)
class Permissions:
    """Subjects that may be published and subscribed; everything else is refused."""

    publish: list[str]
    subscribe: list[str]


def inbox_prefix(subjects: Subjects, role: Role) -> str:
    """Where replies to this role go: no other job can listen there."""
    return f"_INBOX.{subjects.namespace}.{subjects.job}.{role}"


def permissions(subjects: Subjects, role: Role) -> Permissions:
    """What a role of a job may do."""
    inbox = f"{inbox_prefix(subjects, role)}.>"
    direct_get = f"$JS.API.DIRECT.GET.{subjects.state_stream}.>"
    if role is Role.WORKER:
        return Permissions(
            publish=[
                *subjects.batch_subjects,
                subjects.claims,
                subjects.workers,
                direct_get,
            ],
            subscribe=[
                inbox,
                subjects.spec,
                subjects.control,
                subjects.weights,
                subjects.weights_for_some,
                f"{subjects.prefix}.taken.*",
            ],
        )
    consumer = f"{subjects.batches_stream}.{subjects.learner_consumer}"
    return Permissions(
        publish=[
            subjects.control,
            subjects.weights,
            subjects.weights_for_some,
            subjects.learner,
            f"{subjects.prefix}.taken.*",
            direct_get,
            f"$JS.API.CONSUMER.CREATE.{consumer}",
            f"$JS.API.CONSUMER.DURABLE.CREATE.{consumer}",
            f"$JS.API.CONSUMER.DELETE.{consumer}",
            f"$JS.API.CONSUMER.INFO.{consumer}",
            f"$JS.API.CONSUMER.MSG.NEXT.{consumer}",
            f"$JS.ACK.{consumer}.>",
        ],
        # What workers publish, and control: for evaluators and recorders, which have the learner's credentials.
        subscribe=[inbox, subjects.spec, subjects.workers, subjects.control, *subjects.batch_subjects],
    )
