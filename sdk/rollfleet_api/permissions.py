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
                subjects.leases,
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
    queue = subjects.batches_stream  # each rank of a learner has a consumer of its own
    return Permissions(
        publish=[
            subjects.control,
            subjects.weights,
            subjects.weights_for_some,
            subjects.learner,
            f"{subjects.prefix}.taken.*",
            direct_get,
            subjects.ranks,
            f"$JS.API.CONSUMER.CREATE.{queue}.*",
            f"$JS.API.CONSUMER.DURABLE.CREATE.{queue}.*",
            f"$JS.API.CONSUMER.DELETE.{queue}.*",
            f"$JS.API.CONSUMER.INFO.{queue}.*",
            f"$JS.API.CONSUMER.NAMES.{queue}",
            f"$JS.API.CONSUMER.MSG.NEXT.{queue}.*",
            f"$JS.ACK.{queue}.*.>",
        ],
        # Control is for the other ranks, and like what workers publish for evaluators and recorders, which have the
        # learner's credentials.
        subscribe=[inbox, subjects.spec, subjects.workers, subjects.control, subjects.ranks, *subjects.batch_subjects],
    )
